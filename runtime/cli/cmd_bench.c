/* `soquete bench`: prefill, decode, decode at depth, for one sequence or several at once.
 *
 * Prefill is timed from the request to the end of the prompt. Decode runs one token more than it counts and is timed from the
 * moment when every sequence has its first to the last, so that neither the prompt matters nor what a policy does at its end;
 * nothing is sampled but the best token. Several sequences are requests from several threads, which the engine computes in one
 * batch; they share no blocks, but what is in front of the decode tests is computed once and copied.
 *
 * The share of the memory bandwidth is (bytes of the weights that a step reads + bytes of its sequences' caches) x steps per
 * second / bandwidth; of the int8 peak 2 x multiply-adds of all matmuls / their seconds / peak, in one more repetition that
 * times each op on its own. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cpucount.h"
#include "base/error.h"
#include "cli/bench.h"
#include "cli/interrupt.h"
#include "cli/job.h"
#include "cli/load.h"
#include "cli/out.h"
#include "cli/term.h"
#include "config/settings.h"
#include "engine/session.h"

#define LIST_MAX 32
#define PARALLEL_MAX 256
#define TOKENS_MAX (1 << 24)

struct bench_options {
    int64_t gen, reps, parallel;
    const char *prompts, *depths, *format;
    bool json, no_memory, profile;
};

#define ROW(type, field, ...) SOQ__VALUE(type, struct bench_options, field, __VA_ARGS__)

static const struct soq__opt opts[] = {
    SOQ__MODEL_OPTION,
    ROW(SOQ__OPT_TEXT, prompts, "prompt", 'p', "LIST", "Tokens of the prefill tests; the default is 512; 0: leave them out."),
    ROW(SOQ__OPT_INT, gen, "gen", 'n', "N", "Tokens of the decode tests; the default is 128; 0: leave them out.", .min = 0,
        .max = TOKENS_MAX),
    ROW(SOQ__OPT_TEXT, depths, "depth", 'd', "LIST", "Tokens in front of the decode tests; the default is 0."),
    ROW(SOQ__OPT_INT, reps, "reps", 'r', "N", "Repetitions, after a warm-up that is dropped; the default is 3.", .min = 1,
        .max = SOQ__BENCH_REPS_MAX),
    ROW(SOQ__OPT_INT, parallel, "parallel", 0, "N", "Sequences at the same time; the default is 1.", .min = 1,
        .max = PARALLEL_MAX),
    SOQ__THREADS_OPTION,
    SOQ__CONTEXT_OPTION,
    ROW(SOQ__OPT_TEXT, format, "format", 0, "FORMAT", "table, csv, md or json (one object a line); the default is table."),
    SOQ__FLAG(struct bench_options, json, "json", 0, "The same as --format json."),
    SOQ__FLAG(struct bench_options, profile, "profile", 0,
              "Where the time of each test went, backend by backend and op by op."),
    SOQ__FLAG(struct bench_options, no_memory, "no-memory", 0,
              "Do not measure the machine: neither its memory nor its arithmetic."),
};

static const struct soq__usage usage = {
    .command = "bench",
    .args = "",
    .about =
        "Measures prefill and decode: mean, standard deviation and best of the repetitions, in tokens per second of all\n"
        "sequences together; for decode also the share of the machine's memory bandwidth that it reached, for prefill the\n"
        "share of its 8-bit arithmetic that the matmuls reached.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

struct bench {
    const struct bench_options *options;
    struct soq_model *model;
    struct soq__bench_report report;
    struct soq__sequence **seqs; /* [n_lanes] */
    struct soq__job *jobs;       /* [n_lanes] */
    uint32_t n_lanes;
    struct soq_buf filled; /* the cache of a sequence at the depth of the test in hand; empty: not yet known */
    int32_t *tokens;       /* [context] */
    double *times;         /* [n_lanes * context] when tokens came, of all sequences */
    size_t n_times;
    int64_t prompts[LIST_MAX], depths[LIST_MAX];
    size_t n_prompts, n_depths;
};

