/* Numbers out of the cache. */
#include "kv/read.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"
#include "model/dequant.h"

static const struct soq__kv_part *part_of(const struct soq__kv_layout *layout, uint32_t layer, uint32_t head)
{
    uint32_t i = layout->first_part[layer];

    while (head >= layout->parts[i].first_head + layout->parts[i].n_heads)
        i++;
    return &layout->parts[i];
}

/* Tiles of a block lie in the order [plane][layer][head]. */
static uint64_t tile_offset(const struct soq__kv_group_layout *g, uint32_t plane, uint32_t index, uint32_t head)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < plane; i++)
        at += (uint64_t)g->n_layers * g->planes[i].heads * g->planes[i].format.tile_bytes;
    return at + ((uint64_t)index * g->planes[plane].heads + head) * g->planes[plane].format.tile_bytes;
}

/* The tile at `offset` of a block: where it lies in host memory, else `copy`, to which it was read. */
static int tile_at(const struct soq__kv_group *g, soq_block_ref block, uint64_t offset, uint64_t bytes, void *copy,
                   const void **out, struct soq_error *err)
{
    uint64_t at;
    soq_buffer slab = soq__kv_block_place(soq__kv_pool_of(g, block), block, &at);

    *out = copy;
    if (strcmp(g->owner.memory->domain, "host") == 0) {
        *out = (const char *)(uintptr_t)slab + at + offset;
        return 0;
    }
    return g->owner.memory->memory->buffer_read(g->owner.memory_self, slab, at + offset, copy, bytes, err);
}

int soq__kv_read(const struct soq__kv_seq *seq, uint32_t layer, uint32_t head, uint32_t plane, float *out,
                 struct soq_error *err)
{
    const struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_part *part = part_of(c->layout, layer, head);
    const struct soq__kv_group *g = &c->groups[part->group];
    const struct soq__kv_seq_group *sg = &seq->groups[part->group];
    const struct soq_kv_plane *p = &g->layout->planes[plane];
    uint64_t offset = tile_offset(g->layout, plane, part->index, head - part->first_head);
    void *copy = soq__alloc_aligned(64, p->format.tile_bytes);
    int rc = copy ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory");

    for (uint32_t i = 0; !rc && i * c->block_tokens < seq->n_committed; i++) {
        uint32_t first = i * c->block_tokens, left = seq->n_committed - first;
        const void *stored = NULL;

        if (sg->table[i] == SOQ_BLOCK_NONE)
            continue;
        if (sg->table[i] >> SOQ_BLOCK_CLASS_SHIFT)
            rc = soq__fail(err, SOQ_EUNSUPPORTED, "layer %u: the cache is packed; use [kv] codec = f32", layer);
        else
            rc = tile_at(g, sg->table[i], offset, p->format.tile_bytes, copy, &stored, err);
        if (!rc)
            soq__dequant((enum soq_dtype)p->format.dtype)(stored, out + (size_t)first * p->width,
                                                          (size_t)(left < c->block_tokens ? left : c->block_tokens) * p->width);
    }
    soq__free(copy);
    return rc;
}

const uint64_t *soq__kv_mass_of(const struct soq__kv_seq *seq, uint32_t layer, uint32_t head)
{
    const struct soq__kv_part *part = part_of(seq->cache->layout, layer, head);
    const struct soq__kv_seq_group *sg = &seq->groups[part->group];
    uint32_t n_heads = seq->cache->groups[part->group].layout->n_heads;

    if (!sg->mass)
        return NULL;
    return sg->mass + ((size_t)part->index * n_heads + head - part->first_head) * sg->mass_cap;
}
