/* The model, readable as the paper: one step of a decoder-only transformer over a batch of rows.
 *
 * A row is one token of one sequence. Nothing here knows how rows were batched, where the cache lies or who computes: ops
 * name handles and shapes, the step says the rest. What distinguishes families is data, in model/arch.c. */
#include "engine/pass.h"

/* x += W y, with a norm between where the family has one */
static void project_and_add(const struct pass *p, const struct soq__net_layer *l, struct soq__weight w,
                            struct soq__weight post_norm, struct soq_view y)
{
    if (!post_norm.handle) {
        matmul_add(p, w, y, p->x);
        return;
    }
    matmul(p, w, y, p->h);
    norm(p, post_norm, p->hp->dim[SOQ__DIM_EMBD], p->h, p->h);
    add(p, l, p->x, p->h, p->x);
}

/* x += O attention(rope(Q h), rope(K h), V h), h = norm(x) */
static void attention_block(const struct pass *p, const struct soq__net_layer *l)
{
    const struct soq__weight *w = l->weights;

    norm(p, w[SOQ__W_ATTN_NORM], p->hp->dim[SOQ__DIM_EMBD], p->x, p->h);
    matmul(p, w[SOQ__W_Q], p->h, p->q);
    matmul(p, w[SOQ__W_K], p->h, p->k);
    matmul(p, w[SOQ__W_V], p->h, p->v);
    if (p->hp->arch->features & SOQ__HAS_QK_NORM) {
        norm(p, w[SOQ__W_Q_NORM], p->hp->head_dim_k, p->q, p->q);
        norm(p, w[SOQ__W_K_NORM], p->hp->head_dim_k, p->k, p->k);
    }
    rope(p, l, p->hp->n_heads, p->q);
    rope(p, l, p->hp->n_kv_heads, p->k);
    kv_append(p, l, p->k, p->v);
    attention(p, l, p->q, p->a);
    project_and_add(p, l, w[SOQ__W_O], w[SOQ__W_POST_ATTN_NORM], p->a);
}

/* x += down(act(gate h) * (up h)), h = norm(x) */
static void feed_forward_block(const struct pass *p, const struct soq__net_layer *l)
{
    const struct soq__weight *w = l->weights;

    norm(p, w[SOQ__W_FFN_NORM], p->hp->dim[SOQ__DIM_EMBD], p->x, p->h);
    matmul(p, w[SOQ__W_GATE], p->h, p->gate);
    matmul(p, w[SOQ__W_UP], p->h, p->up);
    gated_activation(p, l, p->gate, p->up, p->gate);
    project_and_add(p, l, w[SOQ__W_DOWN], w[SOQ__W_POST_FFN_NORM], p->gate);
}

/* logits = head norm(x), only for rows whose logits somebody wants */
static void head(const struct pass *p)
{
    gather_outputs(p, p->x, p->out);
    norm(p, p->net->output_norm, p->hp->dim[SOQ__DIM_EMBD], p->out, p->out);
    matmul(p, p->net->output, p->out, p->logits);
    if (p->hp->logit_softcap > 0.0f)
        softcap(p, p->hp->logit_softcap, p->logits);
}

static struct pass pass_of(const struct soq__net *net, const struct soq__kv_cache *kv, const struct soq_step *step,
                           enum soq__kv_view view)
{
    uint32_t rows = step->n_rows, outputs = step->n_outputs;

    return (struct pass){
        .net = net,
        .hp = &net->model->hparams,
        .kv = kv,
        .exec = net->exec,
        .view = view,
        .x = soq__rows(net->x, rows),
        .h = soq__rows(net->h, rows),
        .q = soq__rows(net->q, rows),
        .k = soq__rows(net->k, rows),
        .v = soq__rows(net->v, rows),
        .a = soq__rows(net->a, rows),
        .gate = soq__rows(net->gate, rows),
        .up = soq__rows(net->up, rows),
        .out = soq__rows(net->out, outputs),
        .logits = soq__rows(net->logits, outputs),
        .rope_table = {soq__rows(net->rope[0].table, rows), soq__rows(net->rope[1].table, rows)},
    };
}

int soq__forward(struct soq__net *net, const struct soq__kv_cache *kv, const struct soq_step *step, enum soq__kv_view view,
                 struct soq_error *err)
{
    const struct pass p = pass_of(net, kv, step, view);

    soq__exec_begin(net->exec, step, err);
    embed(&p, p.x);
    rope_tables(&p);
    for (uint32_t l = 0; l < p.hp->n_layers; l++) {
        attention_block(&p, &net->layers[l]);
        feed_forward_block(&p, &net->layers[l]);
    }
    if (p.logits.rows)
        head(&p);
    return soq__exec_end(net->exec);
}
