/* Admission and preemption. */
#include "engine/admit.h"

#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/minmax.h"
#include "base/size.h"
#include "engine/jobs.h"
#include "kv/swap.h"

#define OVERTAKEN_MAX 16 /* times that a waiting job is passed over */

/* ---- Priority -------------------------------------------------------------------------------------------------------- */

static int32_t priority_of(const struct soq__job *job)
{
    return job->n_overtaken < OVERTAKEN_MAX ? job->priority : INT32_MAX;
}

/* The job whose turn it is. */
static struct soq__job *next_queued(const struct soq__engine *e)
{
    struct soq__job *best = NULL;

    for (struct soq__job *job = e->jobs; job; job = job->next)
        if (job->state == SOQ__JOB_QUEUED && (!best || priority_of(job) > priority_of(best)))
            best = job;
    return best;
}

/* Those that came earlier are told. */
static void overtake(struct soq__engine *e, const struct soq__job *job)
{
    for (struct soq__job *other = e->jobs; other != job; other = other->next)
        other->n_overtaken += other->state == SOQ__JOB_QUEUED;
}

static bool anything_runs(const struct soq__engine *e)
{
    for (const struct soq__job *j = e->jobs; j; j = j->next)
        if (j->state == SOQ__JOB_RUNNING)
            return true;
    return false;
}

/* ---- Preemption ------------------------------------------------------------------------------------------------------ */

int soq__preempt(struct soq__sequence *seq, struct soq_error *err)
{
    struct soq__engine *e = seq->engine;
    int rc = -SOQ_EBUSY;

    if (e->preempt.swap)
        rc = soq__kv_swap_out(&seq->kv, err);
    if (rc && e->preempt.recompute) {
        seq->n_dropped = soq__sequence_computed(seq);
        soq__kv_rollback(&seq->kv, 0, NULL);
        e->preempt.n_dropped++;
        rc = 0;
    }
    if (rc)
        return rc == -SOQ_EBUSY ? soq__fail(err, SOQ_EBUSY, "[kv] preempt forbids to preempt sequences") : rc;
    soq__kv_unreserve(&seq->kv);
    if (seq->job)
        seq->job->state = SOQ__JOB_QUEUED;
    return 0;
}

static struct soq__sequence *sequence_at(const struct soq__engine *e, uint32_t slot)
{
    struct soq__kv_seq *kv = e->kv.slots[slot];

    return kv ? (struct soq__sequence *)((char *)kv - offsetof(struct soq__sequence, kv)) : NULL;
}

/* Something would be freed, and it has not been tried in vain. */
static bool may_go(const struct soq__engine *e, const struct soq__sequence *seq)
{
    return seq->kept != e->preempt.round && soq__kv_seq_bytes(&seq->kv) > 0;
}

/* The sequence without a job that was used least recently. */
static struct soq__sequence *idle_victim(const struct soq__engine *e, const struct soq__sequence *except)
{
    struct soq__sequence *victim = NULL;

    for (uint32_t i = 0; i < e->max_sequences; i++) {
        struct soq__sequence *seq = sequence_at(e, i);

        if (seq && seq != except && !seq->job && may_go(e, seq) && (!victim || seq->used < victim->used))
            victim = seq;
    }
    return victim;
}

/* Among jobs: one that waits, the latest first, else one that runs and has a lower priority: the lowest, of these the latest.
 */
static struct soq__sequence *job_victim(const struct soq__engine *e, const struct soq__sequence *except, int32_t priority)
{
    const struct soq__job *victim = NULL;

    for (const struct soq__job *job = e->jobs; job; job = job->next)
        if (job->state == SOQ__JOB_QUEUED && job->seq != except && may_go(e, job->seq))
            victim = job;
    for (const struct soq__job *job = victim ? NULL : e->jobs; job; job = job->next)
        if (job->state == SOQ__JOB_RUNNING && priority_of(job) < priority && may_go(e, job->seq) &&
            (!victim || priority_of(job) <= priority_of(victim)))
            victim = job;
    return victim ? victim->seq : NULL;
}

/* Frees something, in the order that the header tells; false: there is nothing left. */
static bool make_room(struct soq__engine *e, const struct soq__sequence *except, int32_t priority)
{
    struct soq__sequence *victim;

    if (e->prefix.cache && soq__prefix_give_way(&e->prefix))
        return true;
    while ((victim = idle_victim(e, except)) || (victim = job_victim(e, except, priority))) {
        if (soq__preempt(victim, NULL) == 0)
            return true;
        victim->kept = e->preempt.round;
    }
    return false;
}

bool soq__make_room_for_fork(struct soq__sequence *seq)
{
    seq->engine->preempt.round++;
    return make_room(seq->engine, seq, INT32_MIN);
}

/* A promise, and the blocks in the pool. */
static int reserve(struct soq__sequence *seq, uint32_t n_prompt, uint32_t n_entries, int32_t priority, struct soq_error *err)
{
    int rc;

    seq->engine->preempt.round++;
    do
        rc = soq__kv_reserve(&seq->kv, n_prompt, n_entries, err);
    while (rc == -SOQ_EBUSY && make_room(seq->engine, seq, priority));
    return rc ? rc : soq__kv_swap_in(&seq->kv, err);
}

