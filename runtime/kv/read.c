/* Numbers out of the cache. */
#include "kv/read.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"
#include "model/dequant.h"

/* ---- Tiles --------------------------------------------------------------------------------------------------------------- */

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

int soq__kv_tile_room_init(struct soq__kv_tile_room *room, const struct soq__kv_cache *c, struct soq_error *err)
{
    uint64_t width = 0, bytes = 0;

    for (uint32_t g = 0; g < c->n_groups; g++)
        for (uint32_t i = 0; i < c->groups[g].layout->n_planes; i++) {
            const struct soq__kv_group_layout *layout = c->groups[g].layout;

            width = max_u64(width, layout->planes[i].width);
            bytes = max_u64(bytes, max_u64(layout->planes[i].format.tile_bytes, layout->packed[i].format.tile_bytes));
        }
    *room = (struct soq__kv_tile_room){soq__alloc_array(c->block_tokens, width * sizeof(float)), soq__alloc_aligned(64, bytes)};
    if (room->numbers && room->bytes)
        return 0;
    soq__kv_tile_room_done(room);
    return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for a tile");
}

void soq__kv_tile_room_done(struct soq__kv_tile_room *room)
{
    soq__free(room->numbers);
    soq__free(room->bytes);
    *room = (struct soq__kv_tile_room){0};
}

/* Tiles of a block lie in the order [plane][layer][head]. */
static uint64_t tile_offset(const struct soq__kv_group_layout *g, const struct soq_kv_plane *planes,
                            struct soq__kv_tile_name name)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < name.plane; i++)
        at += (uint64_t)g->n_layers * planes[i].heads * planes[i].format.tile_bytes;
    return at + ((uint64_t)name.index * planes[name.plane].heads + name.head) * planes[name.plane].format.tile_bytes;
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

int soq__kv_tile_read(const struct soq__kv_seq *seq, uint32_t g, soq_block_ref block, uint32_t line,
                      struct soq__kv_tile_name name, struct soq__kv_tile_room *room, struct soq_error *err)
{
    const struct soq__kv_group *group = &seq->cache->groups[g];
    const struct soq__kv_group_layout *layout = group->layout;
    bool packed = block >> SOQ_BLOCK_CLASS_SHIFT;
    const struct soq_kv_plane *planes = packed ? layout->packed : layout->planes, *p = &planes[name.plane];
    const struct soq_kv_tile tile = {
        .struct_size = sizeof tile,
        .role = p->role,
        .layer = layout->layers[name.index],
        .head = layout->first_head + name.head,
        .tokens = seq->cache->block_tokens,
        .width = p->width,
        .first_position = soq__kv_first_position(seq, g, line),
    };
    const struct soq_kv_coder *coder = &layout->coders[name.plane];
    const void *stored;
    int rc = tile_at(group, block, tile_offset(layout, planes, name), p->format.tile_bytes, room->bytes, &stored, err);

    if (rc)
        return rc;
    if (packed)
        return coder->ops->decode(coder->self, &tile, stored, room->numbers, err);
    soq__dequant((enum soq_dtype)p->format.dtype)(stored, room->numbers, (size_t)tile.tokens * tile.width);
    return 0;
}

/* ---- A head -------------------------------------------------------------------------------------------------------------- */

int soq__kv_read(const struct soq__kv_seq *seq, uint32_t layer, uint32_t head, uint32_t plane, float *out,
                 struct soq_error *err)
{
    const struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_part *part = soq__kv_part_of(c->layout, SOQ__KV_FULL, layer, head);
    const struct soq__kv_seq_group *sg = &seq->groups[part->group];
    const struct soq__kv_tile_name name = {plane, part->index, head - part->first_head};
    size_t width = c->groups[part->group].layout->planes[plane].width;
    struct soq__kv_tile_room room;
    int rc = soq__kv_tile_room_init(&room, c, err);

    if (rc)
        return rc;
    for (uint32_t i = 0; !rc && i * c->block_tokens < seq->n_committed; i++) {
        uint32_t first = i * c->block_tokens, left = seq->n_committed - first;

        if (sg->table[i] == SOQ_BLOCK_NONE)
            continue;
        rc = soq__kv_tile_read(seq, part->group, sg->table[i], i, name, &room, err);
        if (!rc)
            memcpy(out + first * width, room.numbers, (left < c->block_tokens ? left : c->block_tokens) * width * sizeof *out);
    }
    soq__kv_tile_room_done(&room);
    return rc;
}

const uint64_t *soq__kv_mass_of(const struct soq__kv_seq *seq, uint32_t layer, uint32_t head)
{
    const struct soq__kv_part *part = soq__kv_part_of(seq->cache->layout, SOQ__KV_FULL, layer, head);
    const struct soq__kv_seq_group *sg = &seq->groups[part->group];
    uint32_t n_heads = seq->cache->groups[part->group].layout->n_heads;

    if (!sg->mass)
        return NULL;
    return sg->mass + ((size_t)part->index * n_heads + head - part->first_head) * sg->mass_cap;
}
