/* Groups of layers and heads, and the pools that they take their blocks from. */
#include "kv/layout.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* ---- Planes -------------------------------------------------------------------------------------------------------------- */

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* Bytes of a number of a plain tile; 0: it cannot be one. */
static uint64_t number_bytes(uint32_t dtype)
{
    return dtype == SOQ_DTYPE_F32 ? 4 : dtype == SOQ_DTYPE_F16 || dtype == SOQ_DTYPE_BF16 ? 2 : 0;
}

/* What is wrong with a description; NULL: nothing. */
static const char *format_problem(const struct soq_kv_format *f, const struct soq_kv_tile *tile)
{
    uint64_t numbers = (uint64_t)tile->tokens * tile->width, plain = number_bytes(f->dtype);

    if (!f->tile_bytes || f->tile_bytes % 8 || f->tile_bytes > numbers * 16)
        return "its tiles have a size that is no positive multiple of 8, or too large";
    if (f->kind == SOQ_FORMAT_PLAIN && (!plain || f->tile_bytes != (numbers * plain + 7) / 8 * 8))
        return "its plain tiles are not numbers of type F32, F16 or BF16 in a row";
    if (f->kind != SOQ_FORMAT_PLAIN && !number_bytes(f->tail_dtype))
        return "its tail_dtype is none of F32, F16 and BF16";
    if (f->grid_tokens > 1 << 20 || f->residual_tokens > 1 << 24)
        return "its grid_tokens or residual_tokens are too large";
    return NULL;
}

/* A tile of the same shape in plain numbers. */
static struct soq_kv_format tail_of(const struct soq_kv_format *f, const struct soq_kv_tile *tile)
{
    return (struct soq_kv_format){
        .struct_size = sizeof *f,
        .kind = SOQ_FORMAT_PLAIN,
        .dtype = f->tail_dtype,
        .tail_dtype = f->tail_dtype,
        .tile_bytes = ((uint64_t)tile->tokens * tile->width * number_bytes(f->tail_dtype) + 7) / 8 * 8,
    };
}

/* A codec's tiles are packed at multiples of it. */
static uint32_t grid_of(const struct soq_kv_format *f, const struct soq__kv_layout_params *p)
{
    return round_up(f->grid_tokens ? f->grid_tokens : p->pack_grid, p->block_tokens);
}

/* What a plane that packs asks of the group. */
static void take_grid(struct soq__kv_group_layout *g, const struct soq__kv_layout_params *p, const struct soq_kv_format *f)
{
    uint32_t grid = grid_of(f, p);
    uint32_t residual = f->residual_tokens > p->residual ? f->residual_tokens : p->residual;

    residual = round_up(residual, p->block_tokens);
    g->packs = true;
    g->grid = grid > g->grid ? grid : g->grid;
    g->residual = residual > g->residual ? residual : g->residual;
}

static struct soq__kv_codec_pair codecs_of(const struct soq__kv_layout_params *p, enum soq__kv_view view, uint32_t layer)
{
    return p->layer_codecs[view] ? p->layer_codecs[view][layer] : (struct soq__kv_codec_pair){0};
}

struct soq__kv_codec_origin soq__kv_codec_origin(const struct soq__kv_layout_params *p, enum soq__kv_view view, uint32_t layer,
                                                 enum soq_kv_plane_role role)
{
    struct soq__kv_codec_pair codecs = codecs_of(p, view, layer);
    bool key = role == SOQ_PLANE_KEY;

    if (p->codec_origins[view])
        return p->codec_origins[view][2 * layer + !key];
    return (struct soq__kv_codec_origin){soq__kv_section(view), "codec", p->codecs[key ? codecs.key : codecs.value].name};
}

static int plane_add(struct soq__kv_group_layout *g, const struct soq__kv_layout_params *p, enum soq__kv_view view,
                     enum soq_kv_plane_role role, uint32_t layer, const struct soq__kv_codec *codec, struct soq_error *err)
{
    struct soq_kv_plane *plane = &g->packed[g->n_planes];
    struct soq_kv_tile tile = {
        .struct_size = sizeof tile,
        .role = role,
        .layer = layer,
        .tokens = p->block_tokens,
        .width = role == SOQ_PLANE_KEY ? p->hparams->head_dim_k : p->hparams->head_dim_v,
    };
    const char *problem;
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
    rc = codec->ops->describe(codec->self, &tile, &plane->format, err);
    problem = rc ? NULL : format_problem(&plane->format, &tile);
    if (problem)
        rc = soq__fail(err, SOQ_EINVAL, "%s", problem);
    if (rc) {
        struct soq__kv_codec_origin origin = soq__kv_codec_origin(p, view, layer, role);

        soq__fail_prefix(err, "[%s] %s = %s", origin.section, origin.key, origin.value);
        return rc;
    }
    g->coders[g->n_planes] = (struct soq_kv_coder){.struct_size = sizeof g->coders[0], .ops = codec->ops, .self = codec->self};
    g->planes[g->n_planes] = *plane;
    if (plane->format.kind != SOQ_FORMAT_PLAIN) {
        g->planes[g->n_planes].format = tail_of(&plane->format, &tile);
        take_grid(g, p, &plane->format);
    }
    g->n_planes++;
    return 0;
}

