/* Loading a model file: which tensors there must be, which shape they must have, and what may not be there. */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "model/vocab_gguf.h"
#include "text/jinja.h"

#define TEMPLATE_MAX ((size_t)1 << 20)

static bool shape_is(const struct soq__gguf_tensor *t, uint64_t rows, uint64_t cols)
{
    return t->ne[0] == cols && t->ne[1] == rows && t->ne[2] == 1 && t->ne[3] == 1;
}

/* Finds a tensor and checks its type and shape; vectors must be F32. */
static int need_tensor(const struct soq__model *m, const char *name, enum soq__dim rows, enum soq__dim cols, bool vector,
                       const struct soq__gguf_tensor **out, struct soq_error *err)
{
    const uint32_t *dim = m->hparams.dim;
    const struct soq__gguf_tensor *t;
    int rc = soq__gguf_tensor_need(m->gguf, name, &t, err);

    if (rc)
        return rc;
    if (!shape_is(t, dim[rows], dim[cols]))
        return soq__fail(err, SOQ_EINVAL,
                         "%s: tensor %s: shape [%llu, %llu, %llu, %llu] does not fit the hyperparameters, expected [%u, %u]",
                         soq__gguf_path(m->gguf), name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
                         (unsigned long long)t->ne[2], (unsigned long long)t->ne[3], dim[cols], dim[rows]);
    if (vector && t->type != SOQ_DTYPE_F32)
        return soq__fail(err, SOQ_EUNSUPPORTED, "%s: tensor %s: type %s, but norms must be F32", soq__gguf_path(m->gguf), name,
                         t->dtype->name);
    *out = t;
    return 0;
}

static int find_layer(struct soq__model *m, uint32_t layer, struct soq_error *err)
{
    for (int i = 0; i < SOQ__N_LAYER_TENSORS; i++) {
        const struct soq__tensor_spec *spec = &soq__layer_tensors[i];
        char name[96];
        int rc;

        if (spec->feature && !(m->hparams.arch->features & spec->feature))
            continue;
        snprintf(name, sizeof name, "blk.%u.%s", layer, spec->suffix);
        rc = need_tensor(m, name, spec->rows, spec->cols, spec->use == SOQ_USE_VECTOR, &m->layers[layer].tensors[i], err);
        if (rc)
            return rc;
    }
    return 0;
}

static int find_rope_freqs(struct soq__model *m, struct soq_error *err)
{
    const struct soq__gguf_tensor *t = soq__gguf_tensor_find(m->gguf, "rope_freqs.weight");
    const float *factor;

    if (!t)
        return 0;
    if (t->type != SOQ_DTYPE_F32 || t->elements != m->hparams.rope.n_rot / 2)
        return soq__fail(err, SOQ_EINVAL,
                         "%s: tensor rope_freqs.weight: expected %u F32 numbers, half of the rotated head size",
                         soq__gguf_path(m->gguf), m->hparams.rope.n_rot / 2);
    factor = t->data;
    for (uint64_t i = 0; i < t->elements; i++)
        if (!(factor[i] > 0.0f))
            return soq__fail(err, SOQ_EINVAL, "%s: tensor rope_freqs.weight: element %llu is %g, must be positive",
                             soq__gguf_path(m->gguf), (unsigned long long)i, (double)factor[i]);
    m->rope_freqs = t;
    m->hparams.rope.factors = factor;
    return 0;
}

static bool is_known(const struct soq__model *m, const struct soq__gguf_tensor *t)
{
    if (t == m->token_embd || t == m->output_norm || t == m->output || t == m->rope_freqs)
        return true;
    for (uint32_t l = 0; l < m->hparams.n_layers; l++)
        for (int i = 0; i < SOQ__N_LAYER_TENSORS; i++)
            if (m->layers[l].tensors[i] == t)
                return true;
    return false;
}

/* A tensor of a layer that the family's row does not know (a bias, an expert) changes the result: refused. Others are named in
 * a warning and left alone. */
static int check_unknown(const struct soq__model *m, struct soq_error *err)
{
    for (size_t i = 0; i < soq__gguf_n_tensors(m->gguf); i++) {
        const struct soq__gguf_tensor *t = soq__gguf_tensor_at(m->gguf, i);

        if (is_known(m, t))
            continue;
        if (t->name.len > 4 && memcmp(t->name.data, "blk.", 4) == 0)
            return soq__fail(err, SOQ_EUNSUPPORTED,
                             "%s: tensor %.*s: not part of family %s as this release knows it, and ignoring it would be wrong",
                             soq__gguf_path(m->gguf), (int)t->name.len, t->name.data, m->hparams.arch->name);
        soq__log(SOQ_LOG_WARN, "%s: tensor %.*s is unknown and not used", soq__gguf_path(m->gguf), (int)t->name.len,
                 t->name.data);
    }
    return 0;
}

