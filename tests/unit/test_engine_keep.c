/* What outlives a request, over whole models: prefixes that other sessions computed, sequences that are swapped out or dropped
 * between any two steps. Whatever happens, tokens and logits stay the same, bit for bit. */
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "kv/swap.h"
#include "tests/unit/told.h"

#define LLAMA "golden/llama/model.gguf"
#define GEMMA "golden/gemma3/model.gguf" /* windows of 16 in five layers of six */

/* ---- Prefixes ----------------------------------------------------------------------------------------------------------- */

static struct soq__sequence *salted(struct fixture *f, const char *salt)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__sequence *seq = NULL;

    cr_assert_eq(soq__sequence_open(f->model->engine, salt, strlen(salt), &seq, &err), 0, "%s", err.text);
    return seq;
}

/* Whatever was computed before, warm is cold. */
static void warm_is_cold(const char *model, const char *const *more)
{
    struct fixture cold = open_with(model, NULL, (const char *[]){more[0], more[1], "kv.prefix_cache=off", NULL});
    struct fixture warm = open_with(model, NULL, more);
    struct soq__sequence *a = new_sequence(&cold), *b = new_sequence(&warm), *c = new_sequence(&warm);
    struct told one = {0}, two = {0}, three = {0};
    int32_t ids[N_PROMPT + 80];
    struct soq__job job;

    make_ids(ids, N_PROMPT + 80, 1);
    run(a, ids, N_PROMPT, &one);
    job = run(b, ids, N_PROMPT, &two);
    cr_expect_eq(job.n_prefix, 0);
    job = run(c, ids, N_PROMPT, &three);
    cr_expect_eq(job.n_prefix, N_PROMPT / 8 * 8);
    cr_expect_eq(job.n_cached, job.n_prefix);
    expect_same(&one, &two, "the first");
    expect_same(&one, &three, "the second");
    /* An answer is found, too: the next turn of the conversation in another session. */
    memcpy(ids + N_PROMPT, one.ids, sizeof one.ids);
    soq__sequence_free(b);
    b = new_sequence(&warm);
    job = run(b, ids, N_PROMPT + N_ANSWER + 10, &two);
    cr_expect_eq(job.n_prefix, (N_PROMPT + N_ANSWER - 1) / 8 * 8);
    run(a, ids, N_PROMPT + N_ANSWER + 10, &one);
    cr_expect(memcmp(one.ids, two.ids, sizeof one.ids) == 0);
    cr_expect_eq(warm.model->engine->prefix.stats.hits, 2);
    cr_expect_eq(warm.model->engine->prefix.stats.lookups, 3);
    cr_expect_eq(warm.model->engine->prefix.stats.tokens_saved, 96 + 136);
    soq__sequence_free(a);
    soq__sequence_free(b);
    soq__sequence_free(c);
    close_model(&cold);
    close_model(&warm);
}

Test(engine_keep, warm_is_cold)
{
    int64_t live = soq__alloc_live();
    static const char *const codecs[][3] = {{"kv.codec_k=f16", "kv.codec_v=f16", NULL},
                                            {"kv.codec_k=f32", "kv.codec_v=f32", NULL}};

    for (int i = 0; i < 2; i++) {
        warm_is_cold(LLAMA, codecs[i]);
        warm_is_cold(GEMMA, codecs[i]);
    }
    cr_expect_eq(soq__alloc_live(), live);
}

Test(engine_keep, salts_are_apart)
{
    struct fixture f = open_with(LLAMA, NULL, NULL);
    struct soq__sequence *seqs[] = {salted(&f, "a"), salted(&f, "b"), salted(&f, ""), salted(&f, "a")};
    const uint32_t hits[] = {0, 0, 0, 96};
    struct soq__sequence *fork = NULL;
    struct told t = {0};
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(run(seqs[i], ids, N_PROMPT, &t).n_prefix, hits[i], "session %d", i);
    cr_assert_eq(soq__sequence_fork(seqs[0], &fork, NULL), 0);
    cr_expect_eq(fork->root, seqs[3]->root, "a fork has the salt of what it was forked from");
    soq__sequence_free(fork);
    for (int i = 0; i < 4; i++)
        soq__sequence_free(seqs[i]);
    close_model(&f);
}

