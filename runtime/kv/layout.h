/* Which layers and heads share a block table, and how many bytes an entry takes: from hyperparameters, policies and codecs,
 * without a backend.
 *
 * A group is a set of layers whose (layer, head) all hold equally many entries, of the same kind, owner, policy and codecs:
 * where a policy may keep different numbers by layer each layer is a group of its own, where it may by head each kv head. Where
 * kv heads of a layer have different policies each run of neighbours under one is in a group of its own, together with the same
 * heads of other layers. Such split groups of one shape and owner take their blocks from one pool, so that a slab stays about
 * 2 MiB however finely layers are split.
 *
 * Where a codec packs, a group has two classes of blocks, each with a pool: plain ones of the codecs' tail_dtype, which take
 * new entries, and packed ones. At n entries those blocks are packed that end at floor(n / grid) * grid - residual or below,
 * and no step crosses a multiple of the grid: so what a row sees depends on its position alone.
 *
 * Where a configuration asks for a lossy view beside the full one, each layer belongs to a group of either. Where the lossy
 * view would store and keep the same as the full one, as with layers that have a window of their own, the full view's group
 * serves both.
 *
 * `soquete kvcalc` and the cache itself use the same code, so the forecast cannot drift from the truth. */
#ifndef SOQ_KV_LAYOUT_H
#define SOQ_KV_LAYOUT_H

#include "kv/codec.h"
#include "kv/policy.h"
#include "model/hparams.h"

#define SOQ__KV_PLANES_MAX 3

struct soq__kv_group_layout {
    enum soq_kv_group_kind kind;
    enum soq__kv_view view; /* a group of the full one may serve the lossy one, too */
    uint32_t owner;         /* whoever computes the attention of its layers, as the caller numbers them */
    uint32_t policy;        /* index, or SOQ__KV_NO_POLICY */
    struct soq__kv_codec_pair codecs;
    uint32_t pool, packed_pool; /* indices; the second where it packs */
    bool is_split;              /* one of many that could be one */
    uint32_t n_layers;
    uint32_t *layers;                               /* [n_layers] numbers in the model, ascending; owned by the layout */
    uint32_t first_head, n_heads;                   /* kv heads of each of them */
    uint32_t window, sinks;                         /* masks: the model's own window, else the policy's; 0: none */
    struct soq_kv_plane planes[SOQ__KV_PLANES_MAX]; /* of class 0 */
    struct soq_kv_plane packed[SOQ__KV_PLANES_MAX]; /* of class 1; unless it packs the same */
    struct soq_kv_coder coders[SOQ__KV_PLANES_MAX]; /* of these */
    uint32_t n_planes;
    bool packs;
    uint32_t grid, residual; /* where it packs, in entries: multiples of block_tokens; the grid is the layout's */
    uint64_t block_bytes, packed_bytes;
};

/* Bytes of a block as it is in the end. */
static inline uint64_t soq__kv_final_bytes(const struct soq__kv_group_layout *g)
{
    return g->packs ? g->packed_bytes : g->block_bytes;
}

static inline bool soq__kv_uses_pool(const struct soq__kv_group_layout *g, uint32_t pool)
{
    return g->pool == pool || (g->packs && g->packed_pool == pool);
}

/* Entries below are in packed blocks, as far as they are there, when n are committed. */
static inline uint32_t soq__kv_packed_to(const struct soq__kv_group_layout *g, uint32_t n)
{
    uint32_t point = g->packs ? n / g->grid * g->grid : 0;

    return point > g->residual ? point - g->residual : 0;
}

/* The first position that rows from n on can still see, but for sinks. window: 0: none. */
static inline uint32_t soq__kv_visible_from(uint32_t window, uint32_t n)
{
    return window && n + 1 > window ? n + 1 - window : 0;
}

/* Heads of a layer that are in one group. */
struct soq__kv_part {
    uint32_t group, index; /* number of the layer in the group */
    uint32_t first_head, n_heads;
};

struct soq__kv_layout {
    struct soq__kv_group_layout *groups; /* [n_groups] owned */
    uint32_t n_groups, n_pools;
    uint32_t block_tokens, n_layers, n_heads; /* of the model: kv heads */
    uint32_t group_heads;                     /* query heads of each */
    uint32_t grid;                            /* blocks are packed at its multiples; 0: none is */
    uint32_t n_views;                         /* 1, or 2: with a lossy one */
    struct soq__kv_part *parts;               /* of layer 0, of layer 1, ...; then those of the lossy view; owned */
    uint32_t *first_part;                     /* [n_views * n_layers + 1] owned */
};

/* The parts of a layer in a view. */
static inline const struct soq__kv_part *soq__kv_parts(const struct soq__kv_layout *layout, enum soq__kv_view view,
                                                       uint32_t layer, uint32_t *n_out)
{
    const uint32_t *first = &layout->first_part[view * layout->n_layers + layer];

    *n_out = first[1] - first[0];
    return layout->parts + first[0];
}

/* The part of a layer in a view that a kv head is in. */
static inline const struct soq__kv_part *soq__kv_part_of(const struct soq__kv_layout *layout, enum soq__kv_view view,
                                                         uint32_t layer, uint32_t head)
{
    const struct soq__kv_part *part = &layout->parts[layout->first_part[view * layout->n_layers + layer]];

    while (head >= part->first_head + part->n_heads)
        part++;
    return part;
}

/* Of the lossy view: the full one's group serves both. */
static inline bool soq__kv_is_shared(const struct soq__kv_layout *layout, const struct soq__kv_part *part)
{
    return layout->groups[part->group].view == SOQ__KV_FULL;
}

struct soq__kv_layout_params {
    const struct soq__hparams *hparams;
    uint32_t block_tokens;
    const struct soq__kv_policy *policies;
    /* By view. The lossy one is there if it has policies. */
    const uint32_t *head_policy[SOQ__KV_VIEWS]; /* [n_layers][n_kv_heads] index; NULL: all 0 */
    const uint8_t *owners[SOQ__KV_VIEWS]; /* [n_layers] layers of different owners do not share a group; NULL: one owner, 0 */
    const struct soq__kv_codec *codecs;
    const struct soq__kv_codec_pair *layer_codecs[SOQ__KV_VIEWS];    /* [n_layers]; NULL: all 0 */
    const struct soq__kv_codec_origin *codec_origins[SOQ__KV_VIEWS]; /* [n_layers][2] of keys, values; NULL: not known */
    uint32_t pack_grid, residual;                                    /* of [kv] */
};

/* What names the codec of a layer's keys or values; where nobody says, it is taken for codec of the view's section. */
struct soq__kv_codec_origin soq__kv_codec_origin(const struct soq__kv_layout_params *params, enum soq__kv_view view,
                                                 uint32_t layer, enum soq_kv_plane_role role);
/* How the codecs of a layer store keys and values: fills the planes, all kv heads, and what belongs to them. */
int soq__kv_planes_init(struct soq__kv_group_layout *group, const struct soq__kv_layout_params *params, enum soq__kv_view view,
                        uint32_t layer, struct soq_error *err);
int soq__kv_layout_init(struct soq__kv_layout *layout, const struct soq__kv_layout_params *params, struct soq_error *err);
void soq__kv_layout_done(struct soq__kv_layout *layout);
uint64_t soq__kv_pool_block_bytes(const struct soq__kv_layout *layout, uint32_t pool);

#endif