int soq__kv_planes_init(struct soq__kv_group_layout *g, const struct soq__kv_layout_params *p, enum soq__kv_view view,
                        uint32_t layer, struct soq_error *err)
{
    int rc;

    g->codecs = codecs_of(p, view, layer);
    g->n_planes = 0;
    rc = plane_add(g, p, view, SOQ_PLANE_KEY, layer, &p->codecs[g->codecs.key], err);
    return rc ? rc : plane_add(g, p, view, SOQ_PLANE_VALUE, layer, &p->codecs[g->codecs.value], err);
}

/* ---- Groups -------------------------------------------------------------------------------------------------------------- */

/* How finely the layers of a policy are split. */
static bool splits_layers(const struct soq__kv_policy *policy)
{
    return policy && policy->plan.needs & (SOQ_NEED_LAYER_BUDGETS | SOQ_NEED_HEAD_BUDGETS);
}

static bool splits_heads(const struct soq__kv_policy *policy)
{
    return policy && policy->plan.needs & SOQ_NEED_HEAD_BUDGETS;
}

/* What makes heads of a layer share a group with those of others. */
struct key {
    enum soq__kv_view view;
    enum soq_kv_group_kind kind;
    uint32_t owner, policy;
    struct soq__kv_codec_pair codecs;
    uint32_t first_head, n_heads;
};

static const struct soq__kv_policy *policy_of(const struct soq__kv_layout_params *p, struct key key)
{
    return key.policy == SOQ__KV_NO_POLICY ? NULL : &p->policies[key.policy];
}

/* What rules a head of a layer without a window of its own. */
static uint32_t head_policy(const struct soq__kv_layout_params *p, enum soq__kv_view view, uint32_t layer, uint32_t head)
{
    return p->head_policy[view] ? p->head_policy[view][(size_t)layer * p->hparams->n_kv_heads + head] : 0;
}

/* Of the first heads from one of a layer's on: all that one group can hold. */
static struct key key_of(const struct soq__kv_layout_params *p, enum soq__kv_view view, uint32_t layer, uint32_t first_head)
{
    bool windowed = soq__layer_is_windowed(p->hparams, layer);
    struct key key = {
        .view = view,
        .kind = windowed ? SOQ_GROUP_WINDOW : SOQ_GROUP_FULL,
        .owner = p->owners[view] ? p->owners[view][layer] : 0,
        .policy = windowed ? SOQ__KV_NO_POLICY : head_policy(p, view, layer, first_head),
        .codecs = codecs_of(p, view, layer),
        .first_head = first_head,
        .n_heads = 1,
    };
    uint32_t end = first_head + 1, all = p->hparams->n_kv_heads;

    while (end < all && !splits_heads(policy_of(p, key)) && (windowed || head_policy(p, view, layer, end) == key.policy))
        end++;
    key.n_heads = end - first_head;
    return key;
}

static bool same_codecs(struct soq__kv_codec_pair a, struct soq__kv_codec_pair b)
{
    return a.key == b.key && a.value == b.value;
}

static bool is_like(const struct soq__kv_group_layout *g, const struct key *key)
{
    return g->kind == key->kind && g->owner == key->owner && g->policy == key->policy && same_codecs(g->codecs, key->codecs) &&
           g->first_head == key->first_head && g->n_heads == key->n_heads;
}

/* The group of the same heads of earlier layers; n_groups if it is the first, or must stay alone. */
static uint32_t group_like(const struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, struct key key)
{
    uint32_t g = 0;

    if (splits_layers(policy_of(p, key)))
        return layout->n_groups;
    while (g < layout->n_groups && (layout->groups[g].view != key.view || !is_like(&layout->groups[g], &key)))
        g++;
    return g;
}