/* ---- Jobs */

/* Under the engine's lock. */
static int on_sampled(void *arg, const struct soq__job *job, int32_t token, struct soq_error *err)
{
    struct bench *b = arg;

    (void)token;
    (void)err;
    b->times[b->n_times++] = job->last_token;
    return 0;
}

/* The same job in every sequence: a prompt of n_prompt tokens, then n_gen more. */
static int run_lanes(struct bench *b, int64_t n_prompt, int64_t n_gen, struct soq_error *err)
{
    int rc = 0;

    b->n_times = 0;
    for (uint32_t i = 0; i < b->n_lanes && !rc; i++) {
        rc = soq__job_init(&b->jobs[i], b->seqs[i], b->tokens, (size_t)n_prompt, err);
        b->jobs[i].max_tokens = (uint32_t)n_gen;
        b->jobs[i].on_sampled = on_sampled;
        b->jobs[i].arg = b;
    }
    return rc ? rc : soq__jobs_run(b->jobs, b->n_lanes, err);
}

/* ---- What sequences hold before a test */

static int empty_lanes(struct bench *b, struct soq_error *err)
{
    int rc = 0;

    for (uint32_t i = 0; i < b->n_lanes && !rc; i++)
        rc = soq__sequence_rollback(b->seqs[i], 0, err);
    return rc;
}

static bool can_copy(const struct soq__engine *e)
{
    for (uint32_t i = 0; i < e->policies.n; i++)
        if (e->policies.kv[i].ops->traits & SOQ_POLICY_NO_SAVE)
            return false;
    return true;
}

/* The first sequence computes n tokens; b->filled becomes a copy of it. */
static int fill_first(struct bench *b, int64_t n, struct soq_error *err)
{
    int rc = soq__job_init(&b->jobs[0], b->seqs[0], b->tokens, (size_t)n, err);

    if (!rc)
        rc = soq__job_run(&b->jobs[0], err);
    return rc ? rc : soq__sequence_store(b->seqs[0], NULL, 0, &b->filled, err);
}

/* Every sequence holds the first n tokens in blocks of its own. They are computed once for all sequences and repetitions of a
 * test; where a policy forbids copies, by each of them every time. */
static int fill_lanes(struct bench *b, int64_t n, struct soq_error *err)
{
    struct soq_buf note = SOQ_BUF_INIT;
    int rc = empty_lanes(b, err);

    if (!rc && !can_copy(b->model->engine))
        return run_lanes(b, n, 0, err);
    if (!rc && !b->filled.len) {
        rc = fill_first(b, n, err);
        if (!rc)
            rc = empty_lanes(b, err);
    }
    for (uint32_t i = 0; i < b->n_lanes && !rc; i++)
        rc = soq__sequence_restore(b->seqs[i], b->filled.data, b->filled.len, &note, err);
    soq__buf_done(&note);
    return rc;
}

/* ---- Tests */

static int time_prefill(struct bench *b, const struct soq__bench_test *t, double *seconds_out, struct soq_error *err)
{
    double start = INFINITY, end = 0;
    int rc = empty_lanes(b, err);

    if (!rc)
        rc = run_lanes(b, t->tokens, 0, err);
    for (uint32_t i = 0; i < b->n_lanes; i++) {
        start = fmin(start, b->jobs[i].started);
        end = fmax(end, b->jobs[i].prompt_done);
    }
    *seconds_out = end - start;
    return rc;
}

/* Seconds for all tokens of the test, by the rate since every sequence has its first. Some were a step or two ahead then. */
static double decode_seconds(const struct bench *b, const struct soq__bench_test *t)
{
    double start = 0, end = 0;
    size_t n = 0;

    for (uint32_t i = 0; i < b->n_lanes; i++) {
        start = fmax(start, b->jobs[i].first_token);
        end = fmax(end, b->jobs[i].last_token);
    }
    for (size_t i = 0; i < b->n_times; i++)
        n += b->times[i] > start;
    return (end - start) * (double)(t->tokens * t->parallel) / (double)n;
}

