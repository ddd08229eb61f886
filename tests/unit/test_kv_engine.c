/* Selecting policies in the engine: a budget that holds everything changes no bit, tokens and kept sets do not depend on how
 * rows are batched, memory is given back and forecasts agree with it, [kv.layers], turns and forks of what was evicted, and
 * what is refused when the model is loaded. */
#include <pthread.h>

#include "kv/promise.h"
#include "tests/unit/engine_fixture.h"

#define MODEL "kv-golden/models/gqa.gguf"
#define N_LAYERS 4
#define N_HEADS 2
#define N_PROMPT 150
#define N_GENERATE 40
#define N_ROWS (N_PROMPT + N_GENERATE - 1)

/* Every policy that selects, once at the end of the prompt and once while decoding; different ones in the heads of a layer. */
static const char *const policies[][7] = {
    {"kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16"},
    {"kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=8", "kv.snapkv.when=always", "kv.snapkv.every=16"},
    {"kv.policy=pyramidkv", "kv.pyramidkv.capacity=48", "kv.pyramidkv.window=16"},
    {"kv.policy=adakv", "kv.adakv.capacity=48", "kv.adakv.window=16"},
    {"kv.policy=adakv", "kv.adakv.capacity=48", "kv.adakv.window=8", "kv.adakv.when=always", "kv.adakv.every=12"},
    {"kv.policy=h2o", "kv.h2o.capacity=48", "kv.h2o.recent=20", "kv.h2o.when=always", "kv.h2o.every=7"},
    {"kv.policy=tova", "kv.tova.capacity=48", "kv.tova.when=always", "kv.tova.every=1"},
    {"kv.policy=keydiff", "kv.keydiff.capacity=48"},
    {"kv.policy=l2norm", "kv.l2norm.capacity=48", "kv.l2norm.when=always", "kv.l2norm.every=16"},
    {"kv.policy=observed", "kv.observed.capacity=48"},
    {"kv.policy=random", "kv.random.capacity=48", "kv.random.when=always", "kv.random.every=16"},
    {"kv.policy=streaming", "kv.streaming.capacity=48", "kv.streaming.when=decode", "kv.streaming.every=16"},
    {"kv.policy=streaming", "kv.streaming.capacity=48", "kv.streaming.when=always"},
    {"kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16",
     "kv.layers.1-/0=policy:tova capacity:48 when:always every:3"},
    {"kv.policy=adakv", "kv.adakv.capacity=48", "kv.adakv.window=8", "kv.adakv.when=always", "kv.adakv.every=12",
     "kv.layers.0-2/1=policy:keydiff capacity:40"},
};
#define N_POLICIES (sizeof policies / sizeof policies[0])

/* Settings of a policy and more; settings has room for 16. */
static void add_policy(const char **settings, size_t policy, const char *const *more)
{
    size_t n = 0;

    for (size_t i = 0; policies[policy][i]; i++)
        settings[n++] = policies[policy][i];
    for (; more && *more; more++)
        settings[n++] = *more;
    settings[n] = NULL;
}

/* ---- One answer ---------------------------------------------------------------------------------------------------------- */

struct kept {
    uint64_t hash; /* of all events of one sequence, in order */
    uint64_t sequence;
    uint32_t n_events;
    uint32_t first[N_LAYERS][N_HEADS]; /* entries after the prompt */
};

static void note_kept(void *arg, const struct soq__kv_kept *kept)
{
    struct kept *k = arg;

    if (kept->sequence != k->sequence)
        return;
    if (k->n_events++ < N_LAYERS * N_HEADS)
        k->first[kept->layer][kept->head] = kept->n_kept;
    k->hash = hash_kept(k->hash, kept);
}

struct outcome {
    float *logits; /* [N_ROWS][n_vocab] */
    int32_t tokens[N_PROMPT + N_GENERATE];
    size_t bytes; /* of the logits */
    struct kept kept;
};

