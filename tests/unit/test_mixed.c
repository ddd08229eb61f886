/* A model on several backends at once: who runs what, the same numbers, copies, failures, the cache of several owners.
 *
 * twin (tests/plugins/twin.c) computes as cpu/generic does but in a memory of its own, so that results must be equal to the
 * last bit and a buffer in the wrong hands crashes; acme and acme-attention are the examples for vendors. */
#include <math.h>
#include <pthread.h>

#include "tests/unit/engine_fixture.h"

#define GEMMA "golden/gemma3/model.gguf" /* six layers, five with a window; the embedding is the head too */
#define LLAMA "golden/llama/model.gguf"  /* two layers, a head of its own */
#define TWIN "backend.use=twin,cpu/generic"
#define HALVES "backend.split=twin:0-2,cpu:3-"

enum { N_PROMPT = 60, N_GENERATE = 12, N_ROWS = N_PROMPT + N_GENERATE - 1, SETTINGS_MAX = 16 };

/* ---- Running ------------------------------------------------------------------------------------------------------------- */

static const char **with_mixed(const char *const *extra, const char *out[SETTINGS_MAX])
{
    size_t n = 0;

    out[n++] = mixed_plugins();
    out[n++] = "backend.cpu.activations=f32";
    while (*extra && n + 1 < SETTINGS_MAX)
        out[n++] = *extra++;
    out[n] = NULL;
    return out;
}

static struct fixture open_mixed(const char *model, const char *const *extra)
{
    const char *settings[SETTINGS_MAX];

    return open_model(model, with_mixed(extra, settings));
}

/* What a prompt of N_PROMPT gives. */
struct answer {
    uint32_t from;
    float *logits; /* of positions from, from + 1, ...; freed with soq__free */
    size_t n;
    int32_t tokens[N_PROMPT + N_GENERATE];
};

/* The rows from `from` on, in a sequence that may hold some of them. */
static struct answer ask(struct soq__sequence *seq, uint32_t seed, uint32_t from)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct collected c = {.from = from, .rows = N_ROWS - from};
    struct answer a = {.from = from};
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, seed);
    cr_assert_eq(run_ids(seq, ids, N_PROMPT, N_GENERATE, &c, &err), 0, "%s", err.text);
    memcpy(a.tokens, seq->tokens, sizeof a.tokens);
    a.logits = c.logits;
    a.n = (size_t)c.rows * c.n_vocab;
    return a;
}

static struct answer ask_alone(struct fixture *f, uint32_t seed)
{
    struct soq__sequence *seq = new_sequence(f);
    struct answer a = ask(seq, seed, 0);

    soq__sequence_free(seq);
    return a;
}

static struct answer answer(const char *model, const char *const *settings)
{
    struct fixture f = open_mixed(model, settings);
    struct answer a = ask_alone(&f, 1);

    close_model(&f);
    return a;
}

/* Of the rows that both have, to the last bit; b is freed. */
static void expect_same(const struct answer *a, struct answer *b, const char *what)
{
    cr_expect(memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0, "%s: other tokens", what);
    cr_expect(memcmp(a->logits + a->n - b->n, b->logits, b->n * sizeof *b->logits) == 0, "%s: other logits", what);
    soq__free(b->logits);
}

/* ---- The same numbers ---------------------------------------------------------------------------------------------------- */

static void check_settings(const char *model, const char *const *settings)
{
    struct answer base = answer(model, (const char *[]){"backend.use=cpu/generic", NULL});

    for (; *settings; settings++) {
        struct answer a = answer(model, (const char *[]){TWIN, "engine.chunk=7", *settings, NULL});

        expect_same(&base, &a, *settings);
    }
    soq__free(base.logits);
}

