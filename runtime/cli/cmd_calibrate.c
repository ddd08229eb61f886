/* `soquete calibrate`: what the keys and values of a model look like, in a file that codecs read (soquete/calibration.h).
 *
 * The model runs over the text in chunks, each from an empty cache, which holds f32. Of every chunk the first token is left
 * out: its keys and values are unlike all others, and all rows attend to it. Weights of sensitivity are the attention that an
 * entry got in its chunk, summed over rows and query heads: the paper weighs by the diagonal of the Fisher information, squared
 * gradients of the loss, and there is no backward pass here. Layers whose attention is not counted, those with a window of
 * the model's own, weigh all alike. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/outfile.h"
#include "cli/calibration.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/job.h"
#include "cli/load.h"
#include "cli/out.h"
#include "cli/term.h"
#include "kv/read.h"
#include "model/fingerprint.h"

struct calibrate_options {
    const char *file, *out;
    int64_t context, tokens;
};

#define ROW(type, field, ...) SOQ__VALUE(type, struct calibrate_options, field, __VA_ARGS__)

static const struct soq__opt opts[] = {
    SOQ__MODEL_OPTION,
    ROW(SOQ__OPT_TEXT, file, "file", 'f', "FILE", "The text; the default is standard input."),
    ROW(SOQ__OPT_TEXT, out, "out", 'o', "FILE", "The calibration file to write; an old one is replaced."),
    ROW(SOQ__OPT_INT, context, "context", 'c', "N", "Tokens of a chunk; the default is 512.", .min = 16, .max = 1 << 20),
    ROW(SOQ__OPT_INT, tokens, "tokens", 0, "N",
        "Look at the first N tokens, in whole chunks; the default is 4096. Their keys and values are held as f32.", .min = 16,
        .max = 1 << 24),
    SOQ__THREADS_OPTION,
};

static const struct soq__usage usage = {
    .command = "calibrate",
    .args = "",
    .about = "Runs the model over a text and writes what its keys and values look like: ranges and tables for the codec\n"
             "kvquant ([kv.kvquant] calibration = FILE). The same model and text give the same file.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

/* ---- Samples ------------------------------------------------------------------------------------------------------------- */

struct collection {
    const struct soq__engine *engine;
    struct soq__samples *heads; /* [n_layers][n_kv_heads] */
    size_t n_heads;             /* of all layers */
    size_t n, capacity;         /* tokens */
    uint32_t dim_k, dim_v;
    float *numbers; /* [chunk][dim_k or dim_v, whichever is more] */
    uint32_t chunk; /* tokens of a chunk */
    uint32_t n_layers, n_kv_heads;
};

static void collection_done(struct collection *c)
{
    for (size_t i = 0; c->heads && i < c->n_heads; i++) {
        soq__free(c->heads[i].keys);
        soq__free(c->heads[i].values);
        soq__free(c->heads[i].weights);
        soq__free(c->heads[i].positions);
    }
    soq__free(c->heads);
    soq__free(c->numbers);
}

static int collection_init(struct collection *c, const struct soq__engine *engine, size_t n_chunks, uint32_t chunk,
                           struct soq_error *err)
{
    const struct soq__hparams *hp = &engine->model->hparams;
    bool ok;

    *c = (struct collection){.engine = engine,
                             .n_heads = (size_t)hp->n_layers * hp->n_kv_heads,
                             .capacity = n_chunks * (chunk - 1),
                             .dim_k = hp->head_dim_k,
                             .dim_v = hp->head_dim_v,
                             .chunk = chunk,
                             .n_layers = hp->n_layers,
                             .n_kv_heads = hp->n_kv_heads};
    c->heads = soq__alloc_zero(c->n_heads, sizeof *c->heads);
    c->numbers = soq__alloc_array(chunk, (c->dim_k > c->dim_v ? c->dim_k : c->dim_v) * sizeof *c->numbers);
    ok = c->heads && c->numbers;
    for (size_t i = 0; ok && i < c->n_heads; i++) {
        struct soq__samples *s = &c->heads[i];

        s->keys = soq__alloc_array(c->capacity, c->dim_k * sizeof *s->keys);
        s->values = soq__alloc_array(c->capacity, c->dim_v * sizeof *s->values);
        s->weights = soq__alloc_array(c->capacity, sizeof *s->weights);
        s->positions = soq__alloc_array(c->capacity, sizeof *s->positions);
        ok = s->keys && s->values && s->weights && s->positions;
    }
    return ok ? 0
              : soq__fail(err, SOQ_ENOMEM, "out of memory for the keys and values of %zu tokens; see --tokens", c->capacity);
}

