/* What must hold in the world of test_kv_schedules.c at any time: every reference is accounted for, and each head finds in its
 * blocks what the model of its sequence says. */
#ifndef SOQ_TESTS_KV_SCHEDULE_RULES_H
#define SOQ_TESTS_KV_SCHEDULE_RULES_H

#include "tests/unit/kv_schedule_world.h"

static uint32_t references(uint32_t pool, soq_block_ref block)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < cache.n_groups; g++) {
        if (pool_of(g, block >> SOQ_BLOCK_CLASS_SHIFT) != pool)
            continue;
        for (int a = 0; a < N_SEQS; a++)
            for (uint32_t i = 0; actors[a].there && i < CONTEXT / P; i++)
                n += actors[a].seq.groups[g].table[i] == block;
        for (uint32_t i = 0; i < cache.n_copies; i++)
            n += cache.copies[i].group == g && cache.copies[i].src == block;
    }
    return n;
}

static void check_held(void)
{
    for (int a = 0; a < N_SEQS; a++) {
        uint32_t held[POOLS_MAX] = {0};

        for (uint32_t g = 0; actors[a].there && g < cache.n_groups; g++) {
            uint32_t n[2] = {0};

            for (uint32_t i = 0; i < CONTEXT / P; i++)
                if (actors[a].seq.groups[g].table[i] != SOQ_BLOCK_NONE)
                    n[actors[a].seq.groups[g].table[i] >> SOQ_BLOCK_CLASS_SHIFT]++;
            cr_assert_eq(actors[a].seq.groups[g].n_held, n[0] + n[1]);
            cr_assert_eq(actors[a].seq.groups[g].n_packed, n[1]);
            held[layout.groups[g].pool] += n[0];
            if (layout.groups[g].packs)
                held[layout.groups[g].packed_pool] += n[1];
        }
        for (uint32_t i = 0; actors[a].there && i < cache.n_pools; i++)
            cr_assert_eq(actors[a].seq.pools[i].held, held[i]);
    }
}

static void check_counts(void)
{
    uint64_t used = 0, out = 0;

    for (uint32_t i = 0; i < cache.n_pools; i++) {
        const struct soq__kv_pool *pool = &cache.pools[i];
        uint32_t n_used = 0;

        for (uint32_t b = 0; b < pool->max_slabs * pool->blocks_per_slab; b++) {
            uint32_t known;

            if (!pool->refs[b])
                continue;
            known = references(i, b | pool->block_class << SOQ_BLOCK_CLASS_SHIFT);
            cr_assert_eq(pool->refs[b], known, "pool %u, block %u: %u references, %u are known", i, b, pool->refs[b], known);
            cr_assert(present[i][b], "pool %u, block %u is used, but its slab is gone", i, b);
            n_used++;
        }
        cr_assert_eq(pool->n_used, n_used);
        used += pool->n_slabs * pool->slab_bytes;
    }
    check_held();
    cr_assert_eq(cache.budget.used, used);
    cr_assert_leq(used, cache.budget.limit);
    for (int a = 0; a < N_SEQS; a++)
        out += actors[a].there ? soq__kv_swap_bytes(&actors[a].seq) : 0;
    cr_assert_eq(cache.swap.used, out);
    cr_assert_leq(out, cache.swap.limit);
}

/* The entry of a head, as the backend finds it, is the one for `position`. */
static void check_entry(const struct actor *a, const struct soq__kv_part *part, uint32_t head, uint32_t e, uint32_t position)
{
    soq_block_ref block = tables[a->seq.slot][part->group][e / P];
    const struct soq__kv_group_layout *g = &layout.groups[part->group];
    const struct entry *found = &block_of(part->group, block)[part->index * g->n_heads + head][e % P];
    bool packed = (e / P + 1) * P <= packed_to(stored_as[g->layers[0]], a->seq.n_committed);

    cr_assert_eq(block, a->seq.groups[part->group].table[e / P], "group %u, entry %u: the backend has not heard of the block",
                 part->group, e);
    cr_assert_eq(block >> SOQ_BLOCK_CLASS_SHIFT, packed, "group %u, entry %u of %u: class %u", part->group, e,
                 a->seq.n_committed, block >> SOQ_BLOCK_CLASS_SHIFT);
    cr_assert(!packed || found->coded);
    cr_assert(found->position == position && found->value == a->values[position],
              "group %u, entry %u: %u of position %u, but it should be %u of %u", part->group, e, found->value, found->position,
              a->values[position], position);
}

static const struct soq_step_segment *segment_of(const struct soq_step_segment *segments, uint32_t n, uint32_t group,
                                                 uint32_t e)
{
    for (uint32_t s = 0; s < n; s++)
        if (segments[s].group == group && e - segments[s].first_entry < segments[s].n_entries)
            return &segments[s];
    return NULL;
}

static bool is_visible(const struct actor *a, uint32_t layer, uint32_t head, uint32_t e)
{
    uint32_t len = a->seq.n_committed;

    if (selects(layer, head))
        return e + a->held[layer][head].n >= len;
    if (layer % 2 == 0)
        return e + WINDOW > len;
    return head_policy[layer][head] == FULL || e < SINKS || e + MASK > len;
}

/* An entry in a group whose positions count by slot stands for itself once its segment's rotation is applied. */
static void check_rotation(uint32_t policy, const struct soq_step_segment *s, uint32_t e, uint32_t position)
{
    if (kind_of(policy) == BY_SLOT)
        cr_assert_eq(position + (s->flags == SOQ_SEGMENT_ROTATE ? s->rotation : 0), e);
    else
        cr_assert_eq(s->flags, policy == MASKED && e < SINKS ? SOQ_SEGMENT_ROLLING : 0);
}

/* Entries that the next row sees. */
static void check_contents(const struct actor *a)
{
    struct soq_step_segment segments[2 * GROUPS_MAX];
    uint32_t n = soq__kv_segments(&a->seq, a->seq.n_committed + a->seq.n_tentative, segments, 2 * GROUPS_MAX),
             len = a->seq.n_committed;

    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t at = layout.first_part[l]; at < layout.first_part[l + 1]; at++)
            for (uint32_t h = 0; h < layout.parts[at].n_heads; h++) {
                const struct soq__kv_part *part = &layout.parts[at];
                uint32_t head = part->first_head + h;
                const struct held *held = &a->held[l][head];

                for (uint32_t e = 0; e < len; e++) {
                    const struct soq_step_segment *s = segment_of(segments, n, part->group, e);
                    uint32_t position = selects(l, head) && s ? held->positions[e + held->n - len] : e;

                    cr_assert(s || !is_visible(a, l, head, e), "layer %u: entry %u of %u is in no segment", l, e, len);
                    cr_assert(!s || !selects(l, head) || is_visible(a, l, head, e));
                    if (is_visible(a, l, head, e)) {
                        check_entry(a, part, h, e, position);
                        check_rotation(l % 2 ? head_policy[l][head] : FULL, s, e, position);
                    }
                }
            }
}

#endif
