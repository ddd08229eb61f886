/* One step: admit jobs, pick rows, compute, sample, commit. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"

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

static void finish(struct soq__engine *e, struct soq__job *job, int reason)
{
    unlink_job(e, job);
    soq__kv_unreserve(&job->seq->kv);
    job->seq->job = NULL;
    job->reason = reason;
    job->state = SOQ__JOB_DONE;
    e->n_done++;
}

/* code: the negative code that err holds */
static void finish_failed(struct soq__engine *e, struct soq__job *job, int code, const struct soq_error *err)
{
    soq__kv_abandon(&job->seq->kv);
    job->rc = code;
    if (err != &job->err)
        job->err = *err;
    finish(e, job, 0);
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

/* Keeps the common part of what is computed and the prompt; at least the last token is computed again, for its logits. */
static void reuse_prefix(const struct soq__engine *e, struct soq__job *job)
{
    struct soq__sequence *seq = job->seq;
    uint32_t keep = 0, most = min_u32(seq->kv.n_committed, job->n_prompt - 1), rows = weighed_rows(e), point;

    if (job->on_logits)
        most = min_u32(most, job->logits_from);
    while (keep < most && seq->tokens[keep] == job->prompt[keep])
        keep++;
    point = soq__kv_rollback_point(&seq->kv, min_u32(keep, job->n_prompt > rows ? job->n_prompt - rows : 0));
    if (!point) /* entries were evicted or a window has passed: go on from the end if that is possible, else begin again */
        point = soq__kv_rollback_point(&seq->kv, keep);
    soq__kv_rollback(&seq->kv, point, NULL);
    memcpy(seq->tokens, job->prompt, job->n_prompt * sizeof *seq->tokens);
    seq->n_tokens = job->n_prompt;
    job->n_cached = point;
}

static bool anything_runs(const struct soq__engine *e)
{
    for (const struct soq__job *j = e->jobs; j; j = j->next)
        if (j->state == SOQ__JOB_RUNNING)
            return true;
    return false;
}

/* First come, first served: a job that must wait for memory holds up those behind it, so that it is not starved. */
static void admit(struct soq__engine *e)
{
    struct soq__job *next;
    bool held_up = false;

    for (struct soq__job *job = e->jobs; job; job = next) {
        uint64_t wanted = (uint64_t)job->n_prompt + job->max_tokens;
        int rc;

        next = job->next;
        if (job->state != SOQ__JOB_QUEUED)
            continue;
        if (atomic_load(&job->seq->cancelled)) {
            finish(e, job, SOQ_REASON_CANCELLED);
            continue;
        }
        if (held_up)
            continue;
        reuse_prefix(e, job);
        rc = soq__kv_reserve(&job->seq->kv, job->n_prompt, wanted < e->context ? (uint32_t)wanted : e->context, &job->err);
        held_up = rc == -SOQ_EBUSY && anything_runs(e);
        if (held_up)
            continue;
        if (rc)
            finish_failed(e, job, rc, &job->err);
        else
            job->state = SOQ__JOB_RUNNING;
    }
}

/* ---- Planning -------------------------------------------------------------------------------------------------------- */

static uint32_t pending(const struct soq__job *job)
{
    return job->seq->n_tokens - job->seq->kv.n_committed;
}

static bool is_decoding(const struct soq__job *job)
{
    return job->n_generated > 0;
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
        finish_failed(e, job, rc, &job->err);
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
    for (int decoding = 1; decoding >= 0; decoding--)
        for (struct soq__job *job = e->jobs; job; job = next) {
            uint32_t budget = decoding ? e->max_rows : e->step_tokens;

            next = job->next;
            if (job->state != SOQ__JOB_RUNNING || is_decoding(job) != (bool)decoding)
                continue;
            job->step_rows = 0;
            if (atomic_load(&job->seq->cancelled))
                finish(e, job, SOQ_REASON_CANCELLED);
            else if (e->step.n_rows < budget && e->step.n_seqs < e->step.max_seqs)
                plan_job(e, job, chunk_rows(e, job, budget - e->step.n_rows, e->max_outputs - e->step.n_outputs));
        }
}

/* ---- After the forward pass ------------------------------------------------------------------------------------------ */

/* Draws the next token from the job's last row. */
static int sample(struct soq__engine *e, struct soq__job *job, float *logits, struct soq_sampled *out)
{
    struct soq__sequence *seq = job->seq;
    struct soq_sampler_row row = {
        .struct_size = sizeof row,
        .n_vocab = e->net.logits.cols,
        .logits = logits,
        .scratch = e->scratch,
        .history = seq->tokens,
        .n_history = seq->n_tokens,
        .position = seq->n_tokens,
    };

    *out = (struct soq_sampled){.struct_size = sizeof *out};
    return e->sampler.plugin->ops.sampler->sample(e->sampler.self, seq->sampler_state, &job->sampling, &row, out, &job->err);
}

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
}

/* Logits out, rows committed, next token drawn, end noticed. */
static void advance(struct soq__engine *e, struct soq__job *job, const float *logits)
{
    struct soq__sequence *seq = job->seq;
    bool prompt_ends = !is_decoding(job) && seq->kv.n_committed + job->step_rows == seq->n_tokens;
    struct soq_sampled sampled;
    int rc;

    deliver_logits(e, job, logits);
    rc = soq__kv_commit(&seq->kv, job->step_rows, &job->err);
    if (prompt_ends)
        job->prompt_done = soq__clock_now();
    if (!rc && seq->kv.n_committed == seq->n_tokens) {
        if (!job->max_tokens) {
            finish(e, job, SOQ_REASON_LENGTH);
            return;
        }
        rc = sample(e, job,
                    (float *)(uintptr_t)logits + (size_t)(job->first_output + job->step_outputs - 1) * e->net.logits.cols,
                    &sampled);
        if (!rc)
            rc = accept(e, job, &sampled);
    }
    if (rc < 0)
        finish_failed(e, job, rc, &job->err);
    else if (rc > 0)
        finish(e, job, rc);
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
            finish(e, job, SOQ_REASON_CANCELLED);
        } else {
            finish_failed(e, job, rc, &e->step_err);
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

    admit(e);
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
    for (struct soq__job *job = e->jobs; job; job = next) {
        next = job->next;
        if (job->step_rows)
            advance(e, job, logits);
    }
    return true;
}
