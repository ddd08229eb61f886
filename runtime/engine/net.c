/* Putting a model on a backend: placement of ops, weights, activation buffers, RoPE frequencies. */
#include "engine/net.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "soquete/plugin.h"

/* ---- Placement ------------------------------------------------------------------------------------------------------- */

static int place_simple(struct soq__net *net, struct soq_op_desc desc, struct soq_error *err)
{
    desc.struct_size = sizeof desc;
    return soq__exec_place(net->exec, &desc, err);
}

static int place_matmul(struct soq__net *net, const struct soq__gguf_tensor *t, struct soq_error *err)
{
    return place_simple(
        net,
        (struct soq_op_desc){
            .op = SOQ_OP_MATMUL, .weight_dtype = t->type, .rows = (uint32_t)t->ne[1], .cols = (uint32_t)t->ne[0]},
        err);
}

static int place_attention(struct soq__net *net, const struct soq__kv_group_layout *g, struct soq_error *err)
{
    const struct soq__hparams *hp = &net->model->hparams;
    struct soq_op_desc desc = {
        .op = SOQ_OP_ATTENTION,
        .head_dim_k = hp->head_dim_k,
        .head_dim_v = hp->head_dim_v,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .key_format = g->planes[0].format.kind,
        .key_dtype = g->planes[0].format.dtype,
        .value_format = g->planes[1].format.kind,
        .value_dtype = g->planes[1].format.dtype,
        .flags = (g->window ? (uint32_t)SOQ_OPDESC_WINDOW : 0) | (hp->attn_softcap > 0 ? (uint32_t)SOQ_OPDESC_SOFTCAP : 0) |
                 (g->sinks ? (uint32_t)SOQ_OPDESC_SEGMENTS : 0),
    };
    int rc = place_simple(net, desc, err);

    desc.op = SOQ_OP_KV_APPEND;
    return rc ? rc : place_simple(net, desc, err);
}

static int place_ops(struct soq__net *net, const struct soq__kv_layout *layout, struct soq_error *err)
{
    const struct soq__model *m = net->model;
    const struct soq__arch *arch = m->hparams.arch;
    const struct soq_op_desc simple[] = {
        {.op = SOQ_OP_EMBED, .weight_dtype = m->token_embd->type},
        {.op = SOQ_OP_NORM, .kind = arch->norm},
        {.op = SOQ_OP_ROPE_TABLE},
        {.op = SOQ_OP_ROPE, .kind = arch->rope, .head_dim_k = m->hparams.head_dim_k},
        {.op = SOQ_OP_ACTIVATION, .kind = arch->activation},
        {.op = SOQ_OP_ADD},
        {.op = SOQ_OP_SCALE},
        {.op = SOQ_OP_GATHER},
    };
    int rc = 0;

    for (size_t i = 0; !rc && i < sizeof simple / sizeof simple[0]; i++)
        rc = place_simple(net, simple[i], err);
    for (uint32_t l = 0; !rc && l < m->hparams.n_layers; l++)
        for (int i = 0; !rc && i < SOQ__N_LAYER_TENSORS; i++)
            if (m->layers[l].tensors[i] && soq__layer_tensors[i].use == SOQ_USE_MATMUL)
                rc = place_matmul(net, m->layers[l].tensors[i], err);
    if (!rc)
        rc = place_matmul(net, m->output ? m->output : m->token_embd, err);
    for (uint32_t g = 0; !rc && g < layout->n_groups; g++)
        rc = place_attention(net, &layout->groups[g], err);
    return rc;
}

/* An op that a later description moves to another backend must suit that one in its earlier descriptions too. */
static int settle_ops(struct soq__net *net, const struct soq__kv_layout *layout, struct soq_error *err)
{
    uint8_t before[SOQ__N_OPS];
    int rc;

    do {
        memcpy(before, net->exec->place, sizeof before);
        rc = place_ops(net, layout, err);
    } while (!rc && memcmp(before, net->exec->place, sizeof before) != 0);
    return rc;
}

/* ---- Weights --------------------------------------------------------------------------------------------------------- */

