/* Many threads on one model: sessions come into being, fork, generate, are cancelled by others and by themselves, go back, go
 * away. Whatever an answer shares its steps with, it is the one that it gives alone. For ThreadSanitizer and AddressSanitizer
 * above all. */
#include <pthread.h>
#include <unistd.h>

#include "tests/unit/engine_fixture.h"

#define MODEL "golden/llama/model-q8_0.gguf"
#define N_THREADS 8
#define N_ROUNDS 12
#define N_PROMPTS 5
#define N_ANSWER 12
#define N_HOARD 8 /* idle sessions that keep memory from the others */

static struct fixture model;
static int32_t answers[N_PROMPTS][N_ANSWER];
static bool tight; /* there is too little memory for all */
static atomic_uint n_answers, n_busy;

/* What the cancelling thread may reach. */
static struct slot {
    pthread_mutex_t lock;
    struct soq_session *session; /* NULL: nothing to cancel */
} slots[N_THREADS];
static atomic_bool stop_cancelling;

static uint32_t make_prompt(int32_t *ids, uint32_t number)
{
    uint32_t n = 9 + number * 13;

    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(3 + (i * 31 + number * 77) % 280);
    return n;
}

struct ear {
    int32_t ids[N_ANSWER];
    uint32_t n, enough;
};

static int hear(void *ctx, const struct soq_event *event)
{
    struct ear *ear = ctx;

    if (event->token >= 0)
        ear->ids[ear->n++] = event->token;
    return ear->n >= ear->enough;
}

/* Everybody else is idle and holds the memory: where there is little of it, a possible outcome. */
static bool is_tight(int rc)
{
    if (rc == -SOQ_EBUSY && tight)
        atomic_fetch_add(&n_busy, 1);
    return rc == -SOQ_EBUSY && tight;
}

static struct soq_result ask(struct soq_session *s, uint32_t number, struct ear *ear)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_sampling zero = greedy();
    struct soq_request req = SOQ_REQUEST_INIT;
    struct soq_result result = SOQ_RESULT_INIT;
    int32_t ids[100];
    int rc;

    req.ids = ids;
    req.n_ids = make_prompt(ids, number);
    req.max_tokens = N_ANSWER;
    req.ignore_eog = 1;
    req.sampling = &zero;
    req.on_event = hear;
    req.ctx = ear;
    rc = soq_generate(s, &req, &result, &err);
    cr_assert(rc == 0 || is_tight(rc), "%s", err.text);
    return result;
}

static void expect_answer(struct soq_session *s, uint32_t number, uint32_t enough)
{
    struct ear ear = {.enough = enough};
    struct soq_result r = ask(s, number, &ear);

    if (!r.reason)
        return; /* no memory */
    atomic_fetch_add(&n_answers, r.reason == SOQ_REASON_LENGTH);
    cr_assert(r.reason == SOQ_REASON_LENGTH || r.reason == SOQ_REASON_CANCELLED);
    cr_assert(r.reason == SOQ_REASON_CANCELLED || ear.n == N_ANSWER);
    cr_assert(memcmp(ear.ids, answers[number], ear.n * sizeof *ear.ids) == 0, "prompt %u: another answer than alone", number);
}

static void expose(struct slot *slot, struct soq_session *s)
{
    pthread_mutex_lock(&slot->lock);
    slot->session = s;
    pthread_mutex_unlock(&slot->lock);
}

