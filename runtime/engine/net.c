/* Putting a model on its backends: placement of ops, weights, activation tensors, RoPE frequencies. */
#include "engine/net.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/place.h"

/* ---- Placement ----------------------------------------------------------------------------------------------------------- */

static const char *tensor_name(const struct soq__gguf_tensor *t, char buf[SOQ__GGUF_MAX_NAME + 1])
{
    memcpy(buf, t->name.data, t->name.len);
    buf[t->name.len] = '\0';
    return buf;
}

static int place_weight(struct soq__placement *pl, uint32_t home, const struct soq__gguf_tensor *t, struct soq_op_desc desc,
                        struct soq__weight *out, struct soq_error *err)
{
    char name[SOQ__GGUF_MAX_NAME + 1];

    desc.struct_size = sizeof desc;
    return soq__place(pl, home, tensor_name(t, name), &desc, &out->at, err);
}

static struct soq_op_desc matmul_desc(const struct soq__gguf_tensor *t)
{
    return (struct soq_op_desc){
        .op = SOQ_OP_MATMUL, .weight_dtype = t->type, .rows = (uint32_t)t->ne[1], .cols = (uint32_t)t->ne[0]};
}

static int place_op(struct soq__placement *pl, uint32_t home, struct soq_op_desc desc, struct soq__op_places *places,
                    struct soq_error *err)
{
    uint32_t at;
    int rc;

    desc.struct_size = sizeof desc;
    rc = soq__place(pl, home, NULL, &desc, &at, err);
    if (rc)
        return rc;
    places->at[desc.op] = (uint8_t)at;
    places->placed |= 1u << desc.op;
    return 0;
}

/* What attention has to do for a policy; NULL: in a layer with the model's own window. */
static uint32_t policy_flags(const struct soq__kv_policy *policy)
{
    const struct soq_kv_plan *plan = policy ? &policy->plan : NULL;
    uint32_t flags = 0;

    if (!plan || plan->window)
        flags |= SOQ_OPDESC_WINDOW;
    if (plan && plan->sinks && (plan->window || plan->slot_positions))
        flags |= SOQ_OPDESC_SEGMENTS;
    if (plan && plan->slot_positions)
        flags |= SOQ_OPDESC_ROTATE;
    if (plan && plan->needs & SOQ_NEED_MASS)
        flags |= SOQ_OPDESC_MASS;
    if (plan && plan->needs & SOQ_NEED_SELECTION)
        flags |= SOQ__OPDESC_SELECTS;
    return flags;
}

/* The policy that rules a kv head in a view; NULL: none, since the layer has a window of the model's own. */
static const struct soq__kv_policy *policy_of(const struct soq__net_params *p, enum soq__kv_view view, uint32_t layer,
                                              uint32_t head)
{
    const struct soq__hparams *hp = &p->model->hparams;

    return soq__layer_is_windowed(hp, layer) ? NULL
                                             : &p->policies->kv[p->policies->of[view][(size_t)layer * hp->n_kv_heads + head]];
}

/* ... and whether it picks the entries of its own. */
static bool selects(const struct soq__kv_policy *policy)
{
    return policy && soq__kv_selects(policy);
}

/* The full view tells the mass that a policy of the lossy one wants. */
static bool tells_other(const struct soq__net_params *p, enum soq__kv_view view, uint32_t layer, uint32_t head)
{
    const struct soq__kv_policy *other =
        view == SOQ__KV_FULL && p->policies->of[SOQ__KV_LOSSY] ? policy_of(p, SOQ__KV_LOSSY, layer, head) : NULL;

    return other && soq__kv_weighs(other);
}

/* Attention in a layer: all that any of its heads needs, and the fewest heads that one call has. */
static struct soq_op_desc attention_of(const struct soq__net_params *p, enum soq__kv_view view, uint32_t layer)
{
    const struct soq__hparams *hp = &p->model->hparams;
    struct soq_op_desc desc = {.n_kv_heads = hp->n_kv_heads, .flags = hp->attn_softcap > 0 ? (uint32_t)SOQ_OPDESC_SOFTCAP : 0};

    for (uint32_t h = 0; h < hp->n_kv_heads; h++) {
        const struct soq__kv_policy *policy = policy_of(p, view, layer, h);

        desc.flags |= policy_flags(policy) | (tells_other(p, view, layer, h) ? SOQ_OPDESC_MASS : 0u);
        if ((policy && policy->plan.needs & SOQ_NEED_HEAD_BUDGETS) || policy != policy_of(p, view, layer, 0))
            desc.n_kv_heads = 1;
    }
    desc.n_heads = hp->n_heads / hp->n_kv_heads * desc.n_kv_heads;
    return desc;
}