/* Survivors of a selection stand anywhere. */
static int check_positions(const struct soq__kv_group_layout *g, const struct soq__kv_layout_params *p,
                           const struct soq__kv_policy *policy, uint32_t layer, struct soq_error *err)
{
    for (uint32_t i = 0; policy && soq__kv_selects(policy) && i < g->n_planes; i++) {
        struct soq__kv_codec_origin origin = soq__kv_codec_origin(p, policy->view, layer, g->packed[i].role);

        if (g->coders[i].ops->traits & ~g->packed[i].format.waived & SOQ_CODEC_NEEDS_POSITIONS)
            return soq__fail(err, SOQ_EUNSUPPORTED,
                             "[%s] %s = %s with policy = %s: layer %u: the codec must know the position of every entry, "
                             "and those that the policy selects stand anywhere; use another codec or other options of it, or "
                             "the policy full, window or streaming",
                             origin.section, origin.key, origin.value, policy->name, layer);
    }
    return 0;
}

static int group_add(struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, struct key key, uint32_t layer,
                     struct soq_error *err)
{
    const struct soq__kv_policy *policy = policy_of(p, key);
    struct soq__kv_group_layout *g = &layout->groups[layout->n_groups];
    int rc;

    *g = (struct soq__kv_group_layout){
        .kind = key.kind,
        .view = key.view,
        .owner = key.owner,
        .policy = key.policy,
        .is_split = splits_layers(policy) || key.n_heads < p->hparams->n_kv_heads,
        .first_head = key.first_head,
        .n_heads = key.n_heads,
        .window = policy ? policy->plan.window : p->hparams->window,
        .sinks = policy ? policy->plan.sinks : 0,
        .layers = soq__alloc_array(p->hparams->n_layers, sizeof *g->layers),
    };
    if (!g->layers)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory");
    layout->n_groups++;
    rc = soq__kv_planes_init(g, p, key.view, layer, err);
    for (uint32_t i = 0; i < g->n_planes; i++)
        g->planes[i].heads = g->packed[i].heads = key.n_heads;
    return rc ? rc : check_positions(g, p, policy, layer, err);
}

/* Where the lossy view has the same of a layer as the full one: the same parts. */
static bool share_layer(struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, uint32_t layer, uint32_t *at)
{
    uint32_t n;
    const struct soq__kv_part *parts = soq__kv_parts(layout, SOQ__KV_FULL, layer, &n);

    for (uint32_t i = 0; i < n; i++) {
        struct key key = key_of(p, SOQ__KV_LOSSY, layer, parts[i].first_head);

        if (!is_like(&layout->groups[parts[i].group], &key))
            return false;
    }
    for (uint32_t i = 0; i < n; i++)
        layout->parts[(*at)++] = parts[i];
    return true;
}

/* Enters a layer: into the groups of its like, or into new ones. */
static int add_layer(struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, enum soq__kv_view view,
                     uint32_t layer, struct soq_error *err)
{
    uint32_t *first = &layout->first_part[view * layout->n_layers + layer];

    first[1] = first[0];
    if (view == SOQ__KV_LOSSY && share_layer(layout, p, layer, &first[1]))
        return 0;
    for (uint32_t head = 0; head < p->hparams->n_kv_heads;) {
        struct key key = key_of(p, view, layer, head);
        uint32_t g = group_like(layout, p, key);
        int rc = g == layout->n_groups ? group_add(layout, p, key, layer, err) : 0;

        if (rc)
            return rc;
        layout->parts[first[1]++] = (struct soq__kv_part){g, layout->groups[g].n_layers, head, key.n_heads};
        layout->groups[g].layers[layout->groups[g].n_layers++] = layer;
        head += key.n_heads;
    }
    return 0;
}

static void group_size(struct soq__kv_group_layout *g)
{
    g->block_bytes = g->packed_bytes = 0;
    for (uint32_t i = 0; i < g->n_planes; i++) {
        uint64_t tiles = (uint64_t)g->n_layers * g->planes[i].heads;

        g->block_bytes += tiles * g->planes[i].format.tile_bytes;
        g->packed_bytes += tiles * g->packed[i].format.tile_bytes;
    }
}

