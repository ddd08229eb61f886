/* The model, readable as the paper: one step of a decoder-only transformer over a batch of rows.
 *
 * A row is one token of one sequence. Nothing here knows how rows were batched, where the cache lies or who computes: ops name
 * handles and shapes, the step says the rest. What differs between families is in model/arch.c.
 *
 * Shapes: x, h [rows, width]; q [rows, heads * head_dim]; k, v [rows, kv_heads * head_dim]; gate, up [rows, ff]. */
#include "engine/net.h"

struct pass {
    const struct soq__net *net;
    const struct soq__hparams *hp;
    const struct soq__kv_cache *kv;
    struct soq__exec *exec;
    uint32_t rows, outputs;
};

static struct soq_view first_rows(struct soq_view v, uint32_t rows)
{
    v.rows = rows;
    return v;
}

static void matmul(const struct pass *p, soq_weight w, struct soq_view x, struct soq_view y)
{
    soq__exec_matmul(p->exec,
                     &(struct soq_matmul_args){.struct_size = sizeof(struct soq_matmul_args), .weight = w, .x = x, .y = y});
}

/* y += W x: a residual connection without an op of its own */
static void matmul_add(const struct pass *p, soq_weight w, struct soq_view x, struct soq_view y)
{
    soq__exec_matmul(p->exec, &(struct soq_matmul_args){
                                  .struct_size = sizeof(struct soq_matmul_args), .accumulate = 1, .weight = w, .x = x, .y = y});
}

static void norm(const struct pass *p, soq_weight w, uint32_t width, struct soq_view x, struct soq_view y)
{
    soq__exec_norm(p->exec, &(struct soq_norm_args){.struct_size = sizeof(struct soq_norm_args),
                                                    .kind = p->hp->arch->norm,
                                                    .width = width,
                                                    .eps = p->hp->norm_eps,
                                                    .weight = w,
                                                    .x = x,
                                                    .y = y});
}

static void add(const struct pass *p, struct soq_view a, struct soq_view b, struct soq_view y)
{
    soq__exec_add(p->exec, &(struct soq_add_args){.struct_size = sizeof(struct soq_add_args), .a = a, .b = b, .y = y});
}

static void rope(const struct pass *p, const struct soq__net_layer *l, uint32_t heads, struct soq_view x)
{
    soq__exec_rope(p->exec, &(struct soq_rope_args){.struct_size = sizeof(struct soq_rope_args),
                                                    .kind = p->hp->arch->rope,
                                                    .n_heads = heads,
                                                    .head_dim = p->hp->head_dim_k,
                                                    .x = x,
                                                    .table = first_rows(p->net->rope[l->windowed].table, p->rows)});
}

/* a = softmax(q K / sqrt(d)) V over the sequence's cache, this step's rows included */
static void attend(const struct pass *p, const struct soq__net_layer *l, struct soq_view q, struct soq_view a)
{
    const struct soq__kv_group *group = &p->kv->groups[l->group];

    soq__exec_attention(p->exec, &(struct soq_attention_args){.struct_size = sizeof(struct soq_attention_args),
                                                              .layer = l->index,
                                                              .group = group->handle,
                                                              .n_heads = p->hp->n_heads,
                                                              .n_kv_heads = p->hp->n_kv_heads,
                                                              .head_dim_k = p->hp->head_dim_k,
                                                              .head_dim_v = p->hp->head_dim_v,
                                                              .scale = p->hp->attn_scale,
                                                              .softcap = p->hp->attn_softcap,
                                                              .window = group->layout.window,
                                                              .sinks = group->layout.sinks,
                                                              .inv_freq = p->net->rope[l->windowed].inv_freq,
                                                              .rope_kind = p->hp->arch->rope,
                                                              .n_rot = p->hp->rope.n_rot,
                                                              .q = q,
                                                              .out = a});
}

static void append(const struct pass *p, const struct soq__net_layer *l, struct soq_view k, struct soq_view v)
{
    soq__exec_kv_append(p->exec, &(struct soq_kv_append_args){.struct_size = sizeof(struct soq_kv_append_args),
                                                              .layer = l->index,
                                                              .group = p->kv->groups[l->group].handle,
                                                              .k = k,
                                                              .v = v});
}

/* x += W y, with a norm between where the family has one: then the sum needs an op of its own */
static void project_and_add(const struct pass *p, soq_weight w, soq_weight post_norm, struct soq_view y)
{
    struct soq_view x = first_rows(p->net->x, p->rows), h = first_rows(p->net->h, p->rows);

    if (!post_norm) {
        matmul_add(p, w, y, x);
        return;
    }
    matmul(p, w, y, h);
    norm(p, post_norm, p->hp->dim[SOQ__DIM_EMBD], h, h);
    add(p, x, h, x);
}