static void blame_codecs(const struct soq__net_params *p, enum soq__kv_view view, uint32_t layer, struct soq_error *err)
{
    struct soq__kv_codec_origin k = soq__kv_codec_origin(p->layout, view, layer, SOQ_PLANE_KEY);
    struct soq__kv_codec_origin v = soq__kv_codec_origin(p->layout, view, layer, SOQ_PLANE_VALUE);

    soq__fail_prefix(err,
                     "keys by [%s] %s = %s, values by [%s] %s = %s: packed blocks need more of a backend than attention; "
                     "another one of [backend] use may have it, else use the codec f16: layer %u",
                     k.section, k.key, k.value, v.section, v.key, v.value, layer);
}

/* Attention and append go together: who attends holds the layer's cache. */
static int place_attention(struct soq__placement *pl, const struct soq__net_params *p, enum soq__kv_view view, uint32_t layer,
                           struct soq__net_layer *l, struct soq_error *err)
{
    const struct soq__hparams *hp = &p->model->hparams;
    const char *section = soq__kv_section(view);
    struct soq_op_desc desc = attention_of(p, view, layer);
    struct soq__kv_group_layout stored = {0};
    uint32_t head = 0;
    int rc = soq__kv_planes_init(&stored, p->layout, view, layer, err);

    if (rc)
        return rc;
    desc.struct_size = sizeof desc;
    desc.op = SOQ_OP_ATTENTION;
    desc.head_dim_k = hp->head_dim_k;
    desc.head_dim_v = hp->head_dim_v;
    desc.key_format = stored.planes[0].format.kind;
    desc.key_dtype = stored.planes[0].format.dtype;
    desc.value_format = stored.planes[1].format.kind;
    desc.value_dtype = stored.planes[1].format.dtype;
    desc.packed_key = stored.packs ? &stored.packed[0].format : NULL;
    desc.packed_value = stored.packs ? &stored.packed[1].format : NULL;
    rc = soq__place(pl, l->home, view == SOQ__KV_FULL ? NULL : "lossy.attention", &desc, &l->views[view].at, err);
    if (rc && stored.packs)
        blame_codecs(p, view, layer, err);
    while (head < hp->n_kv_heads && !selects(policy_of(p, view, layer, head)))
        head++;
    if (rc && head < hp->n_kv_heads)
        soq__fail_prefix(err,
                         "[%s] policy = %s selects entries, which needs more of a backend than attention; another one of "
                         "[backend] use may have it, else use the policy full or window: layer %u",
                         section, policy_of(p, view, layer, head)->name, layer);
    return rc;
}

/* Over each view. What is placed where is told of the full one. */
static int place_views(struct soq__placement *pl, const struct soq__net_params *p, uint32_t layer, struct soq__net_layer *l,
                       struct soq_error *err)
{
    int rc = 0;

    for (int view = 0; !rc && view < SOQ__KV_VIEWS; view++)
        if (p->policies->of[view])
            rc = place_attention(pl, p, (enum soq__kv_view)view, layer, l, err);
    l->places.at[SOQ_OP_ATTENTION] = l->places.at[SOQ_OP_KV_APPEND] = (uint8_t)l->views[SOQ__KV_FULL].at;
    l->places.placed |= 1u << SOQ_OP_ATTENTION | 1u << SOQ_OP_KV_APPEND;
    return rc;
}

static int place_layer(struct soq__net *net, struct soq__placement *pl, const struct soq__net_params *p, uint32_t l,
                       struct soq_error *err)
{
    const struct soq__model *m = net->model;
    const struct soq__arch *arch = m->hparams.arch;
    struct soq__net_layer *layer = &net->layers[l];
    const struct soq_op_desc ops[] = {
        {.op = SOQ_OP_ROPE, .kind = arch->rope, .head_dim_k = m->hparams.head_dim_k},
        {.op = SOQ_OP_ACTIVATION, .kind = arch->activation},
        {.op = SOQ_OP_ADD},
    };
    int rc = 0;

    layer->home = pl->home[l];
    for (int i = 0; !rc && i < SOQ__N_LAYER_TENSORS; i++) {
        const struct soq__gguf_tensor *t = m->layers[l].tensors[i];
        struct soq_op_desc norm = {.op = SOQ_OP_NORM, .kind = arch->norm};

        if (t)
            rc = place_weight(pl, layer->home, t, soq__layer_tensors[i].use == SOQ_USE_VECTOR ? norm : matmul_desc(t),
                              &layer->weights[i], err);
    }
    for (size_t i = 0; !rc && i < sizeof ops / sizeof ops[0]; i++)
        rc = place_op(pl, layer->home, ops[i], &layer->places, err);
    return rc ? rc : place_views(pl, p, l, layer, err);
}