static int find_tensors(struct soq__model *m, struct soq_error *err)
{
    int rc;

    m->layers = soq__alloc_zero(m->hparams.n_layers, sizeof *m->layers);
    if (!m->layers)
        return soq__fail(err, SOQ_ENOMEM, "%s: out of memory", soq__gguf_path(m->gguf));
    rc = need_tensor(m, "token_embd.weight", SOQ__DIM_VOCAB, SOQ__DIM_EMBD, false, &m->token_embd, err);
    if (!rc)
        rc = need_tensor(m, "output_norm.weight", SOQ__DIM_ONE, SOQ__DIM_EMBD, true, &m->output_norm, err);
    if (!rc && soq__gguf_tensor_find(m->gguf, "output.weight"))
        rc = need_tensor(m, "output.weight", SOQ__DIM_VOCAB, SOQ__DIM_EMBD, false, &m->output, err);
    for (uint32_t l = 0; !rc && l < m->hparams.n_layers; l++)
        rc = find_layer(m, l, err);
    if (!rc)
        rc = find_rope_freqs(m, err);
    if (!rc)
        rc = check_unknown(m, err);
    for (size_t i = 0; !rc && i < soq__gguf_n_tensors(m->gguf); i++)
        m->n_parameters += soq__gguf_tensor_at(m->gguf, i)->elements;
    return rc;
}

static int load_tokenizer(struct soq__model *m, struct soq_error *err)
{
    int rc;

    if (!soq__gguf_find(m->gguf, "tokenizer.ggml.model"))
        return 0;
    rc = soq__tokenizer_from_gguf(m->gguf, &m->tokenizer, err);
    if (rc)
        return rc;
    if ((uint32_t)soq__tokenizer_n_tokens(m->tokenizer) > m->hparams.dim[SOQ__DIM_VOCAB])
        return soq__fail(err, SOQ_EINVAL, "%s: tokenizer.ggml.tokens has %d tokens, but token_embd.weight only %u rows",
                         soq__gguf_path(m->gguf), soq__tokenizer_n_tokens(m->tokenizer), m->hparams.dim[SOQ__DIM_VOCAB]);
    return 0;
}

static int load_template(struct soq__model *m, const char *template_path, struct soq_error *err)
{
    struct soq_buf file = SOQ_BUF_INIT;
    struct soq__gguf_str text;
    int rc;

    if (template_path && template_path[0]) {
        rc = soq__file_read(template_path, TEMPLATE_MAX, &file, err);
        if (rc)
            soq__fail_prefix(err, "chat template");
        else if ((rc = soq__jinja_parse(soq__buf_str(&file), file.len, &m->chat_template, err)))
            soq__fail_prefix(err, "chat template %s", template_path);
        soq__buf_done(&file);
        return rc;
    }
    if (!soq__gguf_find(m->gguf, "tokenizer.chat_template"))
        return 0;
    rc = soq__gguf_string(m->gguf, "tokenizer.chat_template", &text, err);
    if (rc)
        return rc;
    rc = soq__jinja_parse(text.data, text.len, &m->chat_template, &m->template_error);
    if (rc == -SOQ_ENOMEM)
        return soq__fail(err, SOQ_ENOMEM, "%s: out of memory", soq__gguf_path(m->gguf));
    if (rc)
        soq__fail_prefix(&m->template_error, "%s: tokenizer.chat_template", soq__gguf_path(m->gguf));
    return 0;
}

int soq__model_load(const char *path, const char *template_path, struct soq__model **out, struct soq_error *err)
{
    struct soq__model *m = soq__alloc_zero(1, sizeof *m);
    int rc;

    if (!m)
        return soq__fail(err, SOQ_ENOMEM, "%s: out of memory", path);
    m->template_error = (struct soq_error)SOQ_ERROR_INIT;
    rc = soq__gguf_open(path, &m->gguf, err);
    if (!rc)
        rc = soq__hparams_read(m->gguf, &m->hparams, err);
    if (!rc)
        rc = find_tensors(m, err);
    if (!rc)
        rc = load_tokenizer(m, err);
    if (!rc)
        rc = load_template(m, template_path, err);
    if (rc) {
        soq__model_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void soq__model_free(struct soq__model *m)
{
    if (!m)
        return;
    soq__jinja_free(m->chat_template);
    soq__tokenizer_free(m->tokenizer);
    soq__free(m->layers);
    soq__gguf_close(m->gguf);
    soq__free(m);
}