/* All but the last token of the depth are there, so that all sequences begin to decode together. */
static int time_decode(struct bench *b, const struct soq__bench_test *t, double *seconds_out, struct soq_error *err)
{
    int64_t n_prompt = t->depth ? t->depth : 1;
    int rc = n_prompt > 1 ? fill_lanes(b, n_prompt - 1, err) : empty_lanes(b, err);

    if (!rc)
        rc = run_lanes(b, n_prompt, t->tokens + 1, err);
    *seconds_out = rc ? 0 : decode_seconds(b, t);
    return rc;
}

static uint64_t tensor_bytes(const struct soq__gguf_tensor *t)
{
    return t ? t->bytes : 0;
}

/* Of the weights that every step reads: all but an embedding of its own, of which it reads a few rows. */
static uint64_t weight_bytes(const struct soq__model *m)
{
    uint64_t bytes = tensor_bytes(m->output_norm) + tensor_bytes(m->output ? m->output : m->token_embd);

    for (uint32_t l = 0; l < m->hparams.n_layers; l++)
        for (int i = 0; i < SOQ__N_LAYER_TENSORS; i++)
            bytes += tensor_bytes(m->layers[l].tensors[i]);
    return bytes;
}

/* Of the last `held` of n entries of a group. */
static double held_bytes(const struct soq__kv_group_layout *g, double n, double held)
{
    double packed = fmax(0, held - (n - soq__kv_packed_to(g, (uint32_t)n)));

    return (held - packed) * (double)g->block_bytes + packed * (double)g->packed_bytes;
}

/* Of the cache that a row with n tokens before it reads; where a policy selects, what it left in the latest repetition. */
static double kv_bytes(const struct bench *b, double n)
{
    const struct soq__kv_cache *kv = &b->model->engine->kv;
    const struct soq__kv_seq *seq = &b->seqs[0]->kv;
    double bytes = 0;

    for (uint32_t i = 0; i < kv->n_groups; i++) {
        const struct soq__kv_group_layout *g = kv->groups[i].layout;
        double held = kv->groups[i].selects ? seq->n_committed - seq->groups[i].base : n;

        bytes += held_bytes(g, n, g->window ? fmin(held, (double)g->window + g->sinks) : held) / kv->block_tokens;
    }
    return bytes;
}

static double bandwidth_share(const struct bench *b, const struct soq__bench_test *t)
{
    double kv = kv_bytes(b, (double)t->depth + (double)t->tokens / 2), rate = 0;

    if (!t->decode || b->report.bandwidth <= 0 || t->drafted) /* steps of drafters read various amounts */
        return 0;
    for (size_t i = 0; i < t->n; i++)
        rate = fmax(rate, t->rates[i]);
    return ((double)weight_bytes(b->model->model) / t->parallel + kv) * rate / b->report.bandwidth;
}

/* Of a prefill: every token meets every matrix of the layers, the last one of a sequence the output matrix too. */
static double multiply_adds(const struct soq__model *m, const struct soq__bench_test *t)
{
    const struct soq__gguf_tensor *output = m->output ? m->output : m->token_embd;
    double of_token = 0;

    for (uint32_t l = 0; l < m->hparams.n_layers; l++)
        for (int i = 0; i < SOQ__N_LAYER_TENSORS; i++) {
            const struct soq__gguf_tensor *w = m->layers[l].tensors[i];

            of_token += w && w->n_dims > 1 ? (double)w->elements : 0;
        }
    return ((double)t->tokens * of_token + (double)output->elements) * t->parallel;
}

static double matmul_share(const struct bench *b, const struct soq__bench_test *t)
{
    double seconds = t->ops.seconds[SOQ_OP_MATMUL];

    if (t->decode || !t->op_timed || b->report.peaks.int8 <= 0 || seconds <= 0)
        return 0;
    return 2 * multiply_adds(b->model->model, t) / seconds / b->report.peaks.int8;
}