Test(mixed, same_numbers_wherever_things_are)
{
    int64_t live = soq__alloc_live();

    check_settings(GEMMA, (const char *[]){"backend.split=", HALVES, "backend.split=cpu:0-2,twin:3-",
                                           "backend.split=twin:0,cpu:1,twin:2,cpu:3,twin:4,cpu:5", "backend.split=cpu:1-4",
                                           "backend.place=attention:cpu", "backend.place=matmul:cpu", "backend.place=norm:cpu",
                                           "backend.place=blk.*.ffn_*:cpu", "backend.place=blk.?.attn_[qk].weight:cpu",
                                           "backend.place=rope:cpu,add:cpu,rope_table:cpu,activation:cpu",
                                           "backend.place=embed:cpu,gather:cpu", "backend.place=token_embd.weight:cpu",
                                           "backend.place=output_norm.weight:cpu", "backend.place=*:cpu", NULL});
    check_settings(LLAMA, (const char *[]){"backend.split=", "backend.split=twin:0,cpu:1", "backend.split=cpu:0",
                                           "backend.place=output.weight:cpu,blk.1.*:cpu", NULL});
    cr_expect_eq(soq__alloc_live(), live);
}

/* Whatever op the first backend lacks runs on the second. */
Test(mixed, an_op_less)
{
    static const char *const ops[] = {"matmul",     "embed", "norm",   "rope_table", "rope",
                                      "activation", "add",   "gather", "attention",  "kv_append"};
    struct answer base = answer(GEMMA, (const char *[]){"backend.use=cpu/generic", NULL});

    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        char lacks[64];
        struct answer a;

        snprintf(lacks, sizeof lacks, "backend.twin.fail_op=%s", ops[i]);
        a = answer(GEMMA, (const char *[]){TWIN, lacks, NULL});
        expect_same(&base, &a, lacks);
    }
    soq__free(base.logits);
}

/* ---- Who runs what ------------------------------------------------------------------------------------------------------- */

static const char *owner(const struct fixture *f, uint32_t at)
{
    return f->model->engine->exec.choices[at].plugin->name;
}

static void expect_places(const char *model, const char *const *settings, const char *q, const char *norm,
                          const char *attention)
{
    struct fixture f = open_mixed(model, settings);
    const struct soq__net_layer *l = &f.model->engine->net.layers[0];

    cr_expect_str_eq(owner(&f, l->weights[SOQ__W_Q].at), q, "%s", settings[0]);
    cr_expect_str_eq(owner(&f, l->weights[SOQ__W_ATTN_NORM].at), norm, "%s", settings[0]);
    cr_expect_str_eq(owner(&f, l->places.at[SOQ_OP_ATTENTION]), attention, "%s", settings[0]);
    cr_expect_eq(l->places.at[SOQ_OP_KV_APPEND], l->places.at[SOQ_OP_ATTENTION]);
    close_model(&f);
}

#define USE(list) ((const char *[]){"backend.use=" list, NULL})

Test(mixed, places)
{
    expect_places(LLAMA, USE("acme,cpu"), "acme", "cpu", "cpu");
    expect_places("golden/llama256/model-q4_0.gguf", USE("acme,cpu"), "acme", "cpu", "cpu");
    expect_places("golden/llama256/model-q4_k.gguf", USE("acme,cpu"), "cpu", "cpu", "cpu"); /* a type that acme lacks */
    expect_places(LLAMA, USE("cpu,acme"), "cpu", "cpu", "cpu");
    expect_places(LLAMA, USE("twin,cpu"), "twin", "twin", "twin");
    expect_places(LLAMA, ((const char *[]){"backend.use=twin,cpu", "backend.split=cpu:0", NULL}), "cpu", "cpu", "cpu");
}

