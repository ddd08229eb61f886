/* Packing: full plain blocks become packed ones.
 *
 * It happens after a commit and after a selection, to every block that soq__kv_packed_to() says, group by group: fresh packed
 * blocks, the backend encodes, the table is changed, the plain blocks go back to their pool. What is packed is never written
 * again. */
#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"

/* ---- Room ---------------------------------------------------------------------------------------------------------------- */

int soq__kv_packing_init(struct soq__kv_packing *p, uint32_t max_blocks, struct soq_error *err)
{
    p->lines = soq__alloc_array(max_blocks, sizeof *p->lines);
    p->src = soq__alloc_array(max_blocks, sizeof *p->src);
    p->dst = soq__alloc_array(max_blocks, sizeof *p->dst);
    p->skip = soq__alloc_array(max_blocks, sizeof *p->skip);
    p->first_position = soq__alloc_array(max_blocks, sizeof *p->first_position);
    if (p->lines && p->src && p->dst && p->skip && p->first_position)
        return 0;
    soq__kv_packing_done(p);
    return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory");
}

void soq__kv_packing_done(struct soq__kv_packing *p)
{
    soq__free(p->lines);
    soq__free(p->src);
    soq__free(p->dst);
    soq__free(p->skip);
    soq__free(p->first_position);
    *p = (struct soq__kv_packing){0};
}

/* ---- Encoding ------------------------------------------------------------------------------------------------------------ */

/* Lists what is due, with fresh blocks and the edits that name them. */
static int list_due(struct soq__kv_seq *seq, uint32_t g, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_seq_group *sg = &seq->groups[g];
    struct soq__kv_packing *k = &c->packing;
    uint32_t p = c->block_tokens, end = soq__kv_packed_to(c->groups[g].layout, seq->n_committed) / p;
    int rc = 0;

    k->n = 0;
    for (uint32_t i = 0; !rc && i < end; i++) {
        if (sg->table[i] == SOQ_BLOCK_NONE || sg->table[i] >> SOQ_BLOCK_CLASS_SHIFT)
            continue;
        rc = soq__kv_block_alloc(c->groups[g].pools[1], &k->dst[k->n], err);
        if (rc)
            return rc;
        k->lines[k->n] = i;
        k->src[k->n] = sg->table[i];
        k->skip[k->n] = i == sg->base / p ? sg->base % p : 0;
        k->first_position[k->n] = soq__kv_first_position(seq, g, i);
        rc = soq__kv_push_edit(c, (struct soq_step_edit){.slot = seq->slot, .group = g, .index = i, .block = k->dst[k->n++]},
                               err);
    }
    return rc;
}

static int encode(struct soq__kv_cache *c, uint32_t g, struct soq_error *err)
{
    const struct soq__kv_group *group = &c->groups[g];
    const struct soq_kv_pack_args args = {
        .struct_size = sizeof args,
        .n = c->packing.n,
        .group = group->handle,
        .src = c->packing.src,
        .dst = c->packing.dst,
        .skip = c->packing.skip,
        .first_position = c->packing.first_position,
    };

    return args.n ? group->owner.attention->attention->kv_pack(group->owner.attention_self, &args, err) : 0;
}

/* ---- What it costs ------------------------------------------------------------------------------------------------------- */

/* Adds the squares of a tile, and of what packing it changed. */
static int compare_tile(struct soq__kv_seq *seq, uint32_t g, uint32_t i, struct soq__kv_tile_name name,
                        struct soq__kv_tile_room rooms[2])
{
    struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_packing *k = &c->packing;
    uint32_t width = c->groups[g].layout->planes[name.plane].width;
    int rc = soq__kv_tile_read(seq, g, k->src[i], k->lines[i], name, &rooms[0], NULL);

    if (!rc)
        rc = soq__kv_tile_read(seq, g, k->dst[i], k->lines[i], name, &rooms[1], NULL);
    for (size_t n = (size_t)k->skip[i] * width; !rc && n < (size_t)c->block_tokens * width; n++) {
        double before = rooms[0].numbers[n], change = rooms[1].numbers[n] - before;

        c->stats.survivors_squared += before * before;
        c->stats.changes_squared += change * change;
    }
    return rc;
}

/* What packing did to survivors of selections, whose plain copies are still there. Only for whoever asks: without memory,
 * and where a device cannot be read, less is known. */
static void compare_survivors(struct soq__kv_seq *seq, uint32_t g)
{
    const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;
    const struct soq__kv_packing *k = &seq->cache->packing;
    struct soq__kv_tile_room rooms[2] = {0};
    int rc = 0;

    for (int r = 0; !rc && r < 2; r++)
        rc = soq__kv_tile_room_init(&rooms[r], seq->cache, NULL);
    for (uint32_t i = 0; !rc && i < k->n; i++)
        for (uint32_t tile = 0; !rc && tile < layout->n_planes * layout->n_layers * layout->n_heads; tile++) {
            const struct soq__kv_tile_name name = {tile / (layout->n_layers * layout->n_heads),
                                                   tile / layout->n_heads % layout->n_layers, tile % layout->n_heads};

            if (k->first_position[i] == UINT32_MAX)
                rc = compare_tile(seq, g, i, name, rooms);
        }
    for (int r = 0; r < 2; r++)
        soq__kv_tile_room_done(&rooms[r]);
}

/* ---- A group, all -------------------------------------------------------------------------------------------------------- */

int soq__kv_pack_group(struct soq__kv_seq *seq, uint32_t g, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_packing *k = &c->packing;
    uint32_t n_edits = c->n_edits;
    int rc;

    if (!c->groups[g].layout->packs)
        return 0;
    rc = list_due(seq, g, err);
    if (!rc)
        rc = encode(c, g, err);
    if (rc) {
        c->n_edits = n_edits;
        for (uint32_t i = 0; i < k->n; i++)
            soq__kv_block_unref(c->groups[g].pools[1], k->dst[i]);
        return rc;
    }
    if (c->trace.measures)
        compare_survivors(seq, g);
    for (uint32_t i = 0; i < k->n; i++) {
        soq__kv_drop_blocks(seq, g, k->lines[i], k->lines[i] + 1);
        soq__kv_hold(seq, g, k->lines[i], k->dst[i]);
    }
    return 0;
}

int soq__kv_pack(struct soq__kv_seq *seq, struct soq_error *err)
{
    uint32_t grid = seq->cache->layout->grid;
    int rc = 0;

    if (!grid || seq->n_committed % grid) /* it is done already */
        return 0;
    for (uint32_t g = 0; !rc && g < seq->cache->n_groups; g++)
        rc = soq__kv_pack_group(seq, g, err);
    return rc;
}
