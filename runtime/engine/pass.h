/* One forward pass: the step's views and the ops on them, in the words of forward.c. (SOQ__ARGS is the one macro beside tables:
 * an op has a dozen arguments, and naming them at the call is what makes it readable.) */
#ifndef SOQ_ENGINE_PASS_H
#define SOQ_ENGINE_PASS_H

#include "engine/net.h"

struct pass {
    const struct soq__net *net;
    const struct soq__hparams *hp;
    const struct soq__kv_cache *kv;
    struct soq__exec *exec;
    enum soq__kv_view view;        /* that rows attend over */
    struct soq_view x, h;          /* [rows, width] */
    struct soq_view q, k, v, a;    /* [rows, heads * head_dim] */
    struct soq_view gate, up;      /* [rows, ff] */
    struct soq_view out, logits;   /* [outputs, width], [outputs, vocabulary] */
    struct soq_view rope_table[2]; /* [rows, n_rot], by `windowed`; buffer 0: no layer needs it */
};

#define SOQ__ARGS(type, ...)                                                                                                   \
    &(struct type)                                                                                                             \
    {                                                                                                                          \
        .struct_size = sizeof(struct type), __VA_ARGS__                                                                        \
    }

/* y = scale * embedding of each row's token */
static inline void embed(const struct pass *p, struct soq_view y)
{
    soq__exec_embed(p->exec, p->net->embd.at,
                    SOQ__ARGS(soq_embed_args, .scale = p->hp->embed_scale, .weight = p->net->embd.handle, .y = y));
}

/* y = W x */
static inline void matmul(const struct pass *p, struct soq__weight w, struct soq_view x, struct soq_view y)
{
    soq__exec_matmul(p->exec, w.at, SOQ__ARGS(soq_matmul_args, .weight = w.handle, .x = x, .y = y));
}

/* y += W x */
static inline void matmul_add(const struct pass *p, struct soq__weight w, struct soq_view x, struct soq_view y)
{
    soq__exec_matmul(p->exec, w.at, SOQ__ARGS(soq_matmul_args, .accumulate = 1, .weight = w.handle, .x = x, .y = y));
}

/* y = x, each run of `width` columns normalised and multiplied by w */
static inline void norm(const struct pass *p, struct soq__weight w, uint32_t width, struct soq_view x, struct soq_view y)
{
    soq__exec_norm(p->exec, w.at,
                   SOQ__ARGS(soq_norm_args, .kind = p->hp->arch->norm, .width = width, .eps = p->hp->norm_eps,
                             .weight = w.handle, .x = x, .y = y));
}

/* y = a + b */
static inline void add(const struct pass *p, const struct soq__net_layer *l, struct soq_view a, struct soq_view b,
                       struct soq_view y)
{
    soq__exec_add(p->exec, l->places.at[SOQ_OP_ADD], SOQ__ARGS(soq_add_args, .a = a, .b = b, .y = y));
}

/* y = act(gate) * up */
static inline void gated_activation(const struct pass *p, const struct soq__net_layer *l, struct soq_view gate,
                                    struct soq_view up, struct soq_view y)
{
    soq__exec_activation(p->exec, l->places.at[SOQ_OP_ACTIVATION],
                         SOQ__ARGS(soq_activation_args, .kind = p->hp->arch->activation, .gate = gate, .up = up, .y = y));
}

/* x = cap * tanh(x / cap) */
static inline void softcap(const struct pass *p, float cap, struct soq_view x)
{
    soq__exec_scale(p->exec, p->net->places.at[SOQ_OP_SCALE], SOQ__ARGS(soq_scale_args, .scale = 1.0f, .cap = cap, .x = x));
}

/* y = the rows of x whose logits somebody wants */
static inline void gather_outputs(const struct pass *p, struct soq_view x, struct soq_view y)
{
    soq__exec_gather(p->exec, p->net->places.at[SOQ_OP_GATHER], SOQ__ARGS(soq_gather_args, .x = x, .y = y));
}

