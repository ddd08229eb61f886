/* A model on its backends: placed ops, prepared weights, activation tensors, RoPE frequencies. What forward() computes with. */
#ifndef SOQ_ENGINE_NET_H
#define SOQ_ENGINE_NET_H

#include "engine/exec.h"
#include "engine/policies.h"
#include "kv/cache.h"
#include "model/model.h"

struct soq__weight {
    soq_weight handle; /* 0: the family has none */
    uint32_t at;       /* instance that holds it and runs its op */
};

/* Who runs each op that has no weight, by enum soq_op. */
struct soq__op_places {
    uint8_t at[SOQ__N_OPS];
    uint32_t placed; /* bit per op */
};

/* A layer's part of a view of the cache. */
struct soq__layer_view {
    const struct soq__kv_part *parts; /* [n_parts] its kv heads by KV group; not owned */
    uint32_t n_parts;                 /* 0: there is no such view */
    uint32_t at;                      /* instance that attends over it, and holds it */
};

struct soq__net_layer {
    struct soq__weight weights[SOQ__N_LAYER_TENSORS]; /* by enum soq__layer_tensor */
    struct soq__op_places places;
    uint32_t home; /* instance that the layer was given to */
    struct soq__layer_view views[SOQ__KV_VIEWS];
    bool windowed;
};

struct soq__rope_view {
    struct soq_view inv_freq; /* 1 x n_rot / 2 */
    struct soq_view table;    /* max_rows x n_rot, filled at the start of a step; buffer 0: no layer needs it */
    float mscale;
};

struct soq__net {
    const struct soq__model *model;         /* not owned */
    struct soq__exec *exec;                 /* not owned */
    struct soq__net_layer *layers;          /* owned */
    struct soq__weight embd;                /* as looked up */
    struct soq__weight output_norm, output; /* output: the head's own, or the tied embedding: then embd where one serves both */
    struct soq__op_places places;           /* outside the layers: rope_table, gather, scale */
    uint64_t weight_bytes;                  /* held beside the file's mapping */
    struct soq_view x, h;                   /* max_rows x width: the residual stream, a block's input and output */
    struct soq_view q, k, v, a;             /* max_rows x heads * head_dim; a: what attention gives */
    struct soq_view gate, up;               /* max_rows x feed-forward width */
    struct soq_view out, logits;            /* max_outputs x width, x vocabulary */
    struct soq__rope_view rope[2];          /* by `windowed` */
};

/* Called for each tensor while loading; nonzero cancels. */
typedef int soq__load_progress(void *arg, uint64_t bytes_done, uint64_t bytes_total);

struct soq__net_params {
    const struct soq__model *model;
    struct soq__exec *exec;
    uint32_t max_rows, max_outputs;
    const struct soq__kv_layout_params *layout; /* how layers are stored; owners are not known yet */
    const struct soq__policies *policies;
    soq__load_progress *progress; /* or NULL */
    void *progress_arg;
};

/* Decides who runs every op of the model. Needs done() even if it fails. */
int soq__net_place(struct soq__net *net, const struct soq__net_params *params, struct soq_error *err);
/* Then: activation tensors, and weights tensor by tensor. layout: made for the owners that net_place chose. */
int soq__net_load(struct soq__net *net, const struct soq__net_params *params, const struct soq__kv_layout *layout,
                  struct soq_error *err);
void soq__net_done(struct soq__net *net);

/* The first n rows. */
static inline struct soq_view soq__rows(struct soq_view view, uint32_t n)
{
    view.rows = n;
    return view;
}

/* One forward pass over all rows of the step; afterwards net->logits holds a row for each of its outputs. Rows attend over one
 * view of the cache; those of the full view are written to the lossy one, too. */
int soq__forward(struct soq__net *net, const struct soq__kv_cache *kv, const struct soq_step *step, enum soq__kv_view view,
                 struct soq_error *err);

#endif