/* Before the first layer and after the last: at the homes of these. */
static int place_ends(struct soq__net *net, struct soq__placement *pl, struct soq_error *err)
{
    const struct soq__model *m = net->model;
    uint32_t first = pl->home[0], last = pl->home[m->hparams.n_layers - 1];
    const struct soq__gguf_tensor *head = m->output ? m->output : m->token_embd;
    int rc = place_weight(pl, first, m->token_embd,
                          (struct soq_op_desc){.op = SOQ_OP_EMBED, .weight_dtype = m->token_embd->type}, &net->embd, err);

    if (!rc)
        rc = place_weight(pl, last, m->output_norm, (struct soq_op_desc){.op = SOQ_OP_NORM, .kind = m->hparams.arch->norm},
                          &net->output_norm, err);
    if (!rc)
        rc = place_weight(pl, last, head, matmul_desc(head), &net->output, err);
    if (!rc)
        rc = place_op(pl, first, (struct soq_op_desc){.op = SOQ_OP_ROPE_TABLE}, &net->places, err);
    if (!rc)
        rc = place_op(pl, last, (struct soq_op_desc){.op = SOQ_OP_GATHER}, &net->places, err);
    if (!rc && m->hparams.logit_softcap > 0)
        rc = place_op(pl, last, (struct soq_op_desc){.op = SOQ_OP_SCALE}, &net->places, err);
    return rc;
}

