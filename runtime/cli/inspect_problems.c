/* What is wrong or unusual in a GGUF file that opens: types the runtime cannot compute with, metadata that contradicts itself.
 */
#include "cli/inspect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/hparams.h"

struct check {
    const struct soq__gguf *g;
    soq__inspect_report_fn *report;
    void *context;
    size_t problems;
};

SOQ_PRINTF(3, 4) static void say(struct check *c, bool is_problem, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    c->report(c->context, is_problem, text);
    c->problems += is_problem;
}

static void check_architecture(struct check *c)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf_str name;

    if (soq__gguf_string(c->g, "general.architecture", &name, &err))
        say(c, true, "%s", err.text);
}

/* What the runtime would refuse. Vocabularies, adapters and projectors have no such layers: they are no models of their own. */
static void check_hparams(struct check *c)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__hparams hparams;

    if (soq__gguf_tensor_find(c->g, "blk.0.attn_norm.weight") && soq__gguf_find(c->g, "general.architecture") &&
        soq__hparams_read(c->g, &hparams, &err))
        say(c, true, "%s", err.text);
}

static void check_floats(struct check *c)
{
    for (size_t i = 0; i < soq__gguf_n_kv(c->g); i++) {
        const struct soq__gguf_kv *kv = soq__gguf_kv_at(c->g, i);

        for (uint64_t j = 0; j < kv->count; j++)
            if (!isfinite(soq__gguf_float_at(kv, j))) {
                say(c, true, "key '%.*s': item %llu is %g", (int)kv->key.len, kv->key.data, (unsigned long long)j,
                    soq__gguf_float_at(kv, j));
                break;
            }
    }
}

/* Vocabulary tables have one item for each token, and special tokens exist. */
static void check_vocabulary(struct check *c)
{
    static const char *const tables[] = {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"};
    const struct soq__gguf_kv *tokens = soq__gguf_find(c->g, "tokenizer.ggml.tokens");

    if (!tokens)
        return;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        const struct soq__gguf_kv *table = soq__gguf_find(c->g, tables[i]);

        if (table && table->count != tokens->count)
            say(c, true, "key '%s' has %llu items for %llu tokens", tables[i], (unsigned long long)table->count,
                (unsigned long long)tokens->count);
    }
    for (size_t i = 0; i < soq__gguf_n_kv(c->g); i++) {
        static const char prefix[] = "tokenizer.ggml.", suffix[] = "_token_id";
        const struct soq__gguf_kv *kv = soq__gguf_kv_at(c->g, i);
        size_t len = kv->key.len;

        if (len < sizeof prefix + sizeof suffix || strncmp(kv->key.data, prefix, sizeof prefix - 1) != 0 ||
            memcmp(kv->key.data + len - sizeof suffix + 1, suffix, sizeof suffix - 1) != 0)
            continue;
        if ((uint64_t)soq__gguf_int_at(kv, 0) >= tokens->count)
            say(c, true, "key '%.*s' is %lld, but there are %llu tokens", (int)len, kv->key.data,
                (long long)soq__gguf_int_at(kv, 0), (unsigned long long)tokens->count);
    }
}

static void check_embedding(struct check *c)
{
    const struct soq__gguf_kv *tokens = soq__gguf_find(c->g, "tokenizer.ggml.tokens");
    const struct soq__gguf_tensor *embedding = soq__gguf_tensor_find(c->g, "token_embd.weight");

    if (!soq__gguf_n_tensors(c->g))
        say(c, false, "no tensors: metadata or a vocabulary only");
    if (embedding && tokens && embedding->ne[1] != tokens->count)
        say(c, embedding->ne[1] < tokens->count, "tensor 'token_embd.weight' has %llu rows for %llu tokens",
            (unsigned long long)embedding->ne[1], (unsigned long long)tokens->count);
    if (embedding && !soq__gguf_tensor_find(c->g, "output.weight"))
        say(c, false, "no tensor 'output.weight': the embedding is used for the output too");
}

static void check_types(struct check *c)
{
    for (size_t i = 0; i < soq__gguf_n_tensors(c->g); i++) {
        const struct soq__gguf_tensor *t = soq__gguf_tensor_at(c->g, i);

        if (!t->dtype)
            say(c, true, "tensor '%.*s' has the unknown type id %u", (int)t->name.len, t->name.data, t->type);
        else if (!t->dtype->supported)
            say(c, true, "tensor '%.*s' has the unsupported type %s", (int)t->name.len, t->name.data, t->dtype->name);
    }
}

/* Space that belongs to no tensor, apart from padding. */
static void check_layout(struct check *c)
{
    uint64_t end = soq__gguf_data_offset(c->g), size = soq__gguf_size(c->g), alignment = soq__gguf_alignment(c->g);
    uint64_t used = soq__inspect_total(c->g, UINT32_MAX).bytes;

    for (size_t i = 0; i < soq__gguf_n_tensors(c->g); i++) {
        const struct soq__gguf_tensor *t = soq__gguf_tensor_at(c->g, i);

        if (!t->dtype)
            return; /* of unknown size */
        if (t->offset + t->bytes > end)
            end = t->offset + t->bytes;
    }
    if (size > end && size - end >= alignment)
        say(c, false, "%llu bytes follow the last tensor", (unsigned long long)(size - end));
    if (end - soq__gguf_data_offset(c->g) - used >= alignment * (soq__gguf_n_tensors(c->g) + 1))
        say(c, false, "%llu bytes between tensors are not used",
            (unsigned long long)(end - soq__gguf_data_offset(c->g) - used));
}

size_t soq__inspect_problems(const struct soq__gguf *g, soq__inspect_report_fn *report, void *context)
{
    struct check c = {.g = g, .report = report, .context = context};

    check_architecture(&c);
    check_hparams(&c);
    check_floats(&c);
    check_vocabulary(&c);
    check_embedding(&c);
    check_types(&c);
    check_layout(&c);
    return c.problems;
}

struct soq__inspect_total soq__inspect_total(const struct soq__gguf *g, uint32_t type)
{
    struct soq__inspect_total total = {0};

    for (size_t i = 0; i < soq__gguf_n_tensors(g); i++) {
        const struct soq__gguf_tensor *t = soq__gguf_tensor_at(g, i);

        if (type != UINT32_MAX && t->type != type)
            continue;
        total.tensors++;
        total.elements += t->elements;
        total.bytes += t->bytes;
    }
    return total;
}