static int time_test(struct bench *b, const struct soq__bench_test *t, double *seconds_out, struct soq_error *err)
{
    return t->decode ? time_decode(b, t, seconds_out, err) : time_prefill(b, t, seconds_out, err);
}

/* How drafts fared in the latest repetition. */
static void count_drafts(const struct bench *b, struct soq__bench_test *t)
{
    for (uint32_t i = 0; i < b->n_lanes; i++) {
        t->steps += b->jobs[i].n_steps;
        t->drafted += b->jobs[i].n_drafted;
        t->accepted += b->jobs[i].n_accepted;
    }
}

/* All repetitions; the first is the warm-up. */
static int time_repetitions(struct bench *b, struct soq__bench_test *t, struct soq_error *err)
{
    const struct soq__exec *exec = &b->model->engine->exec;
    struct soq__profile before = {.copies = {0}};

    for (int64_t rep = 0; rep <= b->options->reps; rep++) {
        double seconds;
        int rc;

        if (rep == 1)
            before = soq__profile_since(exec, NULL);
        soq__progress("%s at depth %lld: %lld of %lld", t->name, (long long)t->depth, (long long)rep,
                      (long long)b->options->reps);
        rc = time_test(b, t, &seconds, err);
        if (rc)
            return rc;
        if (!rep)
            continue;
        t->rates[t->n++] = (double)t->tokens * t->parallel / seconds;
        count_drafts(b, t);
    }
    t->profile = soq__profile_since(exec, &before);
    return 0;
}

/* One more repetition, in which ops are timed one by one. */
static int time_ops(struct bench *b, struct soq__bench_test *t, struct soq_error *err)
{
    double seconds;
    int rc;

    soq__progress("%s at depth %lld, op by op", t->name, (long long)t->depth);
    b->model->engine->exec.op_times = &t->ops;
    rc = time_test(b, t, &seconds, err);
    b->model->engine->exec.op_times = NULL;
    t->op_timed = !rc;
    return rc;
}

static int run_test(struct bench *b, bool decode, int64_t tokens, int64_t depth, struct soq_error *err)
{
    struct soq__bench_test t = {.decode = decode, .tokens = tokens, .depth = depth, .parallel = b->n_lanes};
    uint32_t context = b->model->engine->context;
    int64_t needed = decode ? depth + tokens + 2 : tokens;
    int rc;

    if (needed > context)
        return soq__fail(err, SOQ_ELIMIT, "the test needs %lld tokens, the context holds %u; raise it with -c",
                         (long long)needed, context);
    snprintf(t.name, sizeof t.name, "%s%lld", decode ? "tg" : "pp", (long long)tokens);
    t.profiled = b->options->profile;
    rc = time_repetitions(b, &t, err);
    if (!rc && (t.profiled || (!decode && b->report.peaks.int8 > 0)))
        rc = time_ops(b, &t, err);
    soq__buf_done(&b->filled);
    if (rc)
        return rc;
    t.memory_share = bandwidth_share(b, &t);
    t.matmul_share = matmul_share(b, &t);
    soq__bench_report_test(&b->report, &t);
    return 0;
}

/* ---- The whole */

static int create_lanes(struct bench *b, struct soq_error *err)
{
    struct soq__engine *e = b->model->engine;
    uint32_t n = (uint32_t)b->options->parallel;
    int rc = 0;

    b->seqs = soq__alloc_zero(n, sizeof *b->seqs);
    b->jobs = soq__alloc_zero(n, sizeof *b->jobs);
    b->tokens = soq__alloc_array(e->context, sizeof *b->tokens);
    b->times = soq__alloc_array((size_t)n * e->context, sizeof *b->times);
    if (!b->seqs || !b->jobs || !b->tokens || !b->times)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < e->context; i++)
        b->tokens[i] = (int32_t)((100 + i % 400) % e->net.logits.cols);
    while (!rc && b->n_lanes < n) {
        rc = soq__sequence_create(e, &b->seqs[b->n_lanes], err);
        b->n_lanes += !rc;
    }
    return rc;
}

