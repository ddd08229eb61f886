/* What attention reads next is fetched while it computes: results do not depend on it. The split in hand is asked for once more
 * when it begins: of what was fetched a split ago some is lost by then, and of an item's first split nothing was fetched. */
#include "kernels/attention.h"

/* Entries are taken n at a time, at most a block; a tile's bytes for n of them lie together, or in packed tiles of larger
 * blocks about so. */
struct places {
    const struct item *item;
    uint32_t n, n_bits, block_bits; /* n and entries of a block are powers of two */
    struct {
        uint64_t at, bytes;
    } of[CPU_CLASSES][CPU_SIDES];
};

static void find_places(const struct item *item, struct places *p)
{
    uint32_t tokens = item->group->block_tokens;

    p->item = item;
    p->n = tokens < TOKENS ? tokens : TOKENS;
    p->n_bits = (uint32_t)__builtin_ctz(p->n);
    p->block_bits = (uint32_t)__builtin_ctz(tokens);
    for (uint32_t class = 0; class < CPU_CLASSES; class ++)
        for (uint32_t side = 0; side < CPU_SIDES; side++) {
            const struct cpu_plane *plane = &item->group->classes[class].planes[side];

            p->of[class][side].at = cpu_tile_at(plane, item->args->layer, item->kv_head);
            p->of[class][side].bytes = plane->format.tile_bytes >> (p->block_bits - p->n_bits);
        }
}

/* Those of a side at an entry, in a block. */
static struct span span_of(const struct places *p, uint32_t side, soq_block_ref ref, const uint8_t *block, uint64_t entry)
{
    uint32_t class = ref >> SOQ_BLOCK_CLASS_SHIFT;
    uint64_t bytes = p->of[class][side].bytes, part = (entry & ((UINT64_C(1) << p->block_bits) - 1)) >> p->n_bits;

    return (struct span){block + p->of[class][side].at + part * bytes, bytes};
}

/* The entries of the split at entry `at` that are an item's. */
static uint64_t first_of(const struct item *item, uint64_t at)
{
    return item->begin > at ? item->begin / TOKENS * TOKENS : at;
}

static uint64_t end_of(const struct item *item, uint64_t at)
{
    return item->end < at + SPLIT ? item->end : at + SPLIT;
}

/* Both sides of the split at entry `at`, as spans. */
static void add_split(struct ahead *a, const struct places *p, uint64_t at)
{
    const struct cpu_group *group = p->item->group;

    for (uint64_t t = first_of(p->item, at), end = end_of(p->item, at); t < end; t += p->n) {
        soq_block_ref ref = cpu_block_ref(group, p->item->seq->slot, (uint32_t)(t >> p->block_bits));
        const uint8_t *block = cpu_block_at(group, ref);

        for (uint32_t side = 0; side < CPU_SIDES && block; side++)
            a->spans[a->n++] = span_of(p, side, ref, block, t);
    }
}

void cpu_ahead_begin(struct item *item, const struct item *next, uint64_t next_split)
{
    struct ahead *a = &item->ahead;
    struct places places;
    size_t bytes = 0;

    a->n = a->i = 0;
    a->each = a->behind = 0;
    if (item->group->block_tokens < CODES_STEP)
        return;
    find_places(item, &places);
    add_split(a, &places, item->at);
    cpu_ahead_end(item);
    a->n = a->i = 0;
    if (!next)
        return;
    if (next != item)
        find_places(next, &places);
    add_split(a, &places, next_split * SPLIT);
    for (uint32_t i = 0; i < a->n; i++)
        bytes += a->spans[i].bytes;
    a->each = bytes / ((item->end_tile - item->tile) * TOKENS) + 1;
}

void cpu_ahead_end(struct item *item)
{
    for (struct ahead *a = &item->ahead; a->i < a->n; a->i++)
        fetch(a->spans[a->i]);
}