/* One head of a layer: entries 1 ... chunk - 1. */
static int collect_head(struct collection *c, const struct soq__kv_seq *seq, uint32_t layer, uint32_t head,
                        struct soq_error *err)
{
    struct soq__samples *s = &c->heads[(size_t)layer * c->n_kv_heads + head];
    const uint64_t *mass = soq__kv_mass_of(seq, layer, head);
    size_t rows = c->chunk - 1;
    int rc = soq__kv_read(seq, layer, head, 0, c->numbers, err);

    if (rc)
        return rc;
    memcpy(s->keys + c->n * c->dim_k, c->numbers + c->dim_k, rows * c->dim_k * sizeof *s->keys);
    rc = soq__kv_read(seq, layer, head, 1, c->numbers, err);
    if (rc)
        return rc;
    memcpy(s->values + c->n * c->dim_v, c->numbers + c->dim_v, rows * c->dim_v * sizeof *s->values);
    for (uint32_t i = 1; i < c->chunk; i++) {
        s->weights[c->n + i - 1] = mass ? (double)mass[i] / (double)SOQ_MASS_ONE : 1;
        s->positions[c->n + i - 1] = i;
    }
    return 0;
}

static int collect_chunk(struct collection *c, struct soq__sequence *seq, const int32_t *tokens, struct soq_error *err)
{
    struct soq__job job;
    int rc = soq__sequence_rollback(seq, 0, err);

    if (!rc)
        rc = soq__job_init(&job, seq, tokens, c->chunk, err);
    if (!rc)
        rc = soq__job_run(&job, err);
    for (size_t i = 0; !rc && i < c->n_heads; i++)
        rc = collect_head(c, &seq->kv, (uint32_t)(i / c->n_kv_heads), (uint32_t)(i % c->n_kv_heads), err);
    c->n += rc ? 0 : c->chunk - 1;
    return rc;
}

static int collect(struct collection *c, struct soq_model *model, int32_t *tokens, size_t n_chunks, struct soq_error *err)
{
    struct soq__sequence *seq;
    int rc = soq__sequence_create(model->engine, &seq, err);

    if (rc)
        return rc;
    for (size_t i = 0; !rc && i < n_chunks; i++) {
        int32_t *chunk = tokens + i * c->chunk;

        soq__input_begin_chunk(model->model->tokenizer, chunk);
        rc = collect_chunk(c, seq, chunk, err);
        if (!rc)
            soq__progress("chunk %zu of %zu", i + 1, n_chunks);
    }
    soq__progress_clear();
    soq__sequence_free(seq);
    return rc;
}

/* ---- The file ------------------------------------------------------------------------------------------------------------ */

static int compute(const struct collection *c, const struct soq_calibration_header *header, float *layers,
                   struct soq_error *err)
{
    uint64_t floats = soq_calibration_layer_floats(header);
    int rc = 0;

    for (uint32_t l = 0; !rc && l < c->n_layers; l++) {
        bool windowed = soq__layer_is_windowed(&c->engine->model->hparams, l);
        struct soq__calibration_layer layer = {
            .heads = c->heads + (size_t)l * c->n_kv_heads, .n = c->n, .shape = &c->engine->codecs.shapes[windowed].shape};

        soq__progress("layer %u of %u", l + 1, c->n_layers);
        rc = soq__calibrate_layer(&layer, header, layers + l * floats, err);
    }
    soq__progress_clear();
    return rc;
}

static int write_file(const char *path, const struct soq_calibration_header *header, const float *layers, struct soq_error *err)
{
    struct soq__outfile file;
    int rc = soq__outfile_open(&file, path, err);

    if (rc)
        return rc;
    rc = soq__outfile_write(&file, header, sizeof *header, err);
    if (!rc)
        rc = soq__outfile_write(&file, layers, header->n_layers * soq_calibration_layer_floats(header) * sizeof *layers, err);
    if (!rc)
        rc = soq__outfile_commit(&file, err);
    soq__outfile_discard(&file);
    return rc;
}

static int finish(const struct collection *c, const char *path, struct soq_error *err)
{
    struct soq_calibration_header header = {.version = SOQ_CALIBRATION_VERSION,
                                            .n_layers = c->n_layers,
                                            .n_kv_heads = c->n_kv_heads,
                                            .head_dim = c->dim_k,
                                            .n_tokens = c->n};
    float *layers = soq__alloc_array(c->n_layers, soq_calibration_layer_floats(&header) * sizeof *layers);
    struct soq__hash fingerprint;
    int rc = layers ? soq__model_fingerprint(c->engine->model->gguf, &fingerprint, err)
                    : soq__fail(err, SOQ_ENOMEM, "out of memory");

    if (!rc)
        rc = compute(c, &header, layers, err);
    if (!rc) {
        memcpy(header.magic, SOQ_CALIBRATION_MAGIC, sizeof header.magic);
        memcpy(header.fingerprint, fingerprint.bytes, sizeof header.fingerprint);
        header.checksum = soq_calibration_checksum(&header, layers);
        rc = write_file(path, &header, layers, err);
    }
    if (!rc)
        soq__out_printf("%s: %u layers, %zu tokens\n", path, c->n_layers, c->n);
    soq__free(layers);
    return rc;
}