static void *work(void *arg)
{
    struct slot *slot = arg;
    uint32_t me = (uint32_t)(slot - slots);
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        struct soq_session *s = NULL, *fork = NULL;
        uint32_t number = (me + round) % N_PROMPTS;
        struct soq_model_info info = {.struct_size = sizeof info};
        int rc;

        cr_assert_eq(soq_session_create(model.model, &s, &err), 0, "%s", err.text);
        expose(slot, s);
        expect_answer(s, number, round % 4 == 3 ? 5 : UINT32_MAX); /* some stop themselves */
        rc = soq_session_fork(s, &fork, &err);
        cr_assert(rc == 0 || is_tight(rc), "%s", err.text);
        expect_answer(s, (number + 1) % N_PROMPTS, UINT32_MAX);
        expose(slot, NULL);
        if (fork && round % 2)
            cr_assert_eq(soq_session_rollback(fork, soq_session_length(fork) / 2, &err), 0, "%s", err.text);
        soq_session_free(s);
        if (fork)
            expect_answer(fork, number, UINT32_MAX);
        cr_assert_eq(soq_model_info(model.model, &info, &err), 0);
        cr_assert_leq(info.kv_used, info.kv_limit);
        soq_session_free(fork);
    }
    return NULL;
}

static void *cancel(void *arg)
{
    (void)arg;
    for (uint32_t i = 0; !atomic_load(&stop_cancelling); i++) {
        struct slot *slot = &slots[i % N_THREADS];

        pthread_mutex_lock(&slot->lock);
        if (slot->session)
            soq_session_cancel(slot->session);
        pthread_mutex_unlock(&slot->lock);
        usleep(3000);
    }
    return NULL;
}

static void storm(const char *const *settings)
{
    pthread_t threads[N_THREADS], canceller;
    struct soq_session *s = NULL, *hoard[N_HOARD] = {NULL};
    struct soq_model_info info = {.struct_size = sizeof info};

    model = open_model(MODEL, settings);
    cr_assert_eq(soq_session_create(model.model, &s, NULL), 0);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct ear ear = {.enough = UINT32_MAX};

        cr_assert_eq(ask(s, i, &ear).generated_tokens, N_ANSWER);
        memcpy(answers[i], ear.ids, sizeof answers[i]);
    }
    for (int i = 0; i < N_HOARD && tight; i++)
        cr_assert_eq(soq_session_fork(s, &hoard[i], NULL), 0);
    for (uint32_t i = 0; i < N_HOARD && tight; i++)
        ask(hoard[i], i % N_PROMPTS, &(struct ear){.enough = UINT32_MAX}); /* a block of their own */
    soq_session_free(s);
    atomic_store(&stop_cancelling, false);
    for (int i = 0; i < N_THREADS; i++) {
        pthread_mutex_init(&slots[i].lock, NULL);
        cr_assert_eq(pthread_create(&threads[i], NULL, work, &slots[i]), 0);
    }
    cr_assert_eq(pthread_create(&canceller, NULL, cancel, NULL), 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&stop_cancelling, true);
    pthread_join(canceller, NULL);
    for (int i = 0; i < N_THREADS; i++)
        pthread_mutex_destroy(&slots[i].lock);
    for (int i = 0; i < N_HOARD; i++)
        soq_session_free(hoard[i]);
    while (soq__prefix_give_way(&model.model->engine->prefix))
        ;
    cr_expect_eq(soq_model_info(model.model, &info, NULL), 0);
    cr_expect_eq(info.swap_used, 0);
    cr_expect_eq(info.kv_used, 0, "%llu bytes are still held", (unsigned long long)info.kv_used);
    close_model(&model);
}

Test(engine_threads, storm, .timeout = 120)
{
    int64_t live = soq__alloc_live();

    storm((const char *[]){"backend.cpu.threads=2", "engine.chunk=8", "engine.step_tokens=24", "engine.max_sequences=32",
                           "kv.block_tokens=8", NULL});
    cr_expect_eq(soq__alloc_live(), live);
}

/* 8 blocks for up to 16 sessions and their copies: some wait for others, some are turned away. */
Test(engine_threads, storm_in_little_memory, .timeout = 120)
{
    tight = true;
    storm((const char *[]){"backend.cpu.threads=1", "engine.chunk=512", "engine.max_sequences=32", "kv.block_tokens=256",
                           "kv.codec_k=f32", "kv.codec_v=f32", "kv.memory=2MiB", NULL});
    cr_expect_gt(atomic_load(&n_answers), N_THREADS);
}