struct loader {
    struct soq__net *net;
    const struct soq__net_params *params;
    uint64_t done, total; /* bytes */
    struct soq_error *err;
};

static int prepare(struct loader *ld, const struct soq__gguf_tensor *t, uint32_t uses, soq_weight *out)
{
    const struct soq__instance *in = soq__exec_primary(ld->net->exec);
    struct soq_weight_info info = {.struct_size = sizeof info};
    char name[SOQ__GGUF_MAX_NAME + 1];
    struct soq_weight_desc desc = {
        .struct_size = sizeof desc,
        .dtype = t->type,
        .name = name,
        .data = t->data,
        .bytes = t->bytes,
        .rows = (uint32_t)t->ne[1],
        .cols = (uint32_t)t->ne[0],
        .uses = uses,
        .may_repack = 1,
        .n_shards = 1,
    };
    int rc;

    memcpy(name, t->name.data, t->name.len);
    name[t->name.len] = '\0';
    rc = in->ops->memory->weight_prepare(in->self, &desc, &info, ld->err);
    if (rc) {
        soq__fail_prefix(ld->err, "%s: tensor %s", soq__gguf_path(ld->net->model->gguf), name);
        return rc;
    }
    *out = info.weight;
    ld->net->weight_bytes += info.bytes;
    if (!(info.flags & SOQ_WEIGHT_KEEPS_SOURCE))
        soq__gguf_tensor_drop(ld->net->model->gguf, t);
    ld->done += t->bytes;
    if (ld->params->progress && ld->params->progress(ld->params->progress_arg, ld->done, ld->total))
        return soq__fail(ld->err, SOQ_ECANCELLED, "loading was cancelled");
    return 0;
}

static int load_layer(struct loader *ld, uint32_t l, const struct soq__kv_layout *layout)
{
    const struct soq__model *m = ld->net->model;
    struct soq__net_layer *layer = &ld->net->layers[l];
    int rc = 0;

    layer->group = layout->layer_group[l];
    layer->index = layout->layer_in_group[l];
    layer->windowed = soq__layer_is_windowed(&m->hparams, l);
    for (int i = 0; !rc && i < SOQ__N_LAYER_TENSORS; i++)
        if (m->layers[l].tensors[i])
            rc = prepare(ld, m->layers[l].tensors[i], soq__layer_tensors[i].use, &layer->weights[i]);
    return rc;
}

static int load_weights(struct soq__net *net, const struct soq__net_params *params, struct soq_error *err)
{
    const struct soq__model *m = net->model;
    struct loader ld = {.net = net, .params = params, .err = err};
    int rc;

    for (size_t i = 0; i < soq__gguf_n_tensors(m->gguf); i++)
        ld.total += soq__gguf_tensor_at(m->gguf, i)->bytes;
    rc = prepare(&ld, m->token_embd, m->output ? SOQ_USE_EMBED : SOQ_USE_EMBED | SOQ_USE_MATMUL, &net->embd);
    if (!rc)
        rc = prepare(&ld, m->output_norm, SOQ_USE_VECTOR, &net->output_norm);
    if (!rc && m->output)
        rc = prepare(&ld, m->output, SOQ_USE_MATMUL, &net->output);
    for (uint32_t l = 0; !rc && l < m->hparams.n_layers; l++)
        rc = load_layer(&ld, l, params->layout);
    if (!rc && !m->output)
        net->output = net->embd;
    return rc;
}

/* ---- Buffers --------------------------------------------------------------------------------------------------------- */

static int make_view(struct soq__net *net, uint32_t rows, uint32_t cols, struct soq_view *out, struct soq_error *err)
{
    const struct soq__instance *in = soq__exec_primary(net->exec);
    uint64_t bytes = (uint64_t)rows * cols * sizeof(float);
    soq_buffer buffer;
    int rc = in->ops->memory->buffer_alloc(in->self, bytes, &buffer, err);

    if (rc) {
        soq__fail_prefix(err, "activation buffer of %u x %u", rows, cols);
        return rc;
    }
    net->buffers[net->n_buffers++] = buffer;
    net->buffer_bytes += bytes;
    *out = (struct soq_view){.buffer = buffer, .rows = rows, .cols = cols, .row_stride = cols, .dtype = SOQ_DTYPE_F32};
    return 0;
}