/* Policies: what they choose, and how, is the same after a hit; those that must see every row get none. */
Test(engine_keep, prefixes_and_policies)
{
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    for (size_t i = 0; i < N_POLICIES; i++) {
        struct fixture cold = open_with(LLAMA, policies[i], (const char *[]){"kv.prefix_cache=off", NULL});
        const char *const on[] = {"kv.prefix_cache=on", NULL};
        const char *const all[] = {on[0], policies[i][0], policies[i][1], policies[i][2], policies[i][3], NULL};
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq__sequence *seq = new_sequence(&cold), *again;
        const struct soq__kv_policy *policy = &cold.model->engine->policies.kv[0];
        bool never = policy->ops->traits & SOQ_POLICY_NO_PREFIX_HITS || (soq__kv_weighs(policy) && !policy->plan.queries);
        uint32_t most = N_PROMPT - (policy->plan.queries > 1 ? policy->plan.queries : 1);
        struct told one = {0}, two = {0}, three = {0};
        struct fixture warm = {0};

        run(seq, ids, N_PROMPT, &one);
        soq__sequence_free(seq);
        close_model(&cold);
        if (never) {
            warm.rt = open_runtime(all, &err);
            cr_assert_not_null(warm.rt, "%s", err.text);
            cr_expect_eq(soq_model_load(warm.rt, soq__test_data(LLAMA), NULL, &warm.model, &err), -SOQ_EUNSUPPORTED);
            cr_expect(strstr(err.text, "[kv] prefix_cache"), "%s", err.text);
            soq_runtime_free(warm.rt);
            continue;
        }
        warm = open_with(LLAMA, policies[i], on);
        seq = new_sequence(&warm);
        again = new_sequence(&warm);
        run(seq, ids, N_PROMPT, &two);
        cr_expect_eq(run(again, ids, N_PROMPT, &three).n_prefix, most / 8 * 8, "%s", policies[i][0]);
        expect_same(&one, &two, policies[i][0]);
        expect_same(&one, &three, policies[i][0]);
        soq__sequence_free(seq);
        soq__sequence_free(again);
        close_model(&warm);
    }
}

/* ---- Preemption --------------------------------------------------------------------------------------------------------- */

static void preempt_anywhere(const char *model, const char *const policy[4], const char *how, const char *other)
{
    struct fixture calm = open_with(model, policy, (const char *[]){"kv.prefix_cache=off", other, NULL});
    struct fixture f = open_with(model, policy, (const char *[]){how, "kv.prefix_cache=off", other, NULL});
    struct soq__sequence *seq = new_sequence(&calm);
    struct told undisturbed = {0};
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    run(seq, ids, N_PROMPT, &undisturbed);
    soq__sequence_free(seq);
    for (uint32_t every = 3; every < 40; every += 16) {
        struct told t = {.preempt_every = every};

        seq = new_sequence(&f);
        run(seq, ids, N_PROMPT, &t);
        cr_expect_gt(t.n_preempted, 2);
        expect_same(&undisturbed, &t, policy[0]);
        cr_expect_eq(soq__preempt(seq, NULL), 0, "idle");
        cr_expect_eq(soq__kv_seq_bytes(&seq->kv), 0);
        t.preempt_every = 0;
        run(seq, ids, N_PROMPT, &t);
        expect_same(&undisturbed, &t, "again, after it was idle");
        soq__sequence_free(seq);
        cr_expect_eq(f.model->engine->kv.budget.used, 0);
        cr_expect_eq(f.model->engine->kv.swap.used, 0);
    }
    close_model(&calm);
    close_model(&f);
}

Test(engine_keep, swapped_out_anywhere, .timeout = 120)
{
    for (size_t i = 0; i < N_POLICIES; i++)
        preempt_anywhere(LLAMA, policies[i], "kv.preempt=swap", NULL);
    preempt_anywhere(GEMMA, policies[0], "kv.preempt=swap", NULL);
    preempt_anywhere(LLAMA, policies[0], "kv.preempt=swap", "kv.codec_k=f32");
}

Test(engine_keep, computed_again_anywhere, .timeout = 120)
{
    for (size_t i = 0; i < 3; i++) {
        preempt_anywhere(LLAMA, policies[i], "kv.preempt=recompute", NULL);
        preempt_anywhere(GEMMA, policies[i], "kv.preempt=recompute", NULL);
    }
}