static struct outcome answer(struct fixture *f, struct soq__sequence *seq)
{
    struct collected c = {.rows = N_ROWS};
    struct soq_error err = SOQ_ERROR_INIT;
    struct outcome o = {.kept = {.sequence = seq->kv.id}};
    int32_t ids[N_PROMPT];

    f->model->engine->kv.trace = (struct soq__kv_trace){.fn = note_kept, .arg = &o.kept};
    make_ids(ids, N_PROMPT, 1);
    cr_assert_eq(run_ids(seq, ids, N_PROMPT, N_GENERATE, &c, &err), 0, "%s", err.text);
    f->model->engine->kv.trace = (struct soq__kv_trace){0};
    memcpy(o.tokens, seq->tokens, sizeof o.tokens);
    o.logits = c.logits;
    o.bytes = (size_t)N_ROWS * c.n_vocab * sizeof(float);
    return o;
}

static struct outcome answer_alone(const char *const *settings)
{
    struct fixture f = open_model(MODEL, settings);
    struct soq__sequence *seq = new_sequence(&f);
    struct outcome o = answer(&f, seq);

    soq__sequence_free(seq);
    close_model(&f);
    return o;
}

static void expect_same(const struct outcome *a, struct outcome *b, const char *policy, const char *what)
{
    cr_expect(memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0, "%s: tokens differ %s", policy, what);
    cr_expect(memcmp(a->logits, b->logits, a->bytes) == 0, "%s: logits differ %s", policy, what);
    cr_expect_eq(a->kept.hash, b->kept.hash, "%s: other entries are kept %s", policy, what);
    cr_expect_eq(a->kept.n_events, b->kept.n_events, "%s: %u events, not %u, %s", policy, b->kept.n_events, a->kept.n_events,
                 what);
    soq__free(b->logits);
}

/* ---- A budget that holds everything -------------------------------------------------------------------------------------- */

Test(kv_engine, enough_budget_changes_no_bit)
{
    static const char *const names[] = {"snapkv",  "pyramidkv", "adakv",    "h2o",   "tova",
                                        "keydiff", "l2norm",    "observed", "random"};
    struct outcome full = answer_alone((const char *[]){"kv.policy=full", NULL});

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char policy[40], capacity[40], recent[40], window[40];
        const char *settings[] = {policy, capacity, "model.context=1024", recent, NULL};
        struct outcome o;

        snprintf(policy, sizeof policy, "kv.policy=%s", names[i]);
        snprintf(capacity, sizeof capacity, "kv.%s.capacity=700", names[i]); /* less than the context: it does select */
        snprintf(recent, sizeof recent, "kv.h2o.recent=100");
        snprintf(window, sizeof window, "kv.%s.window=32", names[i]);
        if (strcmp(names[i], "h2o") != 0)
            settings[3] = strstr("snapkv pyramidkv adakv", names[i]) ? window : NULL;
        o = answer_alone(settings);
        o.kept = full.kept;
        expect_same(&full, &o, names[i], "from the full cache");
    }
    soq__free(full.logits);
}

/* ---- Batches ------------------------------------------------------------------------------------------------------------- */

Test(kv_engine, chunks)
{
    static const char *const variants[][3] = {{"engine.chunk=1", NULL, "in chunks of 1"},
                                              {"engine.chunk=7", NULL, "in chunks of 7"},
                                              {"engine.step_tokens=45", NULL, "under a small token budget"},
                                              {"kv.block_tokens=8", NULL, "in blocks of 8"}};

    for (size_t i = 0; i < N_POLICIES; i++) {
        const char *settings[16];
        struct outcome base;

        add_policy(settings, i, NULL);
        base = answer_alone(settings);
        cr_expect_gt(base.kept.n_events, 0);
        for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
            struct outcome o;

            add_policy(settings, i, variants[v]);
            o = answer_alone(settings);
            expect_same(&base, &o, policies[i][0], variants[v][2]);
        }
        soq__free(base.logits);
    }
}

struct other {
    struct fixture *f;
    uint32_t number;
};

