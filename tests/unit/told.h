/* A prompt and its answer, greedily and with the logits in between, while every so often the sequence loses its memory. */
#ifndef SOQ_TESTS_TOLD_H
#define SOQ_TESTS_TOLD_H

#include "engine/admit.h"
#include "tests/unit/policy_cases.h"

#define N_VOCAB 1024u /* at most */
#define N_PROMPT 97u
#define N_ANSWER 40u

struct told {
    int32_t ids[N_ANSWER];
    uint32_t n, preempt_every; /* steps; 0: never */
    uint32_t n_preempted;
    float logits[N_VOCAB]; /* behind the prompt */
};

/* Between two steps, under the lock: now and then the sequence loses its memory. */
static inline int hear(void *arg, const struct soq__job *job, int32_t token, struct soq_error *err)
{
    struct told *t = arg;

    (void)err;
    (void)job;
    t->ids[t->n++] = token;
    return 0;
}

static inline void see(void *arg, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct told *t = arg;

    if (position == N_PROMPT - 1)
        memcpy(t->logits, logits, (n_vocab < N_VOCAB ? n_vocab : N_VOCAB) * sizeof *logits);
}

/* Runs the job alone, step by step; every so often its sequence is preempted. */
static inline bool interfere(void *arg)
{
    struct soq__job *job = arg;
    struct told *t = job->arg;
    struct soq_error err = SOQ_ERROR_INIT;

    if (!t->preempt_every || job->seq->engine->stepping || job->state != SOQ__JOB_RUNNING ||
        job->seq->kv.n_committed % t->preempt_every >= 3 || t->n_preempted > job->seq->kv.n_committed / 12)
        return false;
    cr_assert_eq(soq__preempt(job->seq, &err), 0, "%s", err.text);
    t->n_preempted++;
    return false;
}

static inline struct soq__job run(struct soq__sequence *seq, const int32_t *ids, uint32_t n, struct told *t)
{
    struct soq__job job = {.seq = seq,
                           .prompt = ids,
                           .n_prompt = n,
                           .max_tokens = N_ANSWER,
                           .ignore_eog = true,
                           .sampling = greedy(),
                           .on_sampled = hear,
                           .arg = t};

    if (n == N_PROMPT) {
        job.on_logits = see;
        job.logits_from = n - 1;
    }
    t->n = 0;
    soq__engine_run(seq->engine, &job, interfere, &job);
    cr_assert_eq(job.rc, 0, "%s", job.err.text);
    cr_assert_eq(t->n, N_ANSWER);
    return job;
}

static inline void expect_same(const struct told *a, const struct told *b, const char *what)
{
    cr_expect(memcmp(a->ids, b->ids, sizeof a->ids) == 0, "%s: other tokens", what);
    cr_expect(memcmp(a->logits, b->logits, sizeof a->logits) == 0, "%s: other logits", what);
}

#endif
