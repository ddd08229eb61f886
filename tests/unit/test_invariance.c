/* A sequence's tokens and logits are bit-identical however its rows are batched: alone, among others, in chunks of any size,
 * after a fork, after a rollback. With the settings that users have: 8-bit activations, f16 cache. */
#include <pthread.h>

#include "tests/unit/engine_fixture.h"

#define N_PROMPT 150
#define N_GENERATE 12
#define N_ROWS (N_PROMPT + N_GENERATE - 1)

static const char *const models[] = {"golden/llama256/model-q4_k.gguf", "golden/llama256/model-q4_1.gguf",
                                     "golden/gemma3/model.gguf", "kv-golden/models/gqa.gguf"};

struct outcome {
    float *logits; /* [N_ROWS][n_vocab] */
    int32_t tokens[N_PROMPT + N_GENERATE];
    uint32_t n_vocab;
};

static void finish(struct soq__sequence *seq, struct collected *c, struct outcome *o)
{
    o->logits = c->logits;
    o->n_vocab = c->n_vocab;
    memcpy(o->tokens, seq->tokens, sizeof o->tokens);
    soq__sequence_free(seq);
}

static struct outcome run_alone(const char *model, const char *use, const char *chunk, const char *step, const char *threads)
{
    const char *settings[] = {use, chunk, step, threads, NULL};
    struct fixture f = open_model(model, settings);
    struct soq__sequence *seq = new_sequence(&f);
    struct soq_error err = SOQ_ERROR_INIT;
    struct collected c = {.rows = N_ROWS};
    struct outcome o = {0};
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    cr_assert_eq(run_ids(seq, ids, N_PROMPT, N_GENERATE, &c, &err), 0, "%s", err.text);
    finish(seq, &c, &o);
    close_model(&f);
    return o;
}

static void expect_same(const struct outcome *a, struct outcome *b, const char *model, const char *use, const char *what)
{
    cr_expect(memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0, "%s (%s): tokens differ %s", model, use, what);
    cr_expect(memcmp(a->logits, b->logits, (size_t)N_ROWS * a->n_vocab * sizeof(float)) == 0, "%s (%s): logits differ %s",
              model, use, what);
    soq__free(b->logits);
    b->logits = NULL;
}

static void check_chunks(const char *use)
{
    static const char *const variants[][4] = {
        {"engine.chunk=1", "engine.step_tokens=512", "backend.cpu.threads=2", "in chunks of 1"},
        {"engine.chunk=7", "engine.step_tokens=512", "backend.cpu.threads=2", "in chunks of 7"},
        {"engine.chunk=32", "engine.step_tokens=512", "backend.cpu.threads=2", "in chunks of 32"},
        {"engine.chunk=512", "engine.step_tokens=512", "backend.cpu.threads=1", "on one thread"},
        {"engine.chunk=512", "engine.step_tokens=512", "backend.cpu.threads=3", "on three threads"},
        {"engine.chunk=512", "engine.step_tokens=45", "backend.cpu.threads=2", "under a small token budget"},
    };

    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        struct outcome base = run_alone(models[m], use, "engine.chunk=512", "engine.step_tokens=512", "backend.cpu.threads=2");

        for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
            struct outcome o = run_alone(models[m], use, variants[v][0], variants[v][1], variants[v][2]);

            expect_same(&base, &o, models[m], use, variants[v][3]);
        }
        soq__free(base.logits);
    }
}

Test(invariance, chunks_and_threads)
{
    cr_assert(for_each_backend(check_chunks) > 0);
}

/* ---- Among seven others, which join and leave at different times ----------------------------------------------------- */

struct other {
    struct fixture *f;
    uint32_t number;
};

static void *run_other(void *arg)
{
    const struct other *o = arg;
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t round = 0; round < 3; round++) {
        struct soq__sequence *seq = new_sequence(o->f);
        uint32_t n = 20 + o->number * 11 + round * 7;
        int32_t ids[N_PROMPT];

        make_ids(ids, n, 50 + o->number);
        cr_expect_eq(run_ids(seq, ids, n, 3 + o->number, NULL, &err), 0, "%s", err.text);
        soq__sequence_free(seq);
    }
    return NULL;
}

