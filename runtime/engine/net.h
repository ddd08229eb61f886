/* A model on a backend: prepared weights, activation buffers, RoPE frequencies. What forward() computes with. */
#ifndef SOQ_ENGINE_NET_H
#define SOQ_ENGINE_NET_H

#include "engine/exec.h"
#include "kv/cache.h"
#include "model/model.h"

struct soq__net_layer {
    soq_weight weights[SOQ__N_LAYER_TENSORS]; /* by enum soq__layer_tensor; 0: the family has none */
    uint32_t group, index;                    /* KV group, number of the layer in it */
    bool windowed;
};

struct soq__rope_view {
    struct soq_view inv_freq; /* 1 x n_rot / 2 */
    struct soq_view table;    /* max_rows x n_rot, filled at the start of a step */
    float mscale;
};

struct soq__net {
    const struct soq__model *model;       /* not owned */
    struct soq__exec *exec;               /* not owned */
    struct soq__net_layer *layers;        /* owned */
    soq_weight embd, output_norm, output; /* output = embd when tied */
    uint64_t weight_bytes;                /* held beside the file's mapping */
    uint64_t buffer_bytes;
    struct soq_view x, h;          /* max_rows x width: the residual stream, a block's input and output */
    struct soq_view q, k, v, a;    /* max_rows x heads * head_dim; a: what attention gives */
    struct soq_view gate, up;      /* max_rows x feed-forward width */
    struct soq_view out, logits;   /* max_outputs x width, x vocabulary */
    struct soq__rope_view rope[2]; /* by `windowed` */
    soq_buffer buffers[16];
    uint32_t n_buffers;
};

/* Called for each tensor while loading; nonzero cancels. */
typedef int soq__load_progress(void *arg, uint64_t bytes_done, uint64_t bytes_total);

struct soq__net_params {
    const struct soq__model *model;
    struct soq__exec *exec;
    const struct soq__kv_layout *layout;
    uint32_t max_rows, max_outputs;
    soq__load_progress *progress; /* or NULL */
    void *progress_arg;
};

/* Places every op of the model, then prepares its weights, tensor by tensor. */
int soq__net_init(struct soq__net *net, const struct soq__net_params *params, struct soq_error *err);
void soq__net_done(struct soq__net *net);

/* One forward pass over all rows of the step; afterwards net->logits holds a row for each of its outputs. */
int soq__forward(struct soq__net *net, const struct soq__kv_cache *kv, const struct soq_step *step, struct soq_error *err);

#endif