Test(engine_keep, preemption_that_cannot_be)
{
    static const struct {
        const char *settings[5], *says;
    } wrong[] = {
        {{"kv.preempt=recompute", "kv.policy=snapkv", "kv.snapkv.capacity=80", NULL}, "snapkv"},
        {{"kv.preempt=swap", "kv.swap_memory=0", NULL}, "swap_memory"},
        {{"kv.preempt=always", NULL}, "auto|swap|recompute|off"},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq_runtime *rt = open_runtime(wrong[i].settings, &err);
        struct soq_model *model = NULL;

        if (rt)
            cr_expect_neq(soq_model_load(rt, soq__test_data(LLAMA), NULL, &model, &err), 0);
        cr_expect(strstr(err.text, wrong[i].says), "%s", err.text);
        soq_runtime_free(rt);
    }
}

/* One slab of 2 MiB is all there is: a few thousand tokens. */
#define ONE_SLAB                                                                                                               \
    "kv.memory=2MiB", "model.context=4096", "kv.prefix_cache=off", "kv.block_tokens=256", "kv.codec_k=f32", "kv.codec_v=f32"

static uint32_t tokens_in_memory(const struct fixture *f)
{
    const struct soq__engine *e = f->model->engine;

    return (uint32_t)(e->kv.budget.limit / e->layout.groups[0].block_bytes * e->layout.block_tokens);
}

static struct soq_session *session_of(struct fixture *f)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s = NULL;

    cr_assert_eq(soq_session_create(f->model, &s, &err), 0, "%s", err.text);
    return s;
}

static int ask(struct soq_session *s, uint32_t seed, uint32_t n, int32_t max_tokens, struct soq_result *result,
               struct soq_error *err)
{
    struct soq_sampling zero = greedy();
    struct soq_request req = SOQ_REQUEST_INIT;
    int32_t *ids = soq__alloc_array(n, sizeof *ids);
    int rc;

    make_ids(ids, n, seed);
    req.ids = ids;
    req.n_ids = n;
    req.max_tokens = max_tokens;
    req.ignore_eog = 1;
    req.sampling = &zero;
    rc = soq_generate(s, &req, result, err);
    soq__free(ids);
    return rc;
}

/* Idle sessions make room, the one that was used least recently first; then nobody may, and the message says so. */
Test(engine_keep, idle_sessions_give_way)
{
    static const char *const how[] = {"kv.preempt=auto", "kv.preempt=swap", "kv.preempt=recompute", "kv.preempt=off"};

    for (size_t i = 0; i < 4; i++) {
        struct fixture f = open_model(LLAMA, (const char *[]){ONE_SLAB, how[i], NULL});
        struct soq_session *a = session_of(&f), *b = session_of(&f), *c = session_of(&f);
        struct soq_result r = SOQ_RESULT_INIT;
        struct soq_model_info info = {.struct_size = sizeof info};
        struct soq_error err = SOQ_ERROR_INIT;
        uint32_t n = tokens_in_memory(&f) * 2 / 5;

        cr_assert_eq(ask(a, 1, n, 1, &r, &err), 0, "%s", err.text);
        cr_assert_eq(ask(b, 2, n, 1, &r, &err), 0, "%s", err.text);
        if (i == 3) {
            cr_expect_eq(ask(c, 3, n, 1, &r, &err), -SOQ_EBUSY);
            cr_expect(strstr(err.text, "[kv] memory") && strstr(err.text, "[kv] preempt"), "%s", err.text);
        } else {
            cr_expect_eq(ask(c, 3, n, 1, &r, &err), 0, "%s", err.text);
            cr_expect_eq(soq_session_length(a), n);
            cr_expect_gt(soq__kv_seq_bytes(&b->seq->kv), 0);
            cr_expect_eq(soq__kv_seq_bytes(&a->seq->kv), 0, "the oldest");
            cr_assert_eq(soq_model_info(f.model, &info, NULL), 0);
            cr_expect_eq(info.swapped_out, i < 2);
            cr_expect_eq(info.dropped, i == 2);
            cr_expect_eq(info.swap_used > 0, i < 2);
            cr_expect_eq(ask(a, 1, n, 5, &r, &err), 0, "%s", err.text);
            cr_expect_eq(r.cached_tokens, i < 2 ? n - 1 : 0);
        }
        soq_session_free(a);
        soq_session_free(b);
        soq_session_free(c);
        close_model(&f);
    }
}