int soq__net_place(struct soq__net *net, const struct soq__net_params *p, struct soq_error *err)
{
    struct soq__placement pl;
    int rc;

    *net = (struct soq__net){.model = p->model, .exec = p->exec};
    net->layers = soq__alloc_zero(p->model->hparams.n_layers, sizeof *net->layers);
    if (!net->layers)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for %u layers", p->model->hparams.n_layers);
    rc = soq__placement_init(&pl, p->exec, p->model->hparams.n_layers, err);
    if (rc)
        return rc;
    rc = place_ends(net, &pl, err);
    for (uint32_t l = 0; !rc && l < p->model->hparams.n_layers; l++)
        rc = place_layer(net, &pl, p, l, err);
    if (!rc)
        rc = soq__placement_check_used(&pl, err);
    soq__placement_done(&pl);
    return rc;
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------- */

struct loader {
    struct soq__net *net;
    const struct soq__net_params *params;
    uint64_t done, total; /* bytes */
    struct soq_error *err;
};

/* Prepares a tensor on the instance that w->at names. last: nobody needs the file's pages after it. */
static int prepare(struct loader *ld, const struct soq__gguf_tensor *t, uint32_t uses, struct soq__weight *w, bool last)
{
    const struct soq__instance *in = &ld->net->exec->instances[w->at];
    struct soq_weight_info info = {.struct_size = sizeof info};
    char name[SOQ__GGUF_MAX_NAME + 1];
    struct soq_weight_desc desc = {
        .struct_size = sizeof desc,
        .dtype = t->type,
        .name = tensor_name(t, name),
        .data = t->data,
        .bytes = t->bytes,
        .rows = (uint32_t)t->ne[1],
        .cols = (uint32_t)t->ne[0],
        .uses = uses,
        .may_repack = SOQ_REPACK_ALLOWED | (soq__gguf_mapped(ld->net->model->gguf) ? SOQ_REPACK_DROPS : 0),
        .n_shards = 1,
    };
    int rc = in->ops->memory->weight_prepare(in->self, &desc, &info, ld->err);

    if (rc) {
        soq__fail_prefix(ld->err, "%s: tensor %s", soq__gguf_path(ld->net->model->gguf), name);
        return rc;
    }
    w->handle = info.weight;
    ld->net->weight_bytes += info.bytes;
    if (last && !(info.flags & SOQ_WEIGHT_KEEPS_SOURCE))
        soq__gguf_tensor_drop(ld->net->model->gguf, t);
    ld->done += t->bytes;
    if (ld->params->progress && ld->params->progress(ld->params->progress_arg, ld->done, ld->total))
        return soq__fail(ld->err, SOQ_ECANCELLED, "loading was cancelled");
    return 0;
}

/* A tied embedding is held once where one instance looks up and multiplies, else once on each. */
static int load_embedding(struct loader *ld)
{
    const struct soq__model *m = ld->net->model;
    struct soq__net *net = ld->net;
    int rc;

    if (!m->output && net->embd.at == net->output.at) {
        rc = prepare(ld, m->token_embd, SOQ_USE_EMBED | SOQ_USE_MATMUL, &net->embd, true);
        net->output.handle = net->embd.handle;
        return rc;
    }
    rc = prepare(ld, m->token_embd, SOQ_USE_EMBED, &net->embd, m->output != NULL);
    return rc ? rc : prepare(ld, m->output ? m->output : m->token_embd, SOQ_USE_MATMUL, &net->output, true);
}

static int load_layer(struct loader *ld, uint32_t l, const struct soq__kv_layout *layout)
{
    const struct soq__model *m = ld->net->model;
    struct soq__net_layer *layer = &ld->net->layers[l];
    int rc = 0;

    for (uint32_t view = 0; view < layout->n_views; view++)
        layer->views[view].parts = soq__kv_parts(layout, view, l, &layer->views[view].n_parts);
    layer->windowed = soq__layer_is_windowed(&m->hparams, l);
    for (int i = 0; !rc && i < SOQ__N_LAYER_TENSORS; i++)
        if (m->layers[l].tensors[i])
            rc = prepare(ld, m->layers[l].tensors[i], soq__layer_tensors[i].use, &layer->weights[i], true);
    return rc;
}

static int load_weights(struct soq__net *net, const struct soq__net_params *params, const struct soq__kv_layout *layout,
                        struct soq_error *err)
{
    const struct soq__model *m = net->model;
    struct loader ld = {.net = net, .params = params, .err = err};
    int rc;

    for (size_t i = 0; i < soq__gguf_n_tensors(m->gguf); i++)
        ld.total += soq__gguf_tensor_at(m->gguf, i)->bytes;
    rc = load_embedding(&ld);
    if (!rc)
        rc = prepare(&ld, m->output_norm, SOQ_USE_VECTOR, &net->output_norm, true);
    for (uint32_t l = 0; !rc && l < m->hparams.n_layers; l++)
        rc = load_layer(&ld, l, layout);
    return rc;
}

/* ---- Tensors ------------------------------------------------------------------------------------------------------------- */

static int make_rope(struct soq__net *net, const struct soq__rope_params *rope, uint32_t max_rows, struct soq__rope_view *out,
                     struct soq_error *err)
{
    float *inv_freq = soq__alloc_array(rope->n_rot / 2, sizeof(float));
    int rc;

    if (!inv_freq)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for RoPE frequencies");
    soq__rope_frequencies(rope, inv_freq, &out->mscale);
    rc = soq__exec_tensor_create(net->exec, 1, rope->n_rot / 2, &out->inv_freq, err);
    if (!rc)
        rc = soq__exec_tensor_write(net->exec, out->inv_freq, inv_freq, err);
    if (!rc)
        rc = soq__exec_tensor_create(net->exec, max_rows, rope->n_rot, &out->table, err);
    soq__free(inv_freq);
    return rc;
}

static int make_tensors(struct soq__net *net, const struct soq__net_params *p, struct soq_error *err)
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
        rc = soq__exec_tensor_create(net->exec, wanted[i].rows, hp->dim[wanted[i].cols], wanted[i].view, err);
    if (!rc)
        rc = make_rope(net, &hp->rope, p->max_rows, &net->rope[0], err);
    if (!rc && hp->window)
        rc = make_rope(net, &hp->window_rope, p->max_rows, &net->rope[1], err);
    return rc;
}

/* ---- Life ---------------------------------------------------------------------------------------------------------------- */

int soq__net_load(struct soq__net *net, const struct soq__net_params *params, const struct soq__kv_layout *layout,
                  struct soq_error *err)
{
    int rc = make_tensors(net, params, err);

    return rc ? rc : load_weights(net, params, layout, err);
}

static void free_weight(const struct soq__net *net, struct soq__weight w)
{
    const struct soq__instance *in = &net->exec->instances[w.at];

    if (w.handle)
        in->ops->memory->weight_free(in->self, w.handle);
}

void soq__net_done(struct soq__net *net)
{
    bool tied_once = net->output.at == net->embd.at && net->output.handle == net->embd.handle;

    if (!net->exec)
        return;
    if (!tied_once)
        free_weight(net, net->output);
    free_weight(net, net->embd);
    free_weight(net, net->output_norm);
    for (uint32_t l = 0; net->layers && l < net->model->hparams.n_layers; l++)
        for (int i = 0; i < SOQ__N_LAYER_TENSORS; i++)
            free_weight(net, net->layers[l].weights[i]);
    soq__exec_tensors_free(net->exec);
    soq__free(net->layers);
    *net = (struct soq__net){0};
}