/* A plugin without memory is the guest of one of its domain: preferred if it was named before. */
Test(mixed, guests)
{
    expect_places(LLAMA, USE("acme-attention,cpu"), "cpu", "cpu", "acme-attention");
    expect_places(LLAMA, USE("cpu,acme-attention"), "cpu", "cpu", "cpu");
    expect_places(LLAMA, USE("acme,acme-attention,cpu"), "acme", "cpu", "acme-attention");
    expect_places(LLAMA, USE("acme,cpu,acme-attention"), "acme", "cpu", "cpu");
    expect_places(LLAMA, USE("acme-attention,twin,cpu"), "twin", "twin", "twin"); /* that is another domain */
    expect_places(LLAMA, ((const char *[]){"backend.use=cpu,acme-attention", "backend.place=attention:acme-attention", NULL}),
                  "cpu", "cpu", "acme-attention");
}

static void expect_refusal(const char *const *settings, int code, const char *says)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_model *model = NULL;
    const char *all[SETTINGS_MAX];
    struct soq_runtime *rt = open_runtime(with_mixed(settings, all), &err);

    cr_assert(rt != NULL, "%s", err.text);
    cr_expect_eq(soq_model_load(rt, soq__test_data(LLAMA), NULL, &model, &err), code, "%s %s: %s", settings[0], settings[1],
                 err.text);
    cr_expect(strstr(err.text, says), "%s %s: %s", settings[0], settings[1], err.text);
    soq_model_free(model);
    soq_runtime_free(rt);
}

Test(mixed, refusals)
{
    static const struct {
        const char *setting;
        int code;
        const char *says;
    } refused[] = {
        {"backend.split=acme", -SOQ_EINVAL, "[backend] split: \"acme\": expected BACKEND:FIRST-LAST with layers 0 to 1"},
        {"backend.split=cpu:", -SOQ_EINVAL, "\"cpu:\": expected"},
        {"backend.split=cpu:x", -SOQ_EINVAL, "\"cpu:x\": expected"},
        {"backend.split=cpu:-1", -SOQ_EINVAL, "\"cpu:-1\": expected"},
        {"backend.split=cpu:1-0", -SOQ_EINVAL, "\"cpu:1-0\": expected"},
        {"backend.split=cpu:0-1x", -SOQ_EINVAL, "\"cpu:0-1x\": expected"},
        {"backend.split=cpu:0-2", -SOQ_EINVAL, "\"cpu:0-2\": expected"},
        {"backend.split=cpu:2-", -SOQ_EINVAL, "\"cpu:2-\": expected"},
        {"backend.split=cpu:0-99999999999999999999", -SOQ_EINVAL, "layers 0 to 1"},
        {"backend.split=gpu:0", -SOQ_EINVAL, "split: \"gpu:0\": \"gpu\" is none of the backends in use: acme, cpu/"},
        {"backend.split=cpu:0-1,acme:1", -SOQ_EINVAL, "\"acme:1\": layer 1 is named twice"},
        {"backend.place=attention", -SOQ_EINVAL, "place: \"attention\": expected PATTERN:BACKEND"},
        {"backend.place=:cpu", -SOQ_EINVAL, "\":cpu\": expected PATTERN:BACKEND"},
        {"backend.place=attention:gpu", -SOQ_EINVAL, "place: \"attention:gpu\": \"gpu\" is none of the backends in use"},
        {"backend.place=atention:cpu", -SOQ_EINVAL, "place: atention matches no op and no tensor"},
        {"backend.place=blk.2.*:cpu", -SOQ_EINVAL, "place: blk.2.* matches no op and no tensor"},
        {"backend.place=*:cpu,norm:cpu", -SOQ_EINVAL, "place: norm matches no op and no tensor"},
        {"backend.place=attention:acme", -SOQ_EUNSUPPORTED, "attention puts attention on acme, which cannot run it"},
        {"backend.place=blk.1.attn_norm*:acme", -SOQ_EUNSUPPORTED, "puts norm of blk.1.attn_norm.weight on acme"},
        {"backend.use=acme", -SOQ_EUNSUPPORTED, "runs embed as this model needs it: acme: has no such op"},
        {"backend.use=acme-attention", -SOQ_EINVAL, "none of them has memory and matmul of its own, acme-attention has not"},
        {"backend.acme.memory=1MiB", -SOQ_ENOMEM, "acme: 1179648 bytes are wanted"},
    };

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        expect_refusal((const char *[]){"backend.use=acme,cpu", refused[i].setting, "engine.step_tokens=4608", NULL},
                       refused[i].code, refused[i].says);
}