static void *run_other(void *arg)
{
    const struct other *o = arg;
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t round = 0; round < 2; round++) {
        struct soq__sequence *seq = new_sequence(o->f);
        uint32_t n = 40 + o->number * 23 + round * 7;
        int32_t ids[N_PROMPT];

        make_ids(ids, n, 50 + o->number);
        cr_expect_eq(run_ids(seq, ids, n, 10 + o->number, NULL, &err), 0, "%s", err.text);
        soq__sequence_free(seq);
    }
    return NULL;
}

Test(kv_engine, among_others)
{
    for (size_t i = 0; i < N_POLICIES; i++) {
        const char *settings[16];
        struct outcome base, o;
        struct soq__sequence *seq;
        struct other others[3];
        pthread_t threads[3];
        struct fixture f;

        add_policy(settings, i, NULL);
        base = answer_alone(settings);
        add_policy(settings, i, (const char *const[]){"engine.chunk=16", "engine.step_tokens=48", NULL});
        f = open_model(MODEL, settings);
        seq = new_sequence(&f);
        for (uint32_t t = 0; t < 3; t++) {
            others[t] = (struct other){&f, t};
            cr_assert_eq(pthread_create(&threads[t], NULL, run_other, &others[t]), 0);
        }
        o = answer(&f, seq);
        for (int t = 0; t < 3; t++)
            pthread_join(threads[t], NULL);
        expect_same(&base, &o, policies[i][0], "in a batch");
        soq__sequence_free(seq);
        close_model(&f);
        soq__free(base.logits);
    }
}

/* ---- Codecs -------------------------------------------------------------------------------------------------------------- */

enum { N_CROWD = 6, N_LONG = 600, N_SHORT_ANSWER = 30 };

/* One of some sequences that answer at once. */
struct answering {
    struct soq__sequence *seq;
    uint32_t number;
    struct collected c;
};

static void *answer_long(void *arg)
{
    struct answering *a = arg;
    struct soq_error err = SOQ_ERROR_INIT;
    int32_t ids[N_LONG];

    make_ids(ids, N_LONG, 1 + a->number);
    a->c.rows = N_LONG + N_SHORT_ANSWER - 1;
    cr_expect_eq(run_ids(a->seq, ids, N_LONG, N_SHORT_ANSWER, &a->c, &err), 0, "%s", err.text);
    return NULL;
}

/* The answers to N_CROWD prompts, all at once or one after the other. */
static void answer_all(const char *const *settings, bool at_once, struct answering *out)
{
    struct fixture f = open_model(MODEL, settings);
    pthread_t threads[N_CROWD];

    for (uint32_t i = 0; i < N_CROWD; i++) {
        out[i] = (struct answering){.seq = new_sequence(&f), .number = i};
        cr_assert_eq(pthread_create(&threads[i], NULL, answer_long, &out[i]), 0);
        if (!at_once)
            pthread_join(threads[i], NULL);
    }
    for (uint32_t i = 0; i < N_CROWD; i++) {
        if (at_once)
            pthread_join(threads[i], NULL);
        soq__sequence_free(out[i].seq);
    }
    close_model(&f);
}

/* Blocks that a backend computes on as they are, over several splits of attention: of one sequence on two threads, and of
 * several on one, which takes their heads one after the other, with the same bits. */
Test(kv_engine, codecs_in_a_crowd)
{
    static const char *const codecs[] = {"f16", "int8",      "int4", "int4 format:q5_1", "kivi bits:2 group:16",
                                         "fp8", "turboquant"};

    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        char codec[64];
        const char *const alone[] = {codec, "backend.cpu.threads=2", "engine.chunk=512", "kv.prefix_cache=off", NULL};
        const char *const crowd[] = {codec, "backend.cpu.threads=1", "engine.chunk=100", "kv.prefix_cache=off", NULL};
        struct answering a[N_CROWD], b[N_CROWD];

        snprintf(codec, sizeof codec, "kv.codec=%s", codecs[i]);
        answer_all(alone, false, a);
        answer_all(crowd, true, b);
        for (uint32_t s = 0; s < N_CROWD; s++) {
            cr_expect(memcmp(a[s].c.logits, b[s].c.logits, a[s].c.rows * a[s].c.n_vocab * sizeof(float)) == 0,
                      "%s: logits of prompt %u differ", codecs[i], s);
            soq__free(a[s].c.logits);
            soq__free(b[s].c.logits);
        }
    }
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