static int run_tests(struct bench *b, struct soq_error *err)
{
    int rc = 0;

    soq__bench_report_begin(&b->report);
    for (size_t i = 0; i < b->n_prompts && !rc && !soq__out_lost(); i++)
        rc = b->prompts[i] ? run_test(b, false, b->prompts[i], 0, err) : 0;
    for (size_t i = 0; i < b->n_depths && b->options->gen && !rc && !soq__out_lost(); i++)
        rc = run_test(b, true, b->options->gen, b->depths[i], err);
    soq__progress_clear();
    return rc;
}

static int check_options(struct bench *b, struct soq_error *err)
{
    const struct bench_options *o = b->options;

    if (!soq__bench_format_parse(o->json ? "json" : o->format, &b->report.format))
        return soq__fail(err, SOQ_EINVAL, "--format %s: expected table, csv, md or json", o->format);
    b->n_prompts = soq__parse_list(o->prompts, 0, TOKENS_MAX, b->prompts, LIST_MAX);
    b->n_depths = soq__parse_list(o->depths, 0, TOKENS_MAX, b->depths, LIST_MAX);
    if (!b->n_prompts || !b->n_depths)
        return soq__fail(err, SOQ_EINVAL, "--%s %s: expected numbers with commas between, at most %d",
                         b->n_prompts ? "depth" : "prompt", b->n_prompts ? o->depths : o->prompts, LIST_MAX);
    return 0;
}

/* As many sequences as the test has must run at the same time. */
static int raise_sequences(struct soq_runtime *runtime, int64_t parallel, struct soq_error *err)
{
    char text[32];

    if (soq__settings_int(runtime->settings, "engine", "max_sequences") >= parallel)
        return 0;
    snprintf(text, sizeof text, "%lld", (long long)parallel);
    return soq__settings_set(runtime->settings, "engine", "max_sequences", text, err);
}

static int bench(struct bench *b, struct soq_runtime *runtime, struct soq_error *err)
{
    int rc = raise_sequences(runtime, b->options->parallel, err);

    if (!rc)
        rc = soq__cli_no_prefixes(runtime, err);
    if (!rc && b->options->profile)
        soq__cli_profile(runtime);
    if (!rc)
        rc = soq__cli_model(runtime, 0, &b->model, err);
    if (!rc && !b->options->no_memory) {
        soq__progress("measuring the machine");
        rc = soq__bench_bandwidth(soq__cpu_count(), &b->report.bandwidth, err);
        if (!rc)
            rc = soq__bench_peaks(soq__cpu_count(), &b->report.peaks, err);
    }
    if (!rc)
        rc = create_lanes(b, err);
    if (rc)
        return rc;
    b->report.model = soq__base_name(soq__gguf_path(b->model->model->gguf));
    b->report.backend = b->model->engine->exec.choices[b->model->engine->exec.primary].plugin->id;
    b->report.exec = &b->model->engine->exec;
    return run_tests(b, err);
}

int soq__cmd_bench(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct bench_options options = {.gen = 128, .reps = 3, .parallel = 1, .prompts = "512", .depths = "0", .format = "table"};
    struct bench b = {.options = &options};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *runtime = NULL;
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON) {
        soq__interrupt_catch();
        rc = check_options(&b, &err);
        if (!rc)
            rc = soq__cli_runtime(&args, &runtime, &err);
        if (!rc)
            rc = bench(&b, runtime, &err);
        status = rc ? soq__cli_fail("bench", rc, &err) : SOQ_EXIT_OK;
    }
    for (uint32_t i = 0; i < b.n_lanes; i++)
        soq__sequence_free(b.seqs[i]);
    soq__free(b.seqs);
    soq__free(b.jobs);
    soq__free(b.tokens);
    soq__free(b.times);
    soq_model_free(b.model);
    soq_runtime_free(runtime);
    soq__args_done(&args);
    return soq__out_finish("bench", status);
}