static void check_batch(const char *use)
{
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        const char *settings[] = {use, "engine.chunk=16", "engine.step_tokens=64", "backend.cpu.threads=2", NULL};
        struct outcome base = run_alone(models[m], use, "engine.chunk=512", "engine.step_tokens=512", "backend.cpu.threads=2"),
                       o = {0};
        struct fixture f = open_model(models[m], settings);
        struct soq__sequence *seq = new_sequence(&f);
        struct soq_error err = SOQ_ERROR_INIT;
        struct collected c = {.rows = N_ROWS};
        struct other others[7];
        pthread_t threads[7];
        int32_t ids[N_PROMPT];

        for (uint32_t i = 0; i < 7; i++) {
            others[i] = (struct other){&f, i};
            cr_assert_eq(pthread_create(&threads[i], NULL, run_other, &others[i]), 0);
        }
        make_ids(ids, N_PROMPT, 1);
        cr_assert_eq(run_ids(seq, ids, N_PROMPT, N_GENERATE, &c, &err), 0, "%s", err.text);
        for (int i = 0; i < 7; i++)
            pthread_join(threads[i], NULL);
        finish(seq, &c, &o);
        expect_same(&base, &o, models[m], use, "in a batch of eight");
        soq__free(base.logits);
        close_model(&f);
    }
}

Test(invariance, batch_of_eight)
{
    cr_assert(for_each_backend(check_batch) > 0);
}

/* ---- Fork and rollback ----------------------------------------------------------------------------------------------- */

/* The first `shared` tokens are computed in one sequence, the rest in a fork of it, while the original goes another way. */
static void check_fork(const char *use)
{
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        const char *settings[] = {use, NULL};
        struct outcome base = run_alone(models[m], use, "engine.chunk=512", "engine.step_tokens=512", "backend.cpu.threads=2");
        struct fixture f = open_model(models[m], settings);
        struct soq__sequence *seq = new_sequence(&f), *fork = NULL;
        struct soq_error err = SOQ_ERROR_INIT;
        const uint32_t shared = 77;
        struct collected c = {.from = shared, .rows = N_ROWS - shared};
        int32_t ids[N_PROMPT], away[N_PROMPT];
        size_t row;

        make_ids(ids, N_PROMPT, 1);
        memcpy(away, ids, sizeof away);
        make_ids(away + shared, N_PROMPT - shared, 9);
        cr_assert_eq(run_ids(seq, ids, shared, 0, NULL, &err), 0, "%s", err.text);
        cr_assert_eq(soq__sequence_fork(seq, &fork, &err), 0, "%s", err.text);
        cr_assert_eq(run_ids(seq, away, N_PROMPT, 2, NULL, &err), 0, "%s", err.text);
        cr_assert_eq(run_ids(fork, ids, N_PROMPT, N_GENERATE, &c, &err), 0, "%s", err.text);
        row = (size_t)c.n_vocab;
        cr_expect(memcmp(base.logits + shared * row, c.logits, c.rows * row * sizeof(float)) == 0,
                  "%s (%s): logits differ after a fork", models[m], use);
        cr_expect(memcmp(base.tokens, fork->tokens, sizeof base.tokens) == 0, "%s (%s): tokens differ after a fork", models[m],
                  use);
        soq__free(c.logits);
        soq__sequence_free(seq);
        soq__sequence_free(fork);
        soq__free(base.logits);
        close_model(&f);
    }
}

Test(invariance, fork)
{
    cr_assert(for_each_backend(check_fork) > 0);
}

/* A wrong continuation is computed, thrown away, and the right one computed over it. */
static void check_rollback(const char *use)
{
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        const char *settings[] = {use, NULL};
        struct outcome base = run_alone(models[m], use, "engine.chunk=512", "engine.step_tokens=512", "backend.cpu.threads=2");
        struct fixture f = open_model(models[m], settings);
        struct soq__sequence *seq = new_sequence(&f);
        struct soq_error err = SOQ_ERROR_INIT;
        const uint32_t keep = 141;
        struct collected c = {.from = keep, .rows = N_ROWS - keep};
        int32_t ids[N_PROMPT], wrong[N_PROMPT];

        make_ids(ids, N_PROMPT, 1);
        memcpy(wrong, ids, sizeof wrong);
        make_ids(wrong + keep, N_PROMPT - keep, 5);
        cr_assert_eq(run_ids(seq, wrong, N_PROMPT, 1, NULL, &err), 0, "%s", err.text);
        cr_assert_eq(seq->kv.n_committed, N_PROMPT);
        cr_assert_eq(run_ids(seq, ids, N_PROMPT, N_GENERATE, &c, &err), 0, "%s", err.text);
        cr_expect(memcmp(base.logits + (size_t)keep * c.n_vocab, c.logits, (size_t)c.rows * c.n_vocab * sizeof(float)) == 0,
                  "%s (%s): logits differ after a rollback", models[m], use);
        cr_expect(memcmp(base.tokens, seq->tokens, sizeof base.tokens) == 0, "%s (%s): tokens differ after a rollback",
                  models[m], use);
        soq__free(c.logits);
        soq__free(base.logits);
        soq__sequence_free(seq);
        close_model(&f);
    }
}

Test(invariance, rollback)
{
    cr_assert(for_each_backend(check_rollback) > 0);
}