static uint64_t pinned_bytes(struct fixture *f)
{
    struct soq_model_info info = {.struct_size = sizeof info};

    cr_assert_eq(soq_model_info(f->model, &info, NULL), 0);
    return info.prefix_pinned;
}

/* An idle session whose blocks were dropped is for its owner what it was. */
Test(engine_keep, dropped_sessions_are_as_before)
{
    static const char *const how[][2] = {{"kv.preempt=recompute", NULL}, {"kv.preempt=auto", "kv.swap_memory=0"}};

    for (size_t i = 0; i < 2; i++) {
        struct fixture f = open_model(LLAMA, (const char *[]){"kv.block_tokens=8", how[i][0], how[i][1], NULL});
        struct soq_session *s = session_of(&f), *fork = NULL;
        struct soq_result r = SOQ_RESULT_INIT;
        struct soq_error err = SOQ_ERROR_INIT;
        uint32_t pinned = 0;

        cr_assert_eq(ask(s, 1, N_PROMPT, 10, &r, &err), 0, "%s", err.text);
        cr_assert_eq(soq_session_pin(s, 64, NULL, &err), 0, "%s", err.text);
        soq__engine_lock(f.model->engine);
        cr_assert_eq(soq__preempt(s->seq, &err), 0, "%s", err.text);
        soq__engine_unlock(f.model->engine);
        cr_assert_eq(s->seq->kv.n_committed, 0);
        cr_expect_eq(soq_session_length(s), N_PROMPT + 9);
        cr_expect_eq(soq_session_unpin(s, 64, &err), 0, "%s", err.text);
        cr_expect_eq(pinned_bytes(&f), 0);
        cr_expect_eq(soq_session_pin(s, N_PROMPT + 3, &pinned, &err), 0, "%s", err.text);
        cr_expect_eq(pinned, (N_PROMPT + 3) / 8 * 8);
        cr_assert_eq(soq_session_fork(s, &fork, &err), 0, "%s", err.text);
        cr_expect_eq(soq_session_length(fork), N_PROMPT + 9);
        soq_session_free(fork);
        cr_expect_eq(soq_session_rollback(s, 50, &err), 0, "%s", err.text);
        cr_expect_eq(soq_session_length(s), 50);
        cr_expect_eq(soq_session_unpin(s, N_PROMPT + 3, &err), 0, "what was pinned is unpinned: %s", err.text);
        cr_expect_eq(pinned_bytes(&f), 0);
        cr_expect_eq(soq_session_pin(s, 51, NULL, &err), -SOQ_EINVAL);
        cr_expect(strstr(err.text, "51") && strstr(err.text, "50"), "%s", err.text);
        cr_expect_eq(soq_session_unpin(s, 51, &err), -SOQ_EINVAL);
        cr_expect(strstr(err.text, "unpinned"), "%s", err.text);
        cr_expect_eq(soq_session_rollback(s, 51, &err), -SOQ_EINVAL);
        cr_assert_eq(ask(s, 2, N_PROMPT, 10, &r, &err), 0, "%s", err.text);
        cr_expect_eq(soq_session_length(s), N_PROMPT + 9);
        soq_session_free(s);
        close_model(&f);
    }
}