/* Nobody knows beforehand how budgets spread over heads. */
static bool by_head(const struct soq__engine *e)
{
    bool any = false;

    for (uint32_t i = 0; i < e->policies.n; i++)
        any = any || e->policies.kv[i].plan.needs & SOQ_NEED_HEAD_BUDGETS;
    return any;
}

/* What the forecast says of a sequence that is all prompt. */
static void expect_forecast(const struct soq__engine *e, const struct soq__sequence *seq, bool is_exact, const char *policy)
{
    const struct soq__kv_need_params params = {
        .layout = &e->layout, .policies = e->policies.kv, .chunk = e->chunk, .n_prompt = N_PROMPT, .n_entries = N_PROMPT};
    uint64_t kept = 0, peak = 0, held = soq__kv_seq_bytes(&seq->kv);

    for (uint32_t i = 0; i < e->kv.n_pools; i++) {
        const struct soq__kv_pool *pool = &e->kv.pools[i];
        struct soq__kv_need need;

        soq__kv_need(&params, i, &need);
        kept += need.kept * pool->block_bytes;
        peak += soq__kv_need_peak(&need) * pool->block_bytes;
    }
    cr_expect(is_exact ? held == kept : held <= kept, "%s: %llu bytes are held, the forecast was %llu", policy,
              (unsigned long long)held, (unsigned long long)kept);
    cr_expect(e->kv.budget.peak <= peak && e->kv.budget.peak >= peak / 4 * 3, "%s: %llu bytes at most, the forecast was %llu",
              policy, (unsigned long long)e->kv.budget.peak, (unsigned long long)peak);
}

Test(kv_engine, memory_is_given_back)
{
    for (size_t i = 0; i < N_POLICIES; i++) {
        const char *settings[16];
        struct fixture f;
        struct soq__sequence *seq;
        struct soq__engine *e;
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq_model_info info = {.struct_size = sizeof info};
        uint64_t full = 0, gone = 0;
        int32_t ids[N_PROMPT];

        add_policy(settings, i, (const char *const[]){"kv.block_tokens=8", NULL});
        f = open_model(MODEL, settings);
        e = f.model->engine;
        split_slabs(&e->kv);
        seq = new_sequence(&f);
        make_ids(ids, N_PROMPT, 1);
        cr_assert_eq(run_ids(seq, ids, N_PROMPT, 0, NULL, &err), 0, "%s", err.text);
        for (uint32_t g = 0; g < e->kv.n_groups; g++) {
            const struct soq__kv_group_layout *layout = &e->layout.groups[g];

            full += (N_PROMPT + 7) / 8 * layout->block_bytes;
            gone += (uint64_t)seq->kv.groups[g].base * layout->n_layers * layout->n_heads;
        }
        cr_expect_leq(soq__kv_seq_bytes(&seq->kv), full / 2, "%s", policies[i][0]);
        if (e->kv.groups[0].selects) {
            cr_assert_eq(soq_model_info(f.model, &info, &err), 0, "%s", err.text);
            cr_expect_eq(info.kv_evicted, gone, "%s: %llu entries", policies[i][0], (unsigned long long)info.kv_evicted);
            cr_expect_geq(gone, (uint64_t)(N_PROMPT - 50) * N_LAYERS * N_HEADS, "%s", policies[i][0]);
            cr_expect_eq(info.kv_freed, full, "%s: the prompt's own blocks, all of them", policies[i][0]);
            expect_forecast(e, seq, !by_head(e), policies[i][0]);
        }
        soq__sequence_free(seq);
        cr_expect_eq(e->kv.budget.used, 0);
        close_model(&f);
    }
}

