/* What may happen to a sequence between its prompt and the end of its answer, for any model, policy and codec: none of it shows
 * in the tokens. */
#ifndef SOQ_TESTS_COMBINATION_H
#define SOQ_TESTS_COMBINATION_H

#include <unistd.h>

#include "engine/session.h"
#include "tests/unit/told.h"

/* A combination, and what it gives undisturbed. */
struct combination {
    struct fixture f;
    struct told calm;
    int32_t ids[N_PROMPT];
    const char *what;
    bool selects;
};

static inline void preempted(struct combination *c, uint32_t every)
{
    struct soq__sequence *seq = new_sequence(&c->f);
    struct told t = {.preempt_every = every};

    run(seq, c->ids, N_PROMPT, &t);
    cr_expect_gt(t.n_preempted, c->f.model->engine->drafting.on ? 0 : 2, "%s", c->what);
    expect_same(&c->calm, &t, c->what);
    soq__sequence_free(seq);
}

/* What an earlier session computed is found up to a multiple of the grid. */
static inline void found_again(struct combination *c)
{
    const struct soq__engine *e = c->f.model->engine;
    uint32_t grid = e->layout.grid ? e->layout.grid : e->layout.block_tokens, again = 1;
    struct soq__sequence *seq = new_sequence(&c->f);
    struct told t = {0};
    struct soq__job job = run(seq, c->ids, N_PROMPT, &t);

    for (uint32_t i = 0; i < e->policies.n; i++) /* rows that policies weigh are computed again */
        if (soq__kv_weighs(&e->policies.kv[i]) && e->policies.kv[i].plan.queries > again)
            again = e->policies.kv[i].plan.queries;
    if (e->prefix.cache)
        cr_expect_eq(job.n_prefix, (N_PROMPT - again) / grid * grid, "%s: %u tokens were found", c->what, job.n_prefix);
    expect_same(&c->calm, &t, c->what);
    soq__sequence_free(seq);
}

static inline void went_astray(struct combination *c, uint32_t at)
{
    struct soq__sequence *seq = new_sequence(&c->f);
    struct soq_error err = SOQ_ERROR_INIT;
    struct told t = {0};
    int32_t wrong[N_PROMPT];

    make_ids(wrong, N_PROMPT, 7);
    memcpy(wrong, c->ids, at * sizeof *wrong);
    cr_assert_eq(run_ids(seq, wrong, N_PROMPT, 3, NULL, &err), 0, "%s", err.text);
    run(seq, c->ids, N_PROMPT, &t);
    expect_same(&c->calm, &t, c->what);
    soq__sequence_free(seq);
}

/* Where a policy selects, the end of the first prompt would be seen. */
static inline void forked(struct combination *c, uint32_t at)
{
    struct soq__sequence *seq = new_sequence(&c->f), *fork = NULL;
    struct soq_error err = SOQ_ERROR_INIT;
    struct told one = {0}, two = {0};

    if (!c->selects) {
        cr_assert_eq(run_ids(seq, c->ids, at, 0, NULL, &err), 0, "%s", err.text);
        cr_assert_eq(soq__sequence_fork(seq, &fork, &err), 0, "%s", err.text);
        run(seq, c->ids, N_PROMPT, &one);
        run(fork, c->ids, N_PROMPT, &two);
        expect_same(&c->calm, &one, c->what);
        expect_same(&c->calm, &two, c->what);
        soq__sequence_free(fork);
    }
    soq__sequence_free(seq);
}

static inline void saved_and_loaded(struct combination *c, bool out)
{
    char path[] = "/tmp/soquete-combined-XXXXXX";
    struct soq__sequence *seq = new_sequence(&c->f), *loaded = new_sequence(&c->f);
    struct soq_buf note = SOQ_BUF_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct told one = {0}, two = {0};
    int32_t ids[N_PROMPT + N_ANSWER + 20];
    int fd = mkstemp(path);

    cr_assert(fd >= 0 && close(fd) == 0);
    make_ids(ids, N_PROMPT + N_ANSWER + 20, 1);
    run(seq, ids, N_PROMPT, &one);
    memcpy(ids + N_PROMPT, one.ids, sizeof one.ids);
    if (out)
        cr_assert_eq(soq__preempt(seq, &err), 0, "%s", err.text);
    cr_assert_eq(soq__sequence_save(seq, path, "", 0, &err), 0, "%s", err.text);
    cr_assert_eq(soq__sequence_load(loaded, path, &note, &err), 0, "%s", err.text);
    run(seq, ids, N_PROMPT + N_ANSWER + 20, &one);
    run(loaded, ids, N_PROMPT + N_ANSWER + 20, &two);
    cr_expect(memcmp(one.ids, two.ids, sizeof one.ids) == 0, "%s: other tokens after a session was loaded", c->what);
    cr_expect_eq(soq__kv_seq_bytes(&seq->kv), soq__kv_seq_bytes(&loaded->kv));
    soq__buf_done(&note);
    soq__sequence_free(seq);
    soq__sequence_free(loaded);
    unlink(path);
}

#endif