/* Unpinned are the tokens that were pinned, whatever the session holds meanwhile. */
Test(engine_keep, what_was_pinned_is_unpinned)
{
    struct fixture f = open_model(LLAMA, (const char *[]){"kv.block_tokens=8", NULL});
    struct soq_session *s = session_of(&f), *other = session_of(&f);
    struct soq_result r = SOQ_RESULT_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    uint64_t one_block;

    cr_assert_eq(ask(s, 1, N_PROMPT, 5, &r, &err), 0, "%s", err.text);
    cr_assert_eq(soq_session_pin(s, 8, NULL, &err), 0, "%s", err.text);
    one_block = pinned_bytes(&f);
    cr_assert_eq(soq_session_unpin(s, 8, &err), 0, "%s", err.text);
    cr_assert_eq(soq_session_pin(s, 64, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(ask(other, 2, N_PROMPT, 5, &r, &err), 0, "%s", err.text);
    cr_assert_eq(soq_session_pin(other, 32, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(ask(s, 2, N_PROMPT, 5, &r, &err), 0, "%s", err.text);
    cr_assert_eq(soq_session_pin(s, 24, NULL, &err), 0, "%s", err.text);
    cr_expect_eq(pinned_bytes(&f), 12 * one_block);
    cr_expect_eq(soq_session_unpin(s, 64, &err), 0, "%s", err.text);
    cr_expect_eq(pinned_bytes(&f), 4 * one_block, "the other prompt's stay");
    cr_expect_eq(soq_session_unpin(s, 24, &err), 0, "%s", err.text);
    cr_expect_eq(pinned_bytes(&f), 4 * one_block, "the other session's stay");
    soq_session_free(other);
    cr_expect_eq(soq_session_unpin(s, 32, &err), 0, "what a session pinned that is gone: %s", err.text);
    cr_expect_eq(pinned_bytes(&f), 0);
    soq_session_free(s);
    close_model(&f);
}

/* Hears the last token, when the answer is complete, and takes the memory away before the result is filled in. */
static int rob(void *ctx, const struct soq_event *event)
{
    struct soq_session *s = ctx;
    struct soq__engine *e = s->seq->engine;

    (void)event;
    soq__engine_lock(e);
    if (!s->seq->job && soq__kv_seq_bytes(&s->seq->kv))
        cr_assert_eq(soq__preempt(s->seq, NULL), 0);
    soq__engine_unlock(e);
    return 0;
}

/* A result tells what the session held at the end of its answer. */
Test(engine_keep, results_of_sessions_that_are_robbed)
{
    struct fixture f = open_model(LLAMA, (const char *[]){"kv.block_tokens=8", "kv.prefix_cache=off", NULL});
    struct soq_session *s = session_of(&f);
    struct soq_sampling zero = greedy();
    struct soq_request req = SOQ_REQUEST_INIT;
    struct soq_result calm = SOQ_RESULT_INIT, robbed = SOQ_RESULT_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    req.ids = ids;
    req.n_ids = N_PROMPT;
    req.max_tokens = 5;
    req.ignore_eog = 1;
    req.sampling = &zero;
    cr_assert_eq(soq_generate(s, &req, &calm, &err), 0, "%s", err.text);
    req.on_event = rob;
    req.ctx = s;
    cr_assert_eq(soq_generate(s, &req, &robbed, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_seq_bytes(&s->seq->kv), 0);
    cr_expect_gt(calm.kv_bytes, 0);
    cr_expect_eq(robbed.kv_bytes, calm.kv_bytes);
    soq_session_free(s);
    close_model(&f);
}

/* Dropped in mid-answer, it finds blocks again that it has published itself: these were not there before the request. */
Test(engine_keep, what_was_found_after_a_preemption)
{
    struct fixture f = open_model(LLAMA, (const char *[]){"kv.block_tokens=8", "kv.preempt=recompute", NULL});
    struct soq__sequence *seq = new_sequence(&f);
    struct told t = {.preempt_every = 19};
    int32_t ids[N_PROMPT];
    struct soq__job job;

    make_ids(ids, N_PROMPT, 1);
    job = run(seq, ids, N_PROMPT, &t);
    cr_assert_gt(t.n_preempted, 2);
    cr_expect_eq(job.n_cached, 0);
    cr_expect_eq(job.n_prefix, 0, "%u tokens", job.n_prefix);
    soq__sequence_free(seq);
    close_model(&f);
}

/* One that `lingers` stays in its third callback until it is told to go on. Nobody computes meanwhile, unless others ask. */
struct asker {
    struct soq_session *s;
    uint32_t n_heard, enough; /* tokens */
    bool lingers;
    sem_t runs, go_on;
    pthread_t thread;
    uint32_t order;
    int rc;
    struct soq_error err;
    struct soq_request req;
    struct soq_sampling sampling;
    int32_t *ids;
};

static atomic_uint n_done;

static int listen(void *ctx, const struct soq_event *event)
{
    struct asker *a = ctx;

    (void)event;
    if (++a->n_heard == 3 && a->lingers) {
        sem_post(&a->runs);
        sem_wait(&a->go_on);
    }
    return a->n_heard >= a->enough;
}

static void *run_asker(void *arg)
{
    struct asker *a = arg;

    a->rc = soq_generate(a->s, &a->req, NULL, &a->err);
    a->order = atomic_fetch_add(&n_done, 1);
    return NULL;
}

/* Promised as much as max_tokens may need, but cancelled when there are `enough`. */
static void start(struct asker *a, struct fixture *f, uint32_t n, int32_t max_tokens, uint32_t enough, int32_t priority,
                  bool lingers)
{
    *a = (struct asker){.s = session_of(f), .ids = soq__alloc_array(n, 4), .req = SOQ_REQUEST_INIT, .sampling = greedy()};
    make_ids(a->ids, n, 1);
    a->enough = enough;
    a->req.on_event = listen;
    a->req.ctx = a;
    a->err = (struct soq_error)SOQ_ERROR_INIT;
    a->req.ids = a->ids;
    a->req.n_ids = n;
    a->req.max_tokens = max_tokens;
    a->req.ignore_eog = 1;
    a->req.priority = priority;
    a->req.sampling = &a->sampling;
    a->lingers = lingers;
    cr_assert_eq(sem_init(&a->runs, 0, 0) | sem_init(&a->go_on, 0, 0), 0);
    cr_assert_eq(pthread_create(&a->thread, NULL, run_asker, a), 0);
}

/* Until the thread has said what it wants. */
static void await_queued(struct fixture *f, const struct asker *a)
{
    struct soq__engine *e = f->model->engine;
    bool queued = false;

    while (!queued) {
        pthread_mutex_lock(&e->lock);
        queued = a->s->seq->job || a->s->seq->used;
        pthread_mutex_unlock(&e->lock);
        usleep(queued ? 0 : 500);
    }
}

/* When its thread has ended. */
static void release(struct asker *a)
{
    cr_expect_eq(a->rc, 0, "%s", a->err.text);
    soq_session_free(a->s);
    soq__free(a->ids);
    sem_destroy(&a->runs);
    sem_destroy(&a->go_on);
}

/* One of low priority that runs is preempted by one of higher priority, and ends after it, with the same answer. */
Test(engine_keep, priorities, .timeout = 120)
{
    struct fixture f = open_model(LLAMA, (const char *[]){ONE_SLAB, NULL});
    uint32_t n = tokens_in_memory(&f);
    struct asker low, high;
    struct soq_model_info info = {.struct_size = sizeof info};

    cr_assert(n >= 1024 && n <= 4096);
    atomic_store(&n_done, 0);
    start(&low, &f, 200, (int32_t)n * 3 / 5 - 200, 300, -1, true);
    sem_wait(&low.runs);
    start(&high, &f, 100, (int32_t)n * 3 / 5 - 100, 20, 1, false);
    pthread_join(high.thread, NULL);
    cr_expect_eq(high.order, 0);
    cr_assert_eq(soq_model_info(f.model, &info, NULL), 0);
    cr_expect_geq(info.swapped_out, 1);
    sem_post(&low.go_on);
    pthread_join(low.thread, NULL);
    release(&high);
    release(&low);
    close_model(&f);
}

/* Many of high priority, one after the other and never together with the low one: it is not passed over for ever. */
Test(engine_keep, nobody_starves, .timeout = 120)
{
    struct fixture f = open_model(LLAMA, (const char *[]){ONE_SLAB, "engine.max_sequences=64", NULL});
    uint32_t n = tokens_in_memory(&f), n_before = 0;
    struct asker low, high[40];

    cr_assert(n >= 1024 && n <= 4096);
    start(&high[0], &f, 30, (int32_t)n * 3 / 5, 3, 1, true);
    sem_wait(&high[0].runs);
    start(&low, &f, 30, (int32_t)n * 3 / 5, 5, 0, false);
    await_queued(&f, &low);
    for (int i = 1; i < 40; i++) {
        start(&high[i], &f, 30, (int32_t)n * 3 / 5, 5, 1, false);
        await_queued(&f, &high[i]);
    }
    sem_post(&high[0].go_on);
    pthread_join(low.thread, NULL);
    for (int i = 0; i < 40; i++) {
        pthread_join(high[i].thread, NULL);
        n_before += high[i].s->seq->used < low.s->seq->used;
    }
    cr_expect_leq(n_before, 17, "%u were served before it: the first, and more than 16 that overtook it", n_before);
    for (int i = 0; i < 40; i++)
        release(&high[i]);
    release(&low);
    close_model(&f);
}