static int make_rope(struct soq__net *net, const struct soq__rope_params *rope, uint32_t max_rows, struct soq__rope_view *out,
                     struct soq_error *err)
{
    const struct soq__instance *in = soq__exec_primary(net->exec);
    float *inv_freq = soq__alloc_array(rope->n_rot / 2, sizeof(float));
    int rc;

    if (!inv_freq)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for RoPE frequencies");
    soq__rope_frequencies(rope, inv_freq, &out->mscale);
    rc = make_view(net, 1, rope->n_rot / 2, &out->inv_freq, err);
    if (!rc)
        rc = in->ops->memory->buffer_write(in->self, out->inv_freq.buffer, 0, inv_freq, rope->n_rot / 2 * sizeof(float), err);
    if (!rc)
        rc = make_view(net, max_rows, rope->n_rot, &out->table, err);
    soq__free(inv_freq);
    return rc;
}

static int make_buffers(struct soq__net *net, const struct soq__net_params *p, struct soq_error *err)
{
    const struct soq__hparams *hp = &net->model->hparams;
    const struct {
        struct soq_view *view;
        uint32_t rows;
        enum soq__dim cols;
    } wanted[] = {
        {&net->x, p->max_rows, SOQ__DIM_EMBD},      {&net->h, p->max_rows, SOQ__DIM_EMBD},
        {&net->q, p->max_rows, SOQ__DIM_Q},         {&net->k, p->max_rows, SOQ__DIM_K},
        {&net->v, p->max_rows, SOQ__DIM_V},         {&net->a, p->max_rows, SOQ__DIM_O},
        {&net->gate, p->max_rows, SOQ__DIM_FF},     {&net->up, p->max_rows, SOQ__DIM_FF},
        {&net->out, p->max_outputs, SOQ__DIM_EMBD}, {&net->logits, p->max_outputs, SOQ__DIM_VOCAB},
    };
    int rc = 0;

    for (size_t i = 0; !rc && i < sizeof wanted / sizeof wanted[0]; i++)
        rc = make_view(net, wanted[i].rows, hp->dim[wanted[i].cols], wanted[i].view, err);
    if (!rc)
        rc = make_rope(net, &hp->rope, p->max_rows, &net->rope[0], err);
    if (!rc && hp->window)
        rc = make_rope(net, &hp->window_rope, p->max_rows, &net->rope[1], err);
    return rc;
}

/* ---- Life ------------------------------------------------------------------------------------------------------------ */

int soq__net_init(struct soq__net *net, const struct soq__net_params *params, struct soq_error *err)
{
    int rc = 0;

    *net = (struct soq__net){.model = params->model, .exec = params->exec};
    net->layers = soq__alloc_zero(params->model->hparams.n_layers, sizeof *net->layers);
    if (!net->layers)
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory for %u layers", params->model->hparams.n_layers);
    if (!rc)
        rc = settle_ops(net, params->layout, err);
    if (!rc)
        rc = make_buffers(net, params, err);
    if (!rc)
        rc = load_weights(net, params, err);
    if (rc)
        soq__net_done(net);
    return rc;
}

static void free_weight(const struct soq__net *net, soq_weight w)
{
    const struct soq__instance *in = soq__exec_primary(net->exec);

    if (w)
        in->ops->memory->weight_free(in->self, w);
}

void soq__net_done(struct soq__net *net)
{
    const struct soq__instance *in;

    if (!net->exec)
        return;
    in = soq__exec_primary(net->exec);
    if (net->output != net->embd)
        free_weight(net, net->output);
    free_weight(net, net->embd);
    free_weight(net, net->output_norm);
    for (uint32_t l = 0; net->layers && l < net->model->hparams.n_layers; l++)
        for (int i = 0; i < SOQ__N_LAYER_TENSORS; i++)
            free_weight(net, net->layers[l].weights[i]);
    for (uint32_t i = 0; i < net->n_buffers; i++)
        in->ops->memory->buffer_free(in->self, net->buffers[i]);
    soq__free(net->layers);
    *net = (struct soq__net){0};
}
