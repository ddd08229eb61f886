/* One step: pick rows, compute, sample, commit. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/admit.h"
#include "engine/draw.h"
#include "engine/jobs.h"

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void unlink_job(struct soq__engine *e, struct soq__job *job)
{
    struct soq__job **at = &e->jobs;

    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    job->next = NULL;
}

void soq__job_done(struct soq__engine *e, struct soq__job *job, int reason)
{
    unlink_job(e, job);
    soq__kv_unreserve(&job->seq->kv);
    job->seq->job = NULL;
    job->reason = reason;
    job->state = SOQ__JOB_DONE;
    job->seq->used = ++e->n_done;
}

void soq__job_failed(struct soq__engine *e, struct soq__job *job, int code, const struct soq_error *err)
{
    soq__kv_abandon(&job->seq->kv);
    job->rc = code;
    if (err != &job->err)
        job->err = *err;
    soq__job_done(e, job, 0);
}

/* ---- Planning -------------------------------------------------------------------------------------------------------- */

static uint32_t pending(const struct soq__job *job)
{
    return job->seq->n_tokens - job->seq->kv.n_committed;
}

/* One row at a time; after a preemption there may be more to compute again first. */
static bool is_decoding(const struct soq__job *job)
{
    return job->n_generated > 0 && pending(job) == 1;
}

/* How many of the job's next n rows want logits: the last known token's, and whatever the owner asked for. */
static uint32_t outputs_of(const struct soq__job *job, uint32_t n)
{
    uint32_t first = job->seq->kv.n_committed, end = first + n;
    bool sample = end == job->seq->n_tokens && job->max_tokens > 0;

    if (job->on_logits && end > job->logits_from)
        return end - (job->logits_from > first ? job->logits_from : first);
    return sample;
}

/* Rows of a prompt that fit into what is left of the step. */
static uint32_t chunk_rows(const struct soq__engine *e, const struct soq__job *job, uint32_t rows_left, uint32_t outputs_left)
{
    uint32_t n = min_u32(min_u32(pending(job), e->chunk), min_u32(rows_left, soq__kv_max_rows(&job->seq->kv)));

    while (n && outputs_of(job, n) > outputs_left)
        n--;
    return n;
}

static void plan_job(struct soq__engine *e, struct soq__job *job, uint32_t n)
{
    int rc;

    if (!n)
        return;
    rc = soq__kv_prepare(&job->seq->kv, n, &job->err);
    if (rc) {
        soq__job_failed(e, job, rc, &job->err);
        return;
    }
    job->step_rows = n;
    job->step_outputs = outputs_of(job, n);
    e->in_flight[e->n_in_flight++] = &job->seq->cancelled;
    job->first_output =
        soq__step_add(&e->step, &job->seq->kv, job->seq->tokens + job->seq->kv.n_committed, n, job->step_outputs);
}

/* Decode rows first, so that nobody's stream stalls behind a long prompt; then prompts in order of arrival. */
static void plan(struct soq__engine *e)
{
    struct soq__job *next;

    soq__step_reset(&e->step);
    e->n_in_flight = 0;
    for (struct soq__job *job = e->jobs; job; job = job->next)
        job->step_rows = 0;
    for (int decoding = 1; decoding >= 0; decoding--)
        for (struct soq__job *job = e->jobs; job; job = next) {
            uint32_t budget = decoding ? e->max_rows : e->step_tokens;

            next = job->next;
            if (job->state != SOQ__JOB_RUNNING || is_decoding(job) != (bool)decoding)
                continue;
            if (atomic_load(&job->seq->cancelled))
                soq__job_done(e, job, SOQ_REASON_CANCELLED);
            else if (e->step.n_rows < budget && e->step.n_seqs < e->step.max_seqs)
                plan_job(e, job, chunk_rows(e, job, budget - e->step.n_rows, e->max_outputs - e->step.n_outputs));
        }
}

/* ---- After the forward pass ------------------------------------------------------------------------------------------ */

static bool ends_generation(const struct soq__engine *e, const struct soq__job *job, int32_t token)
{
    return !job->ignore_eog && e->model->tokenizer && soq__tokenizer_is_eog(e->model->tokenizer, token);
}

/* Takes a sampled token into the sequence; returns the reason to end, 0 to go on, negative on failure. */
static int accept(struct soq__engine *e, struct soq__job *job, const struct soq_sampled *s)
{
    struct soq__sequence *seq = job->seq;
    double now = soq__clock_now();
    int reason;

    if (!job->n_generated)
        job->first_token = job->last_token = now;
    seq->logprobs[seq->n_tokens] = s->logprob;
    seq->tokens[seq->n_tokens++] = s->token;
    if (ends_generation(e, job, s->token))
        return SOQ_REASON_EOG;
    job->last_token = now;
    job->n_generated++;
    reason = job->on_sampled ? job->on_sampled(job->arg, job, s->token, &job->err) : 0;
    if (reason)
        return reason;
    return job->n_generated >= job->max_tokens || seq->n_tokens > e->context ? SOQ_REASON_LENGTH : 0;
}

