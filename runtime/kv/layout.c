/* Groups: layers with full attention, and layers with the model's own window. */
#include "kv/layout.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/pool.h"

static int plane_init(struct soq_kv_plane *plane, const struct soq__kv_layout_params *p, enum soq_kv_plane_role role,
                      struct soq_error *err)
{
    bool key = role == SOQ_PLANE_KEY;
    const struct soq_kv_codec_ops *codec = key ? p->codec_k : p->codec_v;
    struct soq_kv_tile tile = {
        .struct_size = sizeof tile,
        .role = role,
        .tokens = p->block_tokens,
        .width = key ? p->hparams->head_dim_k : p->hparams->head_dim_v,
    };
    int rc;

    *plane = (struct soq_kv_plane){
        .struct_size = sizeof *plane,
        .role = role,
        .heads = p->hparams->n_kv_heads,
        .width = tile.width,
        .tokens_per_entry = 1,
        .alias = -1,
        .format = {.struct_size = sizeof plane->format},
    };
    rc = codec->describe(key ? p->codec_k_self : p->codec_v_self, &tile, &plane->format, err);
    if (rc)
        return rc;
    if (plane->format.kind != SOQ_FORMAT_PLAIN)
        return soq__fail(err, SOQ_EUNSUPPORTED,
                         "[kv] codec_%c: codecs that pack closed blocks are not supported yet; use f16 or f32",
                         key ? 'k' : 'v');
    if (!plane->format.tile_bytes || plane->format.tile_bytes % 8 ||
        plane->format.tile_bytes > (uint64_t)tile.tokens * tile.width * 16)
        return soq__fail(
            err, SOQ_EINVAL,
            "[kv] codec_%c: the plugin describes a tile of %llu bytes, which is no positive multiple of 8 or too large",
            key ? 'k' : 'v', (unsigned long long)plane->format.tile_bytes);
    return 0;
}

static int group_init(struct soq__kv_group_layout *g, const struct soq__kv_layout_params *p, bool windowed,
                      struct soq_error *err)
{
    int rc;

    g->kind = windowed ? SOQ_GROUP_WINDOW : SOQ_GROUP_FULL;
    g->window = windowed ? p->hparams->window : p->plan.window;
    g->sinks = windowed ? 0 : p->plan.sinks;
    g->n_planes = 2;
    rc = plane_init(&g->planes[0], p, SOQ_PLANE_KEY, err);
    if (!rc)
        rc = plane_init(&g->planes[1], p, SOQ_PLANE_VALUE, err);
    return rc;
}

static void group_size(struct soq__kv_group_layout *g)
{
    g->block_bytes = 0;
    for (uint32_t i = 0; i < g->n_planes; i++)
        g->block_bytes += (uint64_t)g->n_layers * g->planes[i].heads * g->planes[i].format.tile_bytes;
}

int soq__kv_layout_init(struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, struct soq_error *err)
{
    uint32_t n_layers = p->hparams->n_layers;
    int32_t group_of[2] = {-1, -1}; /* by windowed or not */

    *layout = (struct soq__kv_layout){.block_tokens = p->block_tokens};
    layout->layer_group = soq__alloc_array(n_layers, sizeof *layout->layer_group);
    layout->layer_in_group = soq__alloc_array(n_layers, sizeof *layout->layer_in_group);
    if (!layout->layer_group || !layout->layer_in_group) {
        soq__kv_layout_done(layout);
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory");
    }
    for (uint32_t l = 0; l < n_layers; l++) {
        bool windowed = soq__layer_is_windowed(p->hparams, l);

        if (group_of[windowed] < 0) {
            int rc = group_init(&layout->groups[layout->n_groups], p, windowed, err);

            if (rc) {
                soq__kv_layout_done(layout);
                return rc;
            }
            group_of[windowed] = (int32_t)layout->n_groups++;
        }
        layout->layer_group[l] = (uint32_t)group_of[windowed];
        layout->layer_in_group[l] = layout->groups[group_of[windowed]].n_layers++;
    }
    for (uint32_t i = 0; i < layout->n_groups; i++)
        group_size(&layout->groups[i]);
    return 0;
}

void soq__kv_layout_done(struct soq__kv_layout *layout)
{
    soq__free(layout->layer_group);
    soq__free(layout->layer_in_group);
    *layout = (struct soq__kv_layout){0};
}

/* Before a commit a windowed group holds its sinks, the window behind the first row of the chunk, what has not reached the last
 * grid point, and the chunk; each end may cut a block. */
uint32_t soq__kv_group_blocks(const struct soq__kv_layout *layout, uint32_t group, uint32_t n_entries, uint32_t chunk)
{
    const struct soq__kv_group_layout *g = &layout->groups[group];
    uint64_t p = layout->block_tokens, all = (n_entries + p - 1) / p, most;

    if (!g->window)
        return (uint32_t)all;
    most = (g->sinks + p - 1) / p + ((uint64_t)g->window + chunk + p - 1) / p + 2;
    return (uint32_t)(most < all ? most : all);
}

uint64_t soq__kv_layout_bytes(const struct soq__kv_layout *layout, uint32_t n_entries, uint32_t chunk)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < layout->n_groups; i++) {
        uint64_t slab = soq__kv_slab_bytes(layout->groups[i].block_bytes), per_slab = slab / layout->groups[i].block_bytes;

        bytes += (soq__kv_group_blocks(layout, i, n_entries, chunk) + per_slab - 1) / per_slab * slab;
    }
    return bytes;
}