/* A device that is there and does not come up: the next one, unless it is required. */
Test(mixed, a_backend_that_does_not_come_up)
{
    const char *broken = "backend.twin.fail_op=init";

    expect_places(LLAMA, ((const char *[]){"backend.use=twin,cpu", broken, NULL}), "cpu", "cpu", "cpu");
    expect_places(LLAMA, ((const char *[]){"backend.use=acme,twin,cpu", broken, NULL}), "acme", "cpu", "cpu");
    expect_refusal((const char *[]){"backend.use=twin!,cpu", broken, NULL}, -SOQ_EDEVICE,
                   "backend twin: twin: init: told to fail");
    expect_refusal((const char *[]){"backend.use=acme,twin!,cpu", broken, NULL}, -SOQ_EDEVICE, "backend twin: twin: init");
    expect_refusal((const char *[]){"backend.use=twin", broken, NULL}, -SOQ_EDEVICE, "twin: init: told to fail");
}

/* ---- Copies -------------------------------------------------------------------------------------------------------------- */

static void one_step(struct fixture *f, uint32_t rows)
{
    struct soq__sequence *seq = new_sequence(f);
    struct soq_error err = SOQ_ERROR_INIT;
    struct collected c = {.from = rows - 1, .rows = 1};
    int32_t ids[N_PROMPT];

    make_ids(ids, rows, 1);
    cr_assert_eq(run_ids(seq, ids, rows, 0, &c, &err), 0, "%s", err.text);
    soq__free(c.logits);
    soq__sequence_free(seq);
}

Test(mixed, copies_are_counted)
{
    struct fixture f = open_mixed(GEMMA, (const char *[]){TWIN, HALVES, NULL});
    const struct soq__exec *x = &f.model->engine->exec;

    one_step(&f, 5);
    cr_expect_eq(x->copies.n, 3); /* the residual stream and the tables of two kinds of RoPE, at layer 3 */
    cr_expect_eq(x->copies.bytes, 5 * (64 + 16 + 16) * sizeof(float));
    cr_expect_eq(x->instances[0].n_runs, 1);
    cr_expect_eq(x->instances[1].n_runs, 3); /* a copy that turns out to be due ends a run */
    cr_expect(x->copies.seconds > 0 && x->instances[0].seconds > 0 && x->instances[1].seconds > 0);
    close_model(&f);
}

Test(mixed, no_copies_within_one_memory)
{
    struct fixture f = open_mixed(LLAMA, USE("acme-attention,cpu"));
    const struct soq__exec *x = &f.model->engine->exec;

    one_step(&f, 5);
    cr_expect_eq(x->copies.n, 0);
    cr_expect_eq(x->instances[0].n_runs, 2); /* once a layer */
    cr_expect_eq(x->instances[1].n_runs, 3);
    close_model(&f);
}

/* Ops that are timed one by one give the same numbers; every op is counted once. */
Test(mixed, ops_are_timed)
{
    struct fixture f = open_mixed(LLAMA, USE("acme-attention,cpu"));
    struct soq__exec *x = &f.model->engine->exec;
    struct soq__op_times times = {{0}, {0}};
    struct answer timed, plain;
    double seconds = 0;

    x->op_times = &times;
    one_step(&f, 5);
    cr_expect_eq(times.n[SOQ_OP_MATMUL], 2 * 7 + 1);
    cr_expect_eq(times.n[SOQ_OP_ATTENTION], 2);
    cr_expect_eq(x->instances[0].n_runs, 2 + 2); /* each op a run; attention and kv_append there, all else here */
    for (uint32_t op = 0; op < SOQ__N_OPS; op++) {
        cr_expect_eq(times.n[op] > 0, times.seconds[op] > 0, "%s", soq__op_name(op));
        seconds += times.seconds[op];
    }
    cr_expect_lt(fabs(seconds - x->instances[0].seconds - x->instances[1].seconds), 1e-9);
    timed = ask_alone(&f, 1);
    x->op_times = NULL;
    plain = ask_alone(&f, 1);
    expect_same(&timed, &plain, "timed op by op");
    soq__free(timed.logits);
    close_model(&f);
}