/* Slabs go back while the sequence lives. */
Test(kv_engine, slabs_are_given_back)
{
    struct fixture f = open_model(MODEL, (const char *[]){"kv.policy=keydiff", "kv.keydiff.capacity=64", "model.context=8192",
                                                          "kv.block_tokens=256", "kv.codec_k=f32", "kv.codec_v=f32", NULL});
    struct soq__sequence *seq = new_sequence(&f);
    const struct soq__kv_budget *budget = &f.model->engine->kv.budget;
    struct soq_error err = SOQ_ERROR_INIT;
    int32_t ids[6000];

    make_ids(ids, 6000, 1);
    cr_assert_eq(run_ids(seq, ids, 6000, 0, NULL, &err), 0, "%s", err.text);
    cr_expect_geq(budget->peak, (uint64_t)6000 * N_LAYERS * N_HEADS * 16 * 2 * 4);
    cr_expect_leq(budget->used, (uint64_t)2 << 20, "one slab");
    soq__sequence_free(seq);
    close_model(&f);
}

/* ---- Layers -------------------------------------------------------------------------------------------------------------- */

#define SNAP "kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16"

Test(kv_engine, layers)
{
    static const char *const settings[] = {SNAP, "kv.layers.0,3=policy:full", "kv.layers.1=capacity:60", NULL};
    struct outcome o = answer_alone(settings);
    static const uint32_t kept[N_LAYERS] = {N_PROMPT, 60, 48, N_PROMPT};

    for (uint32_t l = 0; l < N_LAYERS; l++)
        cr_expect_eq(o.kept.first[l][0], kept[l], "layer %u keeps %u", l, o.kept.first[l][0]);
    soq__free(o.logits);
}

/* The message of a model that must not load. */
static const char *refusal(const char *const *settings)
{
    static struct soq_error err;
    struct soq_runtime *rt;
    struct soq_model *model = NULL;

    err = (struct soq_error)SOQ_ERROR_INIT;
    rt = open_runtime(settings, &err);
    if (!rt)
        return err.text;
    cr_expect_lt(soq_model_load(rt, soq__test_data(MODEL), NULL, &model, &err), 0, "it loads");
    soq_model_free(model);
    soq_runtime_free(rt);
    return err.text;
}

