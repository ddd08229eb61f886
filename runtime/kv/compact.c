/* Survivors of a selection move together into fresh blocks, the old ones go back.
 *
 * Group by group: fresh blocks, a copy by the backend, the table swapped, the old blocks given back, the group with the most
 * survivors first, so that beside what is held there is never more than that group's survivors. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"

/* What a group becomes. */
struct compaction {
    uint32_t base, n_blocks;
    soq_block_ref *blocks; /* [n_blocks] fresh */
    uint32_t *positions;   /* [n_layers][n_heads][n_keep] */
};

static void undo(struct soq__kv_cache *c, uint32_t g, struct compaction *new, uint32_t n_edits)
{
    for (uint32_t i = 0; new->blocks &&i < new->n_blocks; i++)
        soq__kv_block_unref(c->groups[g].pools[0], new->blocks[i]);
    soq__free(new->blocks);
    soq__free(new->positions);
    c->n_edits = n_edits;
}

/* Fresh blocks, and the edits that name them. */
static int take_blocks(struct soq__kv_seq *seq, uint32_t g, struct compaction *new, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    uint32_t wanted = soq__kv_blocks(c, seq->n_committed) - new->base / c->block_tokens;
    int rc = 0;

    if (new->base == seq->n_committed)
        return 0;
    while (!rc && new->n_blocks < wanted) {
        soq_block_ref *block = &new->blocks[new->n_blocks];

        rc = soq__kv_block_alloc(c->groups[g].pools[0], block, err);
        if (rc)
            return rc;
        rc = soq__kv_push_edit(
            c,
            (struct soq_step_edit){
                .slot = seq->slot, .group = g, .index = new->base / c->block_tokens + new->n_blocks, .block = *block},
            err);
        new->n_blocks++;
    }
    return rc;
}

/* Copies the survivors. keep counts from the group's base, the backend from the first block that is held. */
static int gather(struct soq__kv_seq *seq, uint32_t g, const struct soq__kv_selected *s, const struct compaction *new,
                  struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_group *group = &c->groups[g];
    const struct soq__kv_seq_group *sg = &seq->groups[g];
    uint32_t p = c->block_tokens, first = sg->base / p;
    size_t n = (size_t)group->layout->n_layers * group->layout->n_heads * s->n_keep;
    struct soq_kv_gather_args args = {
        .struct_size = sizeof args,
        .n_keep = s->n_keep,
        .group = group->handle,
        .src = sg->table + first,
        .dst = new->blocks,
        .n_src = soq__kv_blocks(c, seq->n_committed) - first,
        .n_dst = new->n_blocks,
        .dst_first = new->base % p,
        .keep = s->keep,
    };
    int rc;

    if (!n)
        return 0;
    for (size_t i = 0; i < n; i++)
        s->keep[i] += sg->base % p;
    rc = group->owner.attention->attention->kv_gather(group->owner.attention_self, &args, err);
    for (size_t i = 0; i < n; i++)
        s->keep[i] -= sg->base % p;
    return rc;
}

static void list_positions(const struct soq__kv_seq *seq, uint32_t g, const struct soq__kv_selected *s, uint32_t *positions)
{
    const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;

    for (uint32_t l = 0; l < layout->n_layers; l++)
        for (uint32_t h = 0; h < layout->n_heads; h++) {
            size_t line = ((size_t)l * layout->n_heads + h) * s->n_keep;

            for (uint32_t i = 0; i < s->n_keep; i++)
                positions[line + i] = soq__kv_position(seq, g, l, h, seq->groups[g].base + s->keep[line + i]);
        }
}

/* Sums go with their entries. These move up, so the last is moved first. */
static void move_mass(struct soq__kv_seq *seq, uint32_t g, const struct soq__kv_selected *s, uint32_t base)
{
    const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;
    struct soq__kv_seq_group *sg = &seq->groups[g];

    for (size_t line = 0; sg->mass && line < (size_t)layout->n_layers * layout->n_heads; line++) {
        uint64_t *sums = sg->mass + line * sg->mass_cap;
        const uint32_t *keep = s->keep + line * s->n_keep;

        for (uint32_t i = s->n_keep; i-- > 0;)
            sums[base + i] = sums[sg->base + keep[i]];
    }
}