/* Products there, all else here: h, q, k, v, a, x; x, h, gate, up, gate; x back; each as rarely as can be. */
Test(mixed, copies_of_products)
{
    struct fixture f = open_mixed(LLAMA, USE("acme,cpu"));
    const struct soq__exec *x = &f.model->engine->exec;

    one_step(&f, 5);
    cr_expect_eq(x->copies.n, 12 + 11 + 1); /* in the second layer x is there already; the head's input */
    cr_expect_eq(x->instances[0].n_runs, 2 * 4 + 1);
    close_model(&f);
}

/* ---- Failures ------------------------------------------------------------------------------------------------------------ */

/* Runs into the failure, then asks again: what was committed before stays, what failed was not committed. True: it failed. */
static bool fail_once(const char *split, const char *op, unsigned at, const struct answer *base)
{
    char fail_op[64], fail_at[64];
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__sequence *seq;
    int32_t ids[N_PROMPT];
    struct fixture f;
    struct answer a;
    uint32_t held;
    int rc;

    snprintf(fail_op, sizeof fail_op, "backend.twin.fail_op=%s", op);
    snprintf(fail_at, sizeof fail_at, "backend.twin.fail_at=%u", at);
    f = open_mixed(GEMMA, (const char *[]){TWIN, split, fail_op, fail_at, "engine.chunk=8", NULL});
    seq = new_sequence(&f);
    make_ids(ids, N_PROMPT, 1);
    rc = run_ids(seq, ids, N_PROMPT, N_GENERATE, NULL, &err);
    held = seq->kv.n_committed;
    if (rc) {
        cr_expect_eq(rc, -SOQ_EDEVICE, "%s", err.text);
        cr_expect(strstr(err.text, op) && strstr(err.text, "told to fail"), "%s %u: %s", op, at, err.text);
        cr_expect(held < N_ROWS && (held > N_PROMPT || held % 8 == 0), "%s %u: %u rows committed", op, at, held);
        cr_expect_eq(seq->kv.n_tentative, 0);
        a = ask(seq, 1, held < N_PROMPT ? held : N_PROMPT - 1);
        expect_same(base, &a, op);
    }
    soq__sequence_free(seq);
    close_model(&f);
    return rc != 0;
}

Test(mixed, failures)
{
    static const char *const ops[] = {"begin", "end", "matmul", "norm", "attention", "kv_append"};
    struct answer base = answer(GEMMA, (const char *[]){"backend.use=cpu/generic", NULL});
    int64_t live = soq__alloc_live();

    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        for (unsigned at = 1; at < 60; at = at * 3 + 1) {
            bool runs = strcmp(ops[i], "begin") != 0 && strcmp(ops[i], "end") != 0; /* those are few */

            cr_expect(fail_once(HALVES, ops[i], at, &base) || (!runs && at > 13), "%s %u did not fail", ops[i], at);
            cr_expect(fail_once("backend.split=cpu:0-2,twin:3-", ops[i], at, &base) || (!runs && at > 13), "%s %u did not fail",
                      ops[i], at);
        }
    }
    cr_expect(fail_once(HALVES, "embed", 3, &base));
    cr_expect(fail_once(HALVES, "buffer_read", 4, &base));
    cr_expect(fail_once("backend.split=cpu:0-2,twin:3-", "buffer_write", 4, &base)); /* two while loading */
    cr_expect_eq(soq__alloc_live(), live);
    soq__free(base.logits);
}