/* The grid of a group's format does not divide that of all, which is another group's. */
static int wrong_grid(const struct soq__kv_layout *layout, const struct soq__kv_layout_params *p,
                      const struct soq__kv_group_layout *g, const struct soq_kv_format *f, struct soq_error *err)
{
    const struct soq__kv_group_layout *other = layout->groups;

    while (other->grid != layout->grid)
        other++;
    return soq__fail(err, SOQ_EINVAL,
                     "[%s] codec: layer %u packs blocks every %u tokens, and layer %u every %u, which is no multiple of it; "
                     "change %s",
                     soq__kv_section(g->view), g->layers[0], grid_of(f, p), other->layers[0], layout->grid,
                     f->grid_tokens ? "the options of one of the codecs" : "[kv] pack_grid, or the options of the other codec");
}

/* Groups that pack do so at the same positions, which every codec of theirs must find to be multiples of its own grid. */
static int choose_grid(struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, struct soq_error *err)
{
    uint32_t of_view[SOQ__KV_VIEWS] = {0};

    for (uint32_t i = 0; i < layout->n_groups; i++) {
        const struct soq__kv_group_layout *g = &layout->groups[i];

        of_view[g->view] = g->grid > of_view[g->view] ? g->grid : of_view[g->view];
    }
    if (of_view[SOQ__KV_FULL] && of_view[SOQ__KV_LOSSY] > of_view[SOQ__KV_FULL])
        return soq__fail(
            err, SOQ_EUNSUPPORTED,
            "[draft] codec: it packs blocks every %u tokens, and that of [kv] every %u, on which the answer depends; "
            "set [kv] pack_grid = %u, or use another codec",
            of_view[SOQ__KV_LOSSY], of_view[SOQ__KV_FULL], of_view[SOQ__KV_LOSSY]);
    layout->grid = of_view[of_view[SOQ__KV_LOSSY] > of_view[SOQ__KV_FULL]];
    for (uint32_t i = 0; i < layout->n_groups; i++) {
        struct soq__kv_group_layout *g = &layout->groups[i];

        for (uint32_t plane = 0; g->packs && plane < g->n_planes; plane++) {
            const struct soq_kv_format *f = &g->packed[plane].format;

            if (f->kind != SOQ_FORMAT_PLAIN && layout->grid % grid_of(f, p))
                return wrong_grid(layout, p, g, f, err);
        }
    }
    for (uint32_t i = 0; i < layout->n_groups; i++)
        layout->groups[i].grid = layout->groups[i].packs ? layout->grid : 0;
    return 0;
}

static bool are_alike(const struct soq__kv_group_layout *a, const struct soq__kv_group_layout *b)
{
    return a->is_split && b->is_split && a->owner == b->owner && a->n_layers == b->n_layers && a->n_heads == b->n_heads &&
           same_codecs(a->codecs, b->codecs);
}

/* Split groups of one shape and owner share their pools. */
static void number_pools(struct soq__kv_layout *layout)
{
    for (uint32_t i = 0; i < layout->n_groups; i++) {
        struct soq__kv_group_layout *g = &layout->groups[i];
        uint32_t like = 0;

        while (like < i && !are_alike(&layout->groups[like], g))
            like++;
        g->pool = like < i ? layout->groups[like].pool : layout->n_pools++;
        if (g->packs)
            g->packed_pool = like < i ? layout->groups[like].packed_pool : layout->n_pools++;
    }
}

int soq__kv_layout_init(struct soq__kv_layout *layout, const struct soq__kv_layout_params *p, struct soq_error *err)
{
    uint32_t n_layers = p->hparams->n_layers, n_views = p->head_policy[SOQ__KV_LOSSY] ? 2 : 1;
    size_t most = (size_t)n_views * n_layers * p->hparams->n_kv_heads;
    int rc = 0;

    *layout = (struct soq__kv_layout){
        .block_tokens = p->block_tokens,
        .n_layers = n_layers,
        .n_heads = p->hparams->n_kv_heads,
        .group_heads = p->hparams->n_heads / p->hparams->n_kv_heads,
        .groups = soq__alloc_zero(most, sizeof *layout->groups),
        .parts = soq__alloc_array(most, sizeof *layout->parts),
        .n_views = n_views,
        .first_part = soq__alloc_zero((size_t)n_views * n_layers + 1, sizeof *layout->first_part),
    };
    if (!layout->groups || !layout->parts || !layout->first_part)
        rc = soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory");
    for (uint32_t i = 0; !rc && i < n_views * n_layers; i++)
        rc = add_layer(layout, p, i / n_layers, i % n_layers, err);
    if (!rc)
        rc = choose_grid(layout, p, err);
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

    while (!soq__kv_uses_pool(g, pool))
        g++;
    return g->pool == pool ? g->block_bytes : g->packed_bytes;
}