static void deliver_logits(struct soq__engine *e, struct soq__job *job, const float *logits)
{
    uint32_t first = job->seq->kv.n_committed + job->step_rows - job->step_outputs, n_vocab = e->net.logits.cols;

    for (uint32_t i = 0; job->on_logits && i < job->step_outputs; i++)
        job->on_logits(job->arg, first + i, logits + (size_t)(job->first_output + i) * n_vocab, n_vocab);
    if (job->logits_from < first + job->step_outputs) /* not again, where rows are computed again after a preemption */
        job->logits_from = first + job->step_outputs;
}

/* Full blocks that the commit added go into the index: plain ones before anything of them is evicted, packed ones when they are
 * there. */
static void publish(struct soq__engine *e, struct soq__sequence *seq, uint32_t before, uint32_t end, bool is_committed)
{
    uint32_t grid = e->layout.grid ? e->layout.grid : e->layout.block_tokens;

    if (seq->root && is_committed == (e->layout.grid > 0) && end / grid > before / grid)
        soq__prefix_publish(&e->prefix, seq->root, &seq->kv, seq->tokens, end / grid * grid, soq__clock_now());
}

/* Rows committed, next token taken, end noticed. */
static void advance(struct soq__engine *e, struct soq__job *job)
{
    struct soq__sequence *seq = job->seq;
    uint32_t before = seq->kv.n_committed, end = before + job->step_rows;
    bool prompt_ends = !job->n_generated && end == seq->n_tokens;
    int rc;

    publish(e, seq, before, end, false);
    rc = soq__kv_commit(&seq->kv, job->step_rows, &job->err);
    if (!rc)
        publish(e, seq, before, end, true);
    if (prompt_ends)
        job->prompt_done = soq__clock_now();
    if (!rc && seq->kv.n_committed == seq->n_tokens) {
        if (!job->max_tokens) {
            soq__job_done(e, job, SOQ_REASON_LENGTH);
            return;
        }
        rc = job->draw_rc;
        if (!rc && job->forced)
            job->drawn.token = job->forced[job->n_generated];
        if (!rc)
            rc = accept(e, job, &job->drawn);
    }
    if (rc < 0)
        soq__job_failed(e, job, rc, &job->err);
    else if (rc > 0)
        soq__job_done(e, job, rc);
}

static void step_failed(struct soq__engine *e, int rc)
{
    struct soq__job *next;

    for (struct soq__job *job = e->jobs; job; job = next) {
        next = job->next;
        if (!job->step_rows)
            continue;
        if (rc == -SOQ_ECANCELLED && atomic_load(&job->seq->cancelled)) {
            soq__kv_abandon(&job->seq->kv);
            soq__job_done(e, job, SOQ_REASON_CANCELLED);
        } else {
            soq__job_failed(e, job, rc, &e->step_err);
        }
    }
}

bool soq__engine_step(struct soq__engine *e)
{
    const struct soq_step *step;
    const float *logits;
    struct soq__job *next;
    uint64_t done_before = e->n_done;
    int rc;

    soq__admit(e);
    plan(e);
    if (!e->step.n_rows)
        return e->n_done != done_before; /* some may have been cancelled or refused */
    e->step_err = (struct soq_error)SOQ_ERROR_INIT;
    rc = soq__kv_mass_begin(&e->kv, e->step.n_lines, e->step.n_entries, &e->step_err);
    if (!rc)
        rc = soq__step_finish(&e->step, &e->kv, &step, &e->step_err);
    if (!rc) {
        e->stepping = true;
        pthread_mutex_unlock(&e->lock);
        rc = soq__forward(&e->net, &e->kv, step, &e->step_err);
        pthread_mutex_lock(&e->lock);
        e->stepping = false;
    }
    if (!rc && e->step.n_outputs)
        rc = soq__exec_tensor_read(&e->exec, soq__rows(e->net.logits, e->step.n_outputs), e->logits, &logits, &e->step_err);
    else
        logits = NULL;
    if (rc) {
        step_failed(e, rc);
        return true;
    }
    soq__kv_delivered(&e->kv);
    for (struct soq__job *job = e->jobs; job; job = job->next)
        if (job->step_rows)
            deliver_logits(e, job, logits);
    soq__draw_all(e, (float *)(uintptr_t)logits);
    for (struct soq__job *job = e->jobs; job; job = next) {
        next = job->next;
        if (job->step_rows)
            advance(e, job);
    }
    return true;
}
