/* `soquete perplexity`: exp of the mean negative log-likelihood that a model gives to a text.
 *
 * The text is cut into chunks of equal length, each computed from an empty cache and beginning with BOS where the vocabulary
 * adds one; tokens of the second half of a chunk are scored, so that each has at least half a chunk of context. These are the
 * rules of llama.cpp's tool, so that figures compare. The error is one standard error of the mean, carried through exp.
 *
 * The first half is a prompt of its own: a KV policy that selects does so at its end, and the second half sees what it kept.
 * Where nothing is dropped that changes no bit. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/job.h"
#include "cli/json_out.h"
#include "cli/load.h"
#include "cli/out.h"
#include "cli/term.h"

#define MAX_OUTPUTS 64 /* rows of logits in one step: enough to be quick, little memory for large vocabularies */

struct perplexity_options {
    const char *file;
    int64_t chunks, context;
    bool json;
};

#define ROW(type, field, ...) SOQ__VALUE(type, struct perplexity_options, field, __VA_ARGS__)

static const struct soq__opt opts[] = {
    SOQ__MODEL_OPTION,
    ROW(SOQ__OPT_TEXT, file, "file", 'f', "FILE", "The text; the default is standard input."),
    ROW(SOQ__OPT_INT, context, "context", 'c', "N", "Tokens of a chunk; the default is 512.", .min = 4, .max = 1 << 24),
    ROW(SOQ__OPT_INT, chunks, "chunks", 0, "N", "Stop after N chunks; 0: the whole text.", .min = 0, .max = 1 << 30),
    SOQ__THREADS_OPTION,
    SOQ__FLAG(struct perplexity_options, json, "json", 0, "One JSON object instead of a line of text."),
};

static const struct soq__usage usage = {
    .command = "perplexity",
    .args = "",
    .about = "Measures how well the model predicts a text: in chunks, the second half of each scored.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

struct score {
    const int32_t *tokens;   /* of the chunk */
    double sum, sum_squares; /* of negative log-likelihoods */
    uint64_t n_scored, n_chunks;
};

/* -log softmax(logits)[token] */
static double surprise(const float *logits, uint32_t n, int32_t token)
{
    float max = logits[0];
    double sum = 0;

    for (uint32_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)(logits[i] - max));
    return log(sum) - (double)(logits[token] - max);
}

static void on_logits(void *arg, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct score *s = arg;
    double nll = surprise(logits, n_vocab, s->tokens[position + 1]);

    s->sum += nll;
    s->sum_squares += nll * nll;
    s->n_scored++;
}

static double perplexity(const struct score *s)
{
    return exp(s->sum / (double)s->n_scored);
}

static double standard_error(const struct score *s)
{
    double n = (double)s->n_scored, mean = s->sum / n, variance = s->sum_squares / n - mean * mean;

    return s->n_scored > 1 && variance > 0 ? exp(mean) * sqrt(variance / (n - 1)) : 0;
}

/* Computes the chunk's first n tokens, as far as that has not been done. */
static int compute(struct soq__sequence *seq, struct score *s, uint32_t n, soq__on_logits *fn, struct soq_error *err)
{
    struct soq__job job;
    int rc = soq__job_init(&job, seq, s->tokens, n, err);

    if (rc)
        return rc;
    job.on_logits = fn;
    job.logits_from = seq->kv.n_committed;
    job.arg = s;
    return soq__job_run(&job, err);
}

/* The chunk's last token is only predicted. */
static int score_chunk(struct soq__sequence *seq, struct score *s, uint32_t n, struct soq_error *err)
{
    int rc = soq__sequence_rollback(seq, 0, err);

    if (!rc)
        rc = compute(seq, s, n / 2, NULL, err);
    if (!rc)
        rc = compute(seq, s, n - 1, on_logits, err);
    s->n_chunks += !rc;
    return rc;
}

static int score_text(struct soq_model *model, const struct perplexity_options *o, struct soq__ids *ids, struct score *s,
                      struct soq_error *err)
{
    size_t n = (size_t)o->context, n_chunks = ids->n / n;
    struct soq__sequence *seq;
    int rc;

    if (!n_chunks)
        return soq__fail(err, SOQ_EINVAL, "the text has %zu tokens, a chunk %zu: give a longer text or a smaller --context",
                         ids->n, n);
    if (o->chunks && (size_t)o->chunks < n_chunks)
        n_chunks = (size_t)o->chunks;
    rc = soq__sequence_create(model->engine, &seq, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < n_chunks && !rc; i++) {
        int32_t *chunk = ids->data + i * n;

        soq__input_begin_chunk(model->model->tokenizer, chunk);
        s->tokens = chunk;
        rc = score_chunk(seq, s, (uint32_t)n, err);
        if (!rc)
            soq__progress("chunk %zu of %zu  PPL %.4f", i + 1, n_chunks, perplexity(s));
    }
    soq__progress_clear();
    soq__sequence_free(seq);
    return rc;
}

static void print(const struct perplexity_options *o, const struct score *s, double seconds)
{
    double ppl = perplexity(s), error = standard_error(s), tokens = (double)s->n_chunks * (double)o->context;

    if (o->json)
        soq__json_line(json_pack("{so so sI sI sI so so}", "ppl", soq__json_number(ppl), "error", soq__json_number(error),
                                 "tokens", (json_int_t)s->n_scored, "chunks", (json_int_t)s->n_chunks, "context",
                                 (json_int_t)o->context, "seconds", soq__json_number(seconds), "tok_s",
                                 soq__json_number(tokens / seconds)));
    else
        soq__out_printf("PPL = %.4f +/- %.4f (%llu tokens, %llu chunks)\n", ppl, error, (unsigned long long)s->n_scored,
                        (unsigned long long)s->n_chunks);
}

static int measure(const struct perplexity_options *o, struct soq_model *model, struct soq_error *err)
{
    struct soq__ids ids = {0};
    struct score score = {0};
    double start;
    int rc = soq__input_text_ids(o->file, model->model->tokenizer, &ids, err);

    start = soq__clock_now();
    if (!rc)
        rc = score_text(model, o, &ids, &score, err);
    if (!rc)
        print(o, &score, soq__clock_now() - start);
    soq__ids_done(&ids);
    return rc;
}

int soq__cmd_perplexity(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct perplexity_options options = {.context = 512};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *runtime = NULL;
    struct soq_model *model = NULL;
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON) {
        soq__interrupt_catch();
        rc = soq__cli_runtime(&args, &runtime, &err);
        if (!rc)
            rc = soq__cli_no_prefixes(runtime, &err);
        if (!rc)
            rc = soq__cli_model(runtime, MAX_OUTPUTS, &model, &err);
        if (!rc)
            rc = measure(&options, model, &err);
        status = rc ? soq__cli_fail("perplexity", rc, &err) : SOQ_EXIT_OK;
    }
    soq_model_free(model);
    soq_runtime_free(runtime);
    soq__args_done(&args);
    return soq__out_finish("perplexity", status);
}
