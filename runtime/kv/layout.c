/* Groups of layers and heads, and the pools that they take their blocks from. */
#include "kv/layout.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

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

int soq__kv_planes_init(struct soq_kv_plane planes[2], const struct soq__kv_layout_params *p, struct soq_error *err)
{
    int rc = plane_init(&planes[0], p, SOQ_PLANE_KEY, err);

    return rc ? rc : plane_init(&planes[1], p, SOQ_PLANE_VALUE, err);
}

/* How finely the layers of a policy are split. */
static bool splits_layers(const struct soq__kv_policy *policy)
{
    return policy && policy->plan.needs & (SOQ_NEED_LAYER_BUDGETS | SOQ_NEED_HEAD_BUDGETS);
}

static bool splits_heads(const struct soq__kv_policy *policy)
{
    return policy && policy->plan.needs & SOQ_NEED_HEAD_BUDGETS;
}

/* What makes a layer share a group with others. */
struct key {
    enum soq_kv_group_kind kind;
    uint32_t owner, policy;
};

static struct key key_of(const struct soq__kv_layout_params *p, uint32_t layer)
{
    bool windowed = soq__layer_is_windowed(p->hparams, layer);

    return (struct key){
        .kind = windowed ? SOQ_GROUP_WINDOW : SOQ_GROUP_FULL,
        .owner = p->owners ? p->owners[layer] : 0,
        .policy = windowed          ? SOQ__KV_NO_POLICY
                  : p->layer_policy ? p->layer_policy[layer]
                                    : 0,
    };
}

static const struct soq__kv_policy *policy_of(const struct soq__kv_layout_params *p, struct key key)
{
    return key.policy == SOQ__KV_NO_POLICY ? NULL : &p->policies[key.policy];
}

/* The group of earlier layers like this one; n_groups if it is the first, or must stay alone. */
static uint32_t group_like(const struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, struct key key)
{
    uint32_t g = 0;

    if (splits_layers(policy_of(p, key)))
        return layout->n_groups;
    while (g < layout->n_groups && (layout->groups[g].kind != key.kind || layout->groups[g].owner != key.owner ||
                                    layout->groups[g].policy != key.policy))
        g++;
    return g;
}

static int group_add(struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, struct key key, uint32_t first_head,
                     uint32_t n_heads, struct soq_error *err)
{
    const struct soq__kv_policy *policy = policy_of(p, key);
    struct soq__kv_group_layout *g = &layout->groups[layout->n_groups];
    int rc;

    *g = (struct soq__kv_group_layout){
        .kind = key.kind,
        .owner = key.owner,
        .policy = key.policy,
        .is_split = splits_layers(policy),
        .first_head = first_head,
        .n_heads = n_heads,
        .window = policy ? policy->plan.window : p->hparams->window,
        .sinks = policy ? policy->plan.sinks : 0,
        .n_planes = 2,
        .layers = soq__alloc_array(p->hparams->n_layers, sizeof *g->layers),
    };
    if (!g->layers)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory");
    layout->n_groups++;
    rc = soq__kv_planes_init(g->planes, p, err);
    for (uint32_t i = 0; i < g->n_planes; i++)
        g->planes[i].heads = n_heads;
    return rc;
}

/* Enters a layer: into the group of its like, or into new ones. */
static int add_layer(struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, uint32_t layer,
                     struct soq_error *err)
{
    struct key key = key_of(p, layer);
    uint32_t all = p->hparams->n_kv_heads, each = splits_heads(policy_of(p, key)) ? 1 : all;
    uint32_t g = group_like(layout, p, key), at = layout->first_part[layer];

    for (uint32_t head = 0; head < all; head += each, g++, at++) {
        int rc = g == layout->n_groups ? group_add(layout, p, key, head, each, err) : 0;

        if (rc)
            return rc;
        layout->parts[at] = (struct soq__kv_part){g, layout->groups[g].n_layers, head, each};
        layout->groups[g].layers[layout->groups[g].n_layers++] = layer;
    }
    layout->first_part[layer + 1] = at;
    return 0;
}

static void group_size(struct soq__kv_group_layout *g)
{
    g->block_bytes = 0;
    for (uint32_t i = 0; i < g->n_planes; i++)
        g->block_bytes += (uint64_t)g->n_layers * g->planes[i].heads * g->planes[i].format.tile_bytes;
}

/* Split groups of one shape and owner share a pool. */
static void number_pools(struct soq__kv_layout *layout)
{
    for (uint32_t i = 0; i < layout->n_groups; i++) {
        struct soq__kv_group_layout *g = &layout->groups[i];
        uint32_t like = 0;

        while (like < i && (!g->is_split || !layout->groups[like].is_split || layout->groups[like].owner != g->owner ||
                            layout->groups[like].n_layers != g->n_layers || layout->groups[like].n_heads != g->n_heads))
            like++;
        g->pool = like < i ? layout->groups[like].pool : layout->n_pools++;
    }
}

int soq__kv_layout_init(struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, struct soq_error *err)
{
    uint32_t n_layers = p->hparams->n_layers;
    size_t most = (size_t)n_layers * p->hparams->n_kv_heads;
    int rc = 0;

    *layout = (struct soq__kv_layout){
        .block_tokens = p->block_tokens,
        .n_layers = n_layers,
        .n_heads = p->hparams->n_kv_heads,
        .group_heads = p->hparams->n_heads / p->hparams->n_kv_heads,
        .groups = soq__alloc_zero(most, sizeof *layout->groups),
        .parts = soq__alloc_array(most, sizeof *layout->parts),
        .first_part = soq__alloc_zero((size_t)n_layers + 1, sizeof *layout->first_part),
    };
    if (!layout->groups || !layout->parts || !layout->first_part)
        rc = soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory");
    for (uint32_t l = 0; !rc && l < n_layers; l++)
        rc = add_layer(layout, p, l, err);
    if (rc) {
        soq__kv_layout_done(layout);
        return rc;
    }
    for (uint32_t i = 0; i < layout->n_groups; i++)
        group_size(&layout->groups[i]);
    number_pools(layout);
    return 0;
}

void soq__kv_layout_done(struct soq__kv_layout *layout)
{
    for (uint32_t i = 0; i < layout->n_groups; i++)
        soq__free(layout->groups[i].layers);
    soq__free(layout->groups);
    soq__free(layout->parts);
    soq__free(layout->first_part);
    *layout = (struct soq__kv_layout){0};
}

uint64_t soq__kv_pool_block_bytes(const struct soq__kv_layout *layout, uint32_t pool)
{
    const struct soq__kv_group_layout *g = layout->groups;

    while (g->pool != pool)
        g++;
    return g->block_bytes;
}