/* ---- The cache ----------------------------------------------------------------------------------------------------------- */

Test(mixed, groups_belong_to_who_attends)
{
    struct fixture f = open_mixed(GEMMA, (const char *[]){TWIN, HALVES, "kv.prefix_cache=off", NULL});
    const struct soq__engine *e = f.model->engine;
    static const uint32_t groups[] = {0, 0, 0, 1, 1, 2}, indices[] = {0, 1, 2, 0, 1, 0}, owners[] = {0, 1, 1};
    struct soq__sequence *seq = new_sequence(&f);
    struct answer a = ask(seq, 1, 0);
    uint64_t bytes = 0;

    cr_assert_eq(e->layout.n_groups, 3); /* twin's with a window, cpu's with a window, cpu's full one */
    for (uint32_t l = 0; l < 6; l++) {
        cr_expect_eq(e->net.layers[l].views[SOQ__KV_FULL].parts->group, groups[l]);
        cr_expect_eq(e->net.layers[l].views[SOQ__KV_FULL].parts->index, indices[l]);
    }
    for (uint32_t g = 0; g < 3; g++) {
        cr_expect_eq(e->layout.groups[g].owner, owners[g]);
        cr_expect_eq(e->kv.groups[g].pools[0]->slabs[0].buffer >> 63, owners[g] == 0, "group %u: slab of another memory", g);
        cr_expect(seq->kv.groups[g].n_held > 0);
        bytes += e->kv.groups[g].pools[0]->slab_bytes;
    }
    cr_expect_eq(e->kv.budget.used, bytes);
    soq__sequence_free(seq);
    cr_expect_eq(e->kv.budget.used, 0);
    soq__free(a.logits);
    close_model(&f);
}

Test(mixed, one_limit_for_all_owners)
{
    struct fixture f = open_mixed(GEMMA, (const char *[]){TWIN, HALVES, "kv.memory=5MiB", NULL});
    struct soq__sequence *seq = new_sequence(&f);
    struct soq_error err = SOQ_ERROR_INIT;
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    cr_expect_eq(run_ids(seq, ids, N_PROMPT, 1, NULL, &err), -SOQ_ELIMIT);
    cr_expect(strstr(err.text, "[kv] memory"), "%s", err.text);
    cr_expect_eq(f.model->engine->kv.budget.used, 0);
    soq__sequence_free(seq);
    close_model(&f);
}

static uint64_t derived_limit(const char *const *settings)
{
    struct fixture f = open_mixed(GEMMA, settings);
    uint64_t limit = f.model->engine->kv.budget.limit;

    close_model(&f);
    return limit;
}

/* Twin says that it has 64 MiB, the machine has more. */
Test(mixed, the_fullest_memory_decides)
{
    const uint64_t all = (uint64_t)48 << 20;

    cr_expect_leq(derived_limit((const char *[]){TWIN, "backend.twin.memory=64MiB", NULL}), all);
    cr_expect_geq(derived_limit((const char *[]){TWIN, "backend.twin.memory=64MiB", NULL}), all / 10 * 9);
    cr_expect_leq(derived_limit((const char *[]){TWIN, HALVES, "backend.twin.memory=64MiB", NULL}), 2 * all);
    cr_expect_geq(derived_limit((const char *[]){TWIN, HALVES, "backend.twin.memory=64MiB", NULL}), 2 * all / 10 * 9);
    cr_expect_gt(derived_limit((const char *[]){TWIN, "backend.place=attention:cpu", "backend.twin.memory=64MiB", NULL}),
                 2 * all);
}

