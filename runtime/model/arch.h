/* Model families as data: what distinguishes one family's forward pass from another's, and which tensors a file of it holds.
 *
 * engine/forward.c is straight-line code over this description. A new family is a row in arch.c, unless it has a new mixer. */
#ifndef SOQ_MODEL_ARCH_H
#define SOQ_MODEL_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "soquete/plugin.h"

enum soq__feature {
    SOQ__HAS_QK_NORM = 1,     /* RMS norm over each head of q and k before RoPE */
    SOQ__HAS_POST_NORM = 2,   /* norms after attention and after the feed-forward, before the residual is added */
    SOQ__HAS_EMBED_SCALE = 4, /* embeddings are multiplied by sqrt(width) */
    SOQ__HAS_WINDOWS = 8,     /* sliding windows in all but every window_pattern-th layer */
};

struct soq__arch {
    const char *name; /* general.architecture */
    uint32_t features;
    enum soq_norm_kind norm;
    enum soq_rope_kind rope;
    enum soq_activation_kind activation;
    uint32_t window_pattern; /* layer l is global when (l + 1) % window_pattern == 0 */
    float window_rope_base;  /* of windowed layers, without scaling, unless the file says otherwise */
};

/* NULL if the family is unknown. */
const struct soq__arch *soq__arch_find(const char *name, size_t len);
/* Names of all families, for messages: "llama, gemma3". */
const char *soq__arch_names(void);

/* Sizes that shapes are made of. */
enum soq__dim {
    SOQ__DIM_ONE,
    SOQ__DIM_EMBD, /* model width */
    SOQ__DIM_FF,   /* feed-forward width */
    SOQ__DIM_Q,    /* heads x head_dim_k */
    SOQ__DIM_K,    /* kv heads x head_dim_k */
    SOQ__DIM_V,    /* kv heads x head_dim_v */
    SOQ__DIM_O,    /* heads x head_dim_v */
    SOQ__DIM_HEAD, /* head_dim_k */
    SOQ__DIM_VOCAB,
    SOQ__DIM_COUNT,
};

/* X(id, suffix after "blk.N.", rows, cols, uses, feature that brings it or 0) */
#define SOQ__LAYER_TENSORS(X)                                                                                                  \
    X(SOQ__W_ATTN_NORM, "attn_norm.weight", ONE, EMBD, VECTOR, 0)                                                              \
    X(SOQ__W_Q, "attn_q.weight", Q, EMBD, MATMUL, 0)                                                                           \
    X(SOQ__W_K, "attn_k.weight", K, EMBD, MATMUL, 0)                                                                           \
    X(SOQ__W_V, "attn_v.weight", V, EMBD, MATMUL, 0)                                                                           \
    X(SOQ__W_Q_NORM, "attn_q_norm.weight", ONE, HEAD, VECTOR, SOQ__HAS_QK_NORM)                                                \
    X(SOQ__W_K_NORM, "attn_k_norm.weight", ONE, HEAD, VECTOR, SOQ__HAS_QK_NORM)                                                \
    X(SOQ__W_O, "attn_output.weight", EMBD, O, MATMUL, 0)                                                                      \
    X(SOQ__W_POST_ATTN_NORM, "post_attention_norm.weight", ONE, EMBD, VECTOR, SOQ__HAS_POST_NORM)                              \
    X(SOQ__W_FFN_NORM, "ffn_norm.weight", ONE, EMBD, VECTOR, 0)                                                                \
    X(SOQ__W_GATE, "ffn_gate.weight", FF, EMBD, MATMUL, 0)                                                                     \
    X(SOQ__W_UP, "ffn_up.weight", FF, EMBD, MATMUL, 0)                                                                         \
    X(SOQ__W_DOWN, "ffn_down.weight", EMBD, FF, MATMUL, 0)                                                                     \
    X(SOQ__W_POST_FFN_NORM, "post_ffw_norm.weight", ONE, EMBD, VECTOR, SOQ__HAS_POST_NORM)

enum soq__layer_tensor {
#define SOQ__LAYER_ENUM(id, suffix, rows, cols, use, feature) id,
    SOQ__LAYER_TENSORS(SOQ__LAYER_ENUM)
#undef SOQ__LAYER_ENUM
        SOQ__N_LAYER_TENSORS
};

struct soq__tensor_spec {
    const char *suffix;
    enum soq__dim rows, cols;
    uint32_t use;     /* SOQ_USE_... */
    uint32_t feature; /* 0: every family has it */
};

extern const struct soq__tensor_spec soq__layer_tensors[SOQ__N_LAYER_TENSORS];

#endif