/* Survivors that come from packed blocks; the table still holds these. */
static uint64_t count_packed(const struct soq__kv_seq *seq, uint32_t g, const struct soq__kv_selected *s)
{
    const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;
    const struct soq__kv_seq_group *sg = &seq->groups[g];
    size_t n = (size_t)layout->n_layers * layout->n_heads * s->n_keep;
    uint64_t count = 0;

    for (size_t i = 0; sg->n_packed && i < n; i++)
        count += sg->table[(sg->base + s->keep[i]) / seq->cache->block_tokens] >> SOQ_BLOCK_CLASS_SHIFT;
    return count;
}

/* Of the pools that a group's blocks are from. */
static uint64_t used_bytes(const struct soq__kv_group *group)
{
    uint64_t bytes = 0;

    for (int class = 0; class < 2; class ++)
        if (group->pools[class])
            bytes += group->pools[class]->n_used * group->pools[class]->block_bytes;
    return bytes;
}

static void swap_in(struct soq__kv_seq *seq, uint32_t g, const struct soq__kv_selected *s, const struct compaction *new)
{
    struct soq__kv_cache *c = seq->cache;
    struct soq__kv_group *group = &c->groups[g];
    struct soq__kv_seq_group *sg = &seq->groups[g];
    uint32_t n = seq->n_committed;
    uint64_t used = used_bytes(group), recoded = count_packed(seq, g, s), freed, evicted;

    soq__kv_drop_blocks(seq, g, sg->base / c->block_tokens, soq__kv_blocks(c, n));
    freed = used - used_bytes(group);
    evicted = (uint64_t)(n - sg->base - s->n_keep) * group->layout->n_layers * group->layout->n_heads;
    c->stats.freed += freed;
    c->stats.evicted += evicted;
    c->stats.recoded += recoded;
    seq->stats.freed += freed;
    seq->stats.evicted += evicted;
    seq->stats.recoded += recoded;
    for (uint32_t i = 0; i < new->n_blocks; i++)
        soq__kv_hold(seq, g, new->base / c->block_tokens + i, new->blocks[i]);
    soq__free(sg->positions);
    sg->positions = new->positions;
    sg->base = new->base;
    sg->n_selected = n;
}

static int compact_group(struct soq__kv_seq *seq, uint32_t g, const struct soq__kv_selected *s, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_group_layout *layout = c->groups[g].layout;
    struct compaction new = {.base = seq->n_committed - s->n_keep};
    uint32_t n_edits = c->n_edits;
    int rc;

    new.blocks = soq__alloc_array(soq__kv_blocks(c, seq->n_committed), sizeof *new.blocks);
    new.positions = soq__alloc_array((size_t)layout->n_layers * layout->n_heads * s->n_keep, sizeof *new.positions);
    if (!new.blocks || !new.positions) {
        rc = soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for a selection");
    } else {
        list_positions(seq, g, s, new.positions);
        rc = take_blocks(seq, g, &new, err);
    }
    if (!rc)
        rc = gather(seq, g, s, &new, err);
    if (rc) {
        undo(c, g, &new, n_edits);
        return rc;
    }
    move_mass(seq, g, s, new.base);
    swap_in(seq, g, s, &new);
    soq__free(new.blocks);
    return 0;
}

int soq__kv_compact(struct soq__kv_seq *seq, struct soq__kv_selected *selected, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    uint32_t largest = 0;
    int rc = 0;

    for (uint32_t g = 1; g < c->n_groups; g++)
        largest = selected[g].keep && selected[g].n_keep > selected[largest].n_keep ? g : largest;
    for (uint32_t i = 0; !rc && i < c->n_groups; i++) {
        uint32_t g = i == 0 ? largest : i <= largest ? i - 1 : i;

        if (selected[g].keep && selected[g].n_keep < seq->n_committed - seq->groups[g].base)
            rc = compact_group(seq, g, &selected[g], err);
        if (!rc)
            rc = soq__kv_pack_group(seq, g, err); /* now, so that no two groups' survivors are plain at the same time */
    }
    return rc;
}
