/* A model's hyperparameters, read from GGUF metadata and checked. */
#ifndef SOQ_MODEL_HPARAMS_H
#define SOQ_MODEL_HPARAMS_H

#include "model/arch.h"
#include "model/gguf.h"
#include "model/rope.h"

struct soq__hparams {
    const struct soq__arch *arch;
    uint32_t n_layers;
    uint32_t context_train; /* positions the model was made for */
    uint32_t n_heads, n_kv_heads, head_dim_k, head_dim_v;
    uint32_t window; /* of windowed layers, the row itself included; 0: no layer has one */
    uint32_t window_pattern;
    uint32_t dim[SOQ__DIM_COUNT]; /* by enum soq__dim: sizes that tensor shapes are made of */
    float norm_eps;
    float embed_scale, attn_scale;
    float logit_softcap, attn_softcap; /* 0: none */
    struct soq__rope_params rope, window_rope;
};

/* Errors name the file, the key and the value. What the runtime cannot compute (experts, windows where the family has none,
 * per-layer head counts) is refused here. rope.factors stays NULL: the tensor is the caller's. */
int soq__hparams_read(const struct soq__gguf *g, struct soq__hparams *out, struct soq_error *err);

static inline bool soq__layer_is_windowed(const struct soq__hparams *hp, uint32_t layer)
{
    return hp->window && (layer + 1) % hp->window_pattern != 0;
}

#endif