/* ---- The command --------------------------------------------------------------------------------------------------------- */

/* What layers have of their own might drop or change entries. */
static int refuse_layers(const struct soq__settings *settings, struct soq_error *err)
{
    const struct soq__setting *s;

    for (size_t i = 0; (s = soq__settings_at(settings, i)); i++)
        if (strcmp(s->section, "kv.layers") == 0)
            return soq__fail(err, SOQ_EINVAL,
                             "[kv.layers] %s = %s: calibrate looks at all layers in a full cache of f32; take that key out, or "
                             "name a configuration without it with --config",
                             s->spec.option.key, s->value.text);
    return 0;
}

/* A cache of f32 that counts attention and drops nothing. */
static int configure(struct soq_runtime *runtime, int64_t context, struct soq_error *err)
{
    char capacity[24];
    const char *const settings[][3] = {{"kv", "codec", "f32"},         {"kv", "codec_k", ""},
                                       {"kv", "codec_v", ""},          {"kv", "policy", "observed"},
                                       {"kv", "prefix_cache", "off"},  {"kv", "prefix_pin", ""},
                                       {"kv.observed", "ratio", "0"},  {"kv.observed", "capacity", capacity},
                                       {"decoding", "drafter", "none"}};
    int rc = refuse_layers(runtime->settings, err);

    snprintf(capacity, sizeof capacity, "%lld", (long long)context);
    for (size_t i = 0; !rc && i < sizeof settings / sizeof settings[0]; i++)
        rc = soq__settings_set(runtime->settings, settings[i][0], settings[i][1], settings[i][2], err);
    return rc;
}

static int calibrate(const struct calibrate_options *o, struct soq_model *model, struct soq_error *err)
{
    uint32_t window = model->engine->model->hparams.window;
    struct soq__ids ids = {0};
    struct collection c = {0};
    size_t n_chunks;
    int rc = soq__input_text_ids(o->file, model->model->tokenizer, &ids, err);

    if (!rc && window && o->context > window)
        rc = soq__fail(
            err, SOQ_EINVAL,
            "--context %lld: layers of the model have a window of %u tokens and let go of what lies before it; chunks "
            "must not be longer",
            (long long)o->context, window);
    if (!rc && o->context >= model->engine->context)
        rc = soq__fail(err, SOQ_EINVAL, "--context %lld: the model's context is %u; chunks must be shorter",
                       (long long)o->context, model->engine->context);
    n_chunks = (ids.n < (size_t)o->tokens ? ids.n : (size_t)o->tokens) / (size_t)o->context;
    if (!rc && !n_chunks)
        rc = soq__fail(err, SOQ_EINVAL, "%zu tokens are no chunk of %lld: give a longer text, or a smaller --context",
                       ids.n < (size_t)o->tokens ? ids.n : (size_t)o->tokens, (long long)o->context);
    if (!rc)
        rc = collection_init(&c, model->engine, n_chunks, (uint32_t)o->context, err);
    if (!rc)
        rc = collect(&c, model, ids.data, n_chunks, err);
    if (!rc)
        rc = finish(&c, o->out, err);
    collection_done(&c);
    soq__ids_done(&ids);
    return rc;
}

int soq__cmd_calibrate(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct calibrate_options options = {.context = 512, .tokens = 4096};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *runtime = NULL;
    struct soq_model *model = NULL;
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON) {
        soq__interrupt_catch();
        rc = soq__cli_runtime(&args, &runtime, &err);
        if (!rc && !options.out)
            rc = soq__fail(&err, SOQ_EINVAL, "no file to write to is named: --out FILE");
        if (!rc)
            rc = configure(runtime, options.context, &err);
        if (!rc)
            rc = soq__cli_model(runtime, 1, &model, &err);
        if (!rc)
            rc = calibrate(&options, model, &err);
        status = rc ? soq__cli_fail("calibrate", rc, &err) : SOQ_EXIT_OK;
    }
    soq_model_free(model);
    soq_runtime_free(runtime);
    soq__args_done(&args);
    return soq__out_finish("calibrate", status);
}