/* Cosines and sines of every row's position, once for all layers. */
static inline void rope_tables(const struct pass *p)
{
    for (int windowed = 0; windowed < 2; windowed++)
        if (p->rope_table[windowed].buffer)
            soq__exec_rope_table(p->exec, p->net->places.at[SOQ_OP_ROPE_TABLE],
                                 SOQ__ARGS(soq_rope_table_args, .mscale = p->net->rope[windowed].mscale,
                                           .inv_freq = p->net->rope[windowed].inv_freq, .table = p->rope_table[windowed]));
}

/* Rotates every head of x by its row's position. */
static inline void rope(const struct pass *p, const struct soq__net_layer *l, uint32_t heads, struct soq_view x)
{
    soq__exec_rope(p->exec, l->places.at[SOQ_OP_ROPE],
                   SOQ__ARGS(soq_rope_args, .kind = p->hp->arch->rope, .n_heads = heads, .head_dim = p->hp->head_dim_k, .x = x,
                             .table = p->rope_table[l->windowed]));
}

/* Columns of `width` each that belong to heads first, ..., first + n - 1. */
static inline struct soq_view heads_of(struct soq_view x, uint32_t first, uint32_t n, uint32_t width)
{
    x.offset += (uint64_t)first * width * sizeof(float);
    x.cols = n * width;
    return x;
}

/* k and v of every row go to its place in a group that holds some of the layer's heads. */
static inline void kv_append_to(const struct pass *p, uint32_t at, const struct soq__kv_part *part, struct soq_view k,
                                struct soq_view v)
{
    soq__exec_kv_append(p->exec, at,
                        SOQ__ARGS(soq_kv_append_args, .layer = part->index, .group = p->kv->groups[part->group].handle,
                                  .k = heads_of(k, part->first_head, part->n_heads, p->hp->head_dim_k),
                                  .v = heads_of(v, part->first_head, part->n_heads, p->hp->head_dim_v)));
}

/* k and v of every row go to the cache: drafts to the lossy view, all others to both. */
static inline void kv_append(const struct pass *p, const struct soq__net_layer *l, struct soq_view k, struct soq_view v)
{
    for (uint32_t i = p->view; i < SOQ__KV_VIEWS; i++) {
        const struct soq__layer_view *view = &l->views[i];

        for (uint32_t j = 0; j < view->n_parts; j++)
            if (i == p->view || !soq__kv_is_shared(p->kv->layout, &view->parts[j])) /* not twice */
                kv_append_to(p, view->at, &view->parts[j], k, v);
    }
}

/* out = softmax(scale * q K) V over what each row sees of its sequence's cache, itself included; where a policy asked for it,
 * the attention mass of rows too */
static inline void attention(const struct pass *p, const struct soq__net_layer *l, struct soq_view q, struct soq_view out)
{
    const struct soq__layer_view *view = &l->views[p->view];
    uint32_t shared = p->hp->n_heads / p->hp->n_kv_heads; /* query heads of a kv head */

    for (const struct soq__kv_part *part = view->parts; part < view->parts + view->n_parts; part++) {
        const struct soq__kv_group *group = &p->kv->groups[part->group];
        uint32_t first = part->first_head * shared, n = part->n_heads * shared;

        soq__exec_attention(
            p->exec, view->at,
            SOQ__ARGS(soq_attention_args, .layer = part->index, .group = group->handle, .n_heads = n,
                      .n_kv_heads = part->n_heads, .head_dim_k = p->hp->head_dim_k, .head_dim_v = p->hp->head_dim_v,
                      .scale = p->hp->attn_scale, .softcap = p->hp->attn_softcap, .window = group->layout->window,
                      .sinks = group->layout->sinks, .inv_freq = p->net->rope[l->windowed].inv_freq,
                      .rope_kind = p->hp->arch->rope, .n_rot = p->hp->rope.n_rot, .q = heads_of(q, first, n, p->hp->head_dim_k),
                      .out = heads_of(out, first, n, p->hp->head_dim_v), .mass = p->kv->mass_lines ? group->mass.buffer : 0,
                      .mass_offset = soq__kv_mass_offset(p->kv, part->group, part->index), .mass_stride = p->kv->mass_stride));
    }
}

#endif