static void attention_block(const struct pass *p, const struct soq__net_layer *l)
{
    const struct soq__net *n = p->net;
    const soq_weight *w = l->weights;
    struct soq_view x = first_rows(n->x, p->rows), h = first_rows(n->h, p->rows);
    struct soq_view q = first_rows(n->q, p->rows), k = first_rows(n->k, p->rows);
    struct soq_view v = first_rows(n->v, p->rows), a = first_rows(n->a, p->rows);

    norm(p, w[SOQ__W_ATTN_NORM], p->hp->dim[SOQ__DIM_EMBD], x, h);
    matmul(p, w[SOQ__W_Q], h, q);
    matmul(p, w[SOQ__W_K], h, k);
    matmul(p, w[SOQ__W_V], h, v);
    if (p->hp->arch->features & SOQ__HAS_QK_NORM) {
        norm(p, w[SOQ__W_Q_NORM], p->hp->head_dim_k, q, q);
        norm(p, w[SOQ__W_K_NORM], p->hp->head_dim_k, k, k);
    }
    rope(p, l, p->hp->n_heads, q);
    rope(p, l, p->hp->n_kv_heads, k);
    append(p, l, k, v);
    attend(p, l, q, a);
    project_and_add(p, w[SOQ__W_O], w[SOQ__W_POST_ATTN_NORM], a);
}

/* down(act(gate(h)) * up(h)) */
static void feed_forward_block(const struct pass *p, const struct soq__net_layer *l)
{
    const struct soq__net *n = p->net;
    const soq_weight *w = l->weights;
    struct soq_view x = first_rows(n->x, p->rows), h = first_rows(n->h, p->rows);
    struct soq_view gate = first_rows(n->gate, p->rows), up = first_rows(n->up, p->rows);

    norm(p, w[SOQ__W_FFN_NORM], p->hp->dim[SOQ__DIM_EMBD], x, h);
    matmul(p, w[SOQ__W_GATE], h, gate);
    matmul(p, w[SOQ__W_UP], h, up);
    soq__exec_activation(p->exec, &(struct soq_activation_args){.struct_size = sizeof(struct soq_activation_args),
                                                                .kind = p->hp->arch->activation,
                                                                .gate = gate,
                                                                .up = up,
                                                                .y = gate});
    project_and_add(p, w[SOQ__W_DOWN], w[SOQ__W_POST_FFN_NORM], gate);
}

/* The final norm and the head, only for rows whose logits somebody wants. */
static void head(const struct pass *p)
{
    const struct soq__net *n = p->net;
    struct soq_view x = first_rows(n->x, p->rows), out = first_rows(n->out, p->outputs),
                    logits = first_rows(n->logits, p->outputs);

    soq__exec_gather(p->exec, &(struct soq_gather_args){.struct_size = sizeof(struct soq_gather_args), .x = x, .y = out});
    norm(p, n->output_norm, p->hp->dim[SOQ__DIM_EMBD], out, out);
    matmul(p, n->output, out, logits);
    if (p->hp->logit_softcap > 0.0f)
        soq__exec_scale(p->exec, &(struct soq_scale_args){.struct_size = sizeof(struct soq_scale_args),
                                                          .scale = 1.0f,
                                                          .cap = p->hp->logit_softcap,
                                                          .x = logits});
}

static void rope_tables(const struct pass *p)
{
    for (int windowed = 0; windowed < 2; windowed++) {
        const struct soq__rope_view *r = &p->net->rope[windowed];

        if (r->table.buffer)
            soq__exec_rope_table(p->exec, &(struct soq_rope_table_args){.struct_size = sizeof(struct soq_rope_table_args),
                                                                        .mscale = r->mscale,
                                                                        .inv_freq = r->inv_freq,
                                                                        .table = first_rows(r->table, p->rows)});
    }
}

int soq__forward(struct soq__net *net, const struct soq__kv_cache *kv, const struct soq_step *step, struct soq_error *err)
{
    const struct soq__hparams *hp = &net->model->hparams;
    const struct pass p = {.net = net, .hp = hp, .kv = kv, .exec = net->exec, .rows = step->n_rows, .outputs = step->n_outputs};

    soq__exec_begin(net->exec, step, err);
    soq__exec_embed(net->exec, &(struct soq_embed_args){.struct_size = sizeof(struct soq_embed_args),
                                                        .scale = hp->embed_scale,
                                                        .weight = net->embd,
                                                        .y = first_rows(net->x, p.rows)});
    rope_tables(&p);
    for (uint32_t l = 0; l < hp->n_layers; l++) {
        attention_block(&p, &net->layers[l]);
        feed_forward_block(&p, &net->layers[l]);
    }
    if (p.outputs)
        head(&p);
    return soq__exec_end(net->exec);
}
