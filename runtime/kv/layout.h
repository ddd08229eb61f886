/* Which layers share a block table, and how many bytes an entry takes: from hyperparameters, policy and codecs, without a
 * backend.
 *
 * `soquete kvcalc` and the cache itself use the same code, so the forecast cannot drift from the truth. */
#ifndef SOQ_KV_LAYOUT_H
#define SOQ_KV_LAYOUT_H

#include "model/hparams.h"
#include "soquete/plugin.h"

#define SOQ__KV_GROUPS_MAX 4
#define SOQ__KV_PLANES_MAX 3

struct soq__kv_group_layout {
    enum soq_kv_group_kind kind;
    uint32_t n_layers;
    uint32_t window, sinks; /* masks: the model's own window, which policies leave alone, else the policy's; 0: none */
    struct soq_kv_plane planes[SOQ__KV_PLANES_MAX];
    uint32_t n_planes;
    uint64_t block_bytes;
};

struct soq__kv_layout {
    struct soq__kv_group_layout groups[SOQ__KV_GROUPS_MAX];
    uint32_t n_groups;
    uint32_t block_tokens;
    uint32_t *layer_group;    /* [n_layers] group of a layer; owned */
    uint32_t *layer_in_group; /* [n_layers] its number there */
};

struct soq__kv_layout_params {
    const struct soq__hparams *hparams;
    uint32_t block_tokens;
    struct soq_kv_plan plan;
    const struct soq_kv_codec_ops *codec_k, *codec_v;
    void *codec_k_self, *codec_v_self;
};

int soq__kv_layout_init(struct soq__kv_layout *layout, const struct soq__kv_layout_params *params, struct soq_error *err);
void soq__kv_layout_done(struct soq__kv_layout *layout);

/* The most blocks that a sequence of n_entries holds in the group at once, when at most `chunk` rows are added in a step. */
uint32_t soq__kv_group_blocks(const struct soq__kv_layout *layout, uint32_t group, uint32_t n_entries, uint32_t chunk);
/* Bytes of slabs that one sequence of n_entries needs in all groups. */
uint64_t soq__kv_layout_bytes(const struct soq__kv_layout *layout, uint32_t n_entries, uint32_t chunk);

#endif