int soq__bring_in(struct soq__sequence *seq, struct soq_error *err)
{
    int rc;

    if (!soq__kv_is_out(&seq->kv))
        return 0;
    rc = reserve(seq, seq->kv.n_prompt, seq->kv.n_committed, INT32_MIN, err);
    soq__kv_unreserve(&seq->kv);
    return rc;
}

/* ---- Admission ------------------------------------------------------------------------------------------------------- */

/* Rows at the end of a prompt whose attention decides what stays: they are computed anew even if they are cached. */
static uint32_t weighed_rows(const struct soq__engine *e)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < e->policies.n; i++)
        if (soq__kv_weighs(&e->policies.kv[i]) && e->policies.kv[i].plan.queries > most)
            most = e->policies.kv[i].plan.queries;
    return most;
}

/* Takes what the prefix index knows of the first `most` tokens, if that is more than the sequence has itself; returns how many
 * tokens that is, or 0. */
static uint32_t take_prefix(struct soq__engine *e, struct soq__sequence *seq, uint32_t most)
{
    uint32_t hit = seq->root ? soq__prefix_match(&e->prefix, seq->root, seq->tokens, most, soq__clock_now()) : 0;

    if (hit <= seq->kv.n_committed)
        return 0;
    soq__kv_rollback(&seq->kv, 0, NULL);
    return soq__prefix_take(&e->prefix, &seq->kv, hit, NULL) == 0 ? hit : 0;
}

/* Keeps the common part of what is computed and the prompt; at least the last token is computed again, for its logits. */
static void reuse(struct soq__engine *e, struct soq__job *job)
{
    struct soq__sequence *seq = job->seq;
    uint32_t keep = 0, most = job->n_prompt - 1, rows = weighed_rows(e), point, taken;

    if (job->on_logits)
        most = soq__min_u32(most, job->logits_from);
    while (keep < soq__min_u32(most, seq->kv.n_committed) && seq->tokens[keep] == job->prompt[keep])
        keep++;
    point = soq__kv_rollback_point(&seq->kv, soq__min_u32(keep, job->n_prompt > rows ? job->n_prompt - rows : 0));
    if (!point) /* entries were evicted or a window has passed: go on from the end if that is possible, else begin again */
        point = soq__kv_rollback_point(&seq->kv, keep);
    soq__kv_rollback(&seq->kv, point, NULL);
    memcpy(seq->tokens, job->prompt, job->n_prompt * sizeof *seq->tokens);
    seq->n_tokens = job->n_prompt;
    seq->n_dropped = 0;
    taken = take_prefix(e, seq, soq__min_u32(most, job->n_prompt > rows ? job->n_prompt - rows : 0));
    job->n_cached = seq->kv.n_committed;
    job->n_prefix = taken ? taken : soq__min_u32(job->n_prefix, job->n_cached); /* some may be left of an earlier try */
}

/* After a preemption: the tokens are known, and where blocks were dropped some may be found again. */
static void resume(struct soq__engine *e, struct soq__job *job)
{
    if (!job->seq->kv.n_committed)
        take_prefix(e, job->seq, job->seq->n_tokens - 1);
}

static void start(struct soq__engine *e, struct soq__job *job)
{
    if (!job->was_admitted && job->seq->root)
        soq__prefix_count(&e->prefix, job->n_prefix);
    job->was_admitted = true;
    job->state = SOQ__JOB_RUNNING;
    overtake(e, job);
}

/* Why nobody was preempted. */
static void explain(const struct soq__engine *e, struct soq_error *err)
{
    struct soq_error what = *err;

    if (!e->preempt.swap && !e->preempt.recompute)
        soq__fail(err, SOQ_EBUSY, "%s; they stay because of [kv] preempt", what.text);
    else if (!e->preempt.recompute)
        soq__fail(err, SOQ_EBUSY, "%s; to swap them out raise [kv] swap_memory, %s of %s are in use", what.text,
                  SOQ__SIZE(e->kv.swap.used), SOQ__SIZE(e->kv.swap.limit));
}

/* Returns whether those behind may be tried, too. */
static bool try_to_admit(struct soq__engine *e, struct soq__job *job)
{
    uint64_t wanted = (uint64_t)job->n_prompt + job->max_tokens;
    int rc;

    if (job->was_admitted)
        resume(e, job);
    else
        reuse(e, job);
    rc = reserve(job->seq, job->n_prompt, wanted < e->context ? (uint32_t)wanted : e->context, priority_of(job), &job->err);
    if (rc == -SOQ_EBUSY && anything_runs(e))
        return false;
    if (rc == -SOQ_EBUSY)
        explain(e, &job->err);
    if (rc)
        soq__job_failed(e, job, rc, &job->err);
    else
        start(e, job);
    return true;
}

void soq__admit(struct soq__engine *e)
{
    struct soq__job *job, *next;

    for (job = e->jobs; job; job = next) {
        next = job->next;
        if (job->state == SOQ__JOB_QUEUED && atomic_load(&job->seq->cancelled))
            soq__job_done(e, job, SOQ_REASON_CANCELLED);
    }
    do
        job = next_queued(e);
    while (job && try_to_admit(e, job));
}