Test(kv_engine, wrong_layers)
{
    static const struct {
        const char *setting, *says[3];
    } cases[] = {
        {"kv.layers.0-9=policy:full", {"[kv.layers] 0-9 = policy:full", "layers 0 to 3"}},
        {"kv.layers.x=policy:full", {"[kv.layers] x = policy:full", "expected FIRST-LAST"}},
        {"kv.layers.0-1,1=policy:full", {"[kv.layers] 0-1,1", "layer 1 has already a policy"}},
        {"kv.layers.0=policy:nosuch", {"[kv.layers] 0 = policy:nosuch: no kv_policy \"nosuch\""}},
        {"kv.layers.0-1,=policy:full", {"[kv.layers] 0-1, = policy:full", "\"\": expected FIRST-LAST"}},
        {"kv.layers.2/0,=policy:full", {"[kv.layers] 2/0, = policy:full", "\"\": expected FIRST-LAST"}},
        {"kv.layers.0,/0=policy:full", {"[kv.layers] 0,/0 = policy:full", "\"\": expected FIRST-LAST"}},
        {"kv.layers.2/0/1=policy:full", {"[kv.layers] 2/0/1 = policy:full", "\"0/1\": expected FIRST-LAST"}},
        {"kv.layers.0=", {"[kv.layers] 0 = : no policy, codec or option is named"}},
        {"kv.layers.0=capacity:8", {"[kv.layers] 0 = capacity:8", "window = 16"}},
        {"kv.layers.0=capacty:80", {"[kv.layers] 0 = capacty:80", "did you mean 'capacity'?"}},
        {"kv.layers.0=polcy:full", {"[kv.layers] 0 = polcy:full: polcy was taken for an option; did you mean policy:NAME?"}},
        {"kv.layers.0=capacity:80 codek:int8", {"codek was taken for an option; did you mean codec:NAME?"}},
        {"kv.layers.0=codec:int8 plicy:full", {"plicy was taken for an option; did you mean policy:NAME?"}},
        {"kv.layers.0=policy:full 80", {"[kv.layers] 0 = policy:full 80", "expected KEY:VALUE"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = refusal((const char *[]){SNAP, cases[i].setting, NULL});

        for (size_t s = 0; s < 3 && cases[i].says[s]; s++)
            cr_expect(strstr(text, cases[i].says[s]), "%s: %s", cases[i].setting, text);
    }
}

Test(kv_engine, backend_that_cannot_select)
{
    const char *text = refusal((const char *[]){SNAP, mixed_plugins(), "backend.use=acme-attention,cpu",
                                                "backend.place=attention:acme-attention", NULL});

    cr_expect(strstr(text, "[kv] policy = snapkv") && strstr(text, "acme-attention") && strstr(text, "full or window"), "%s",
              text);
}

/* Left to itself the engine finds the backend that can. */
Test(kv_engine, backend_that_can_select_is_found)
{
    struct outcome a = answer_alone((const char *[]){SNAP, NULL}),
                   b = answer_alone((const char *[]){SNAP, mixed_plugins(), "backend.use=acme-attention,cpu", NULL});

    expect_same(&a, &b, "snapkv", "beside a plugin that cannot select");
    soq__free(a.logits);
}

/* ---- After an eviction --------------------------------------------------------------------------------------------------- */

/* The next turn goes on from what is left; going back into what was evicted is refused, and an edited past computed anew. */
Test(kv_engine, turns)
{
    for (size_t i = 0; i < N_POLICIES; i++) {
        const char *settings[16];
        struct fixture f;
        struct soq__sequence *seq, *fork;
        struct soq_error err = SOQ_ERROR_INIT;
        int32_t ids[N_PROMPT + 60];
        uint32_t n;

        add_policy(settings, i, NULL);
        f = open_model(MODEL, settings);
        seq = new_sequence(&f);
        make_ids(ids, N_PROMPT, 1);
        cr_assert_eq(run_ids(seq, ids, N_PROMPT, 20, NULL, &err), 0, "%s", err.text);
        cr_expect_eq(soq__sequence_rollback(seq, N_PROMPT / 2, &err), -SOQ_EINVAL, "%s", policies[i][0]);
        cr_assert_eq(soq__sequence_fork(seq, &fork, &err), 0, "%s", err.text);
        n = seq->n_tokens;
        memcpy(ids, seq->tokens, n * sizeof *ids);
        make_ids(ids + n, 30, 7);
        cr_assert_eq(run_ids(seq, ids, n + 30, 10, NULL, &err), 0, "%s", err.text);
        cr_assert_eq(run_ids(fork, ids, n + 30, 10, NULL, &err), 0, "%s", err.text);
        cr_expect(memcmp(seq->tokens, fork->tokens, (n + 40) * sizeof *ids) == 0, "%s: a fork goes another way",
                  policies[i][0]);
        ids[3]++;
        cr_assert_eq(run_ids(fork, ids, N_PROMPT, 10, NULL, &err), 0, "%s", err.text);
        soq__sequence_free(seq);
        seq = new_sequence(&f);
        cr_assert_eq(run_ids(seq, ids, N_PROMPT, 10, NULL, &err), 0, "%s", err.text);
        cr_expect(memcmp(seq->tokens, fork->tokens, (N_PROMPT + 10) * sizeof *ids) == 0, "%s: not as a fresh session",
                  policies[i][0]);
        soq__sequence_free(seq);
        soq__sequence_free(fork);
        close_model(&f);
    }
}