/* Half of the prompt is there, the rest goes another way, and back. */
static void check_turns(const char *const *settings, const struct answer *base)
{
    struct fixture f = open_mixed(GEMMA, settings);
    struct soq__sequence *seq = new_sequence(&f), *fork = NULL;
    struct soq_error err = SOQ_ERROR_INIT;
    const uint32_t shared = 37;
    int32_t ids[N_PROMPT];
    struct answer a;

    make_ids(ids, N_PROMPT, 1);
    cr_assert_eq(run_ids(seq, ids, shared, 0, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(soq__sequence_fork(seq, &fork, &err), 0, "%s", err.text);
    make_ids(ids + shared, N_PROMPT - shared, 9);
    cr_assert_eq(run_ids(seq, ids, N_PROMPT, 2, NULL, &err), 0, "%s", err.text);
    a = ask(fork, 1, shared);
    expect_same(base, &a, "fork");
    a = ask(seq, 1, shared); /* goes back to what is common, as far as the window has left it */
    expect_same(base, &a, "prefix");
    cr_assert_eq(soq__sequence_rollback(seq, N_PROMPT + 5, &err), 0, "%s", err.text);
    a = ask(seq, 1, N_PROMPT - 1);
    expect_same(base, &a, "rollback");
    soq__sequence_free(fork);
    soq__sequence_free(seq);
    close_model(&f);
}

Test(mixed, prefix_fork_rollback)
{
    static const char *const blocks[] = {"kv.block_tokens=32", "kv.block_tokens=8"};

    for (int i = 0; i < 2; i++) {
        struct answer base = answer(GEMMA, (const char *[]){"backend.use=cpu/generic", blocks[i], NULL});

        check_turns((const char *[]){TWIN, HALVES, blocks[i], NULL}, &base);
        check_turns((const char *[]){TWIN, "backend.split=cpu:0,twin:1,cpu:2,twin:3,cpu:4", blocks[i], NULL}, &base);
        soq__free(base.logits);
    }
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------- */

Test(mixed, tied_embedding)
{
    struct fixture one = open_mixed(GEMMA, (const char *[]){TWIN, NULL});
    struct fixture two = open_mixed(GEMMA, (const char *[]){TWIN, HALVES, NULL});
    const struct soq__net *a = &one.model->engine->net, *b = &two.model->engine->net;

    cr_expect(a->embd.at == a->output.at && a->embd.handle == a->output.handle, "held twice by one backend");
    cr_expect_eq(b->embd.at, 0);
    cr_expect_eq(b->output.at, 1);
    cr_expect(b->embd.handle && b->output.handle && b->embd.handle != b->output.handle);
    close_model(&one);
    close_model(&two);
}

/* ---- Batches ------------------------------------------------------------------------------------------------------------- */

struct lane {
    struct fixture *f;
    uint32_t seed;
    struct answer got;
};

static void *run_lane(void *arg)
{
    struct lane *lane = arg;

    lane->got = ask_alone(lane->f, lane->seed);
    return NULL;
}

/* Four sequences at once, and each alone. */
static void check_batch(const char *model, const char *const *settings)
{
    struct fixture f = open_mixed(model, settings);
    struct lane lanes[4];
    pthread_t threads[4];

    for (uint32_t i = 0; i < 4; i++) {
        lanes[i] = (struct lane){.f = &f, .seed = i + 1};
        cr_assert_eq(pthread_create(&threads[i], NULL, run_lane, &lanes[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 4; i++) {
        struct answer alone = ask_alone(&f, i + 1);

        expect_same(&alone, &lanes[i].got, settings[0]);
        soq__free(alone.logits);
    }
    close_model(&f);
}

Test(mixed, batch_invariance)
{
    check_batch(GEMMA, (const char *[]){TWIN, HALVES, "engine.chunk=9", "engine.step_tokens=30", NULL});
    check_batch(GEMMA, USE("acme,cpu"));
    check_batch(GEMMA, USE("acme-attention,cpu"));
    check_batch(LLAMA, USE("acme,acme-attention,cpu"));
}
