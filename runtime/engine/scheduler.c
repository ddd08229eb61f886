/* One step: pick rows, compute, sample, commit. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/minmax.h"
#include "engine/admit.h"
#include "engine/draft.h"
#include "engine/draw.h"
#include "engine/jobs.h"

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
    job->kv_after = job->seq->kv.stats;
    job->kv_bytes = soq__kv_seq_bytes(&job->seq->kv);
    job->kv_draft_bytes = soq__kv_draft_bytes(&job->seq->kv);
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

/* What the jobs planned so far take of the step. */
struct planned {
    uint32_t rows, outputs, seqs;
};

/* Rows of a prompt that fit into what is left of the step. */
static uint32_t chunk_rows(const struct soq__engine *e, const struct soq__job *job, uint32_t rows_left, uint32_t outputs_left)
{
    uint32_t n = soq__min_u32(soq__min_u32(pending(job), e->chunk), soq__min_u32(rows_left, soq__kv_max_rows(&job->seq->kv)));

    while (n && outputs_of(job, n) > outputs_left)
        n--;
    return n;
}

/* n known tokens, then drafts. */
static void plan_job(struct soq__engine *e, struct soq__job *job, uint32_t n, uint32_t n_drafts, struct planned *planned)
{
    int rc;

    if (!n)
        return;
    rc = soq__kv_prepare(&job->seq->kv, n + n_drafts, &job->err);
    if (rc) {
        soq__job_failed(e, job, rc, &job->err);
        return;
    }
    job->n_drafts = n_drafts;
    job->step_rows = n + n_drafts;
    job->step_outputs = outputs_of(job, n) + n_drafts;
    planned->rows += job->step_rows;
    planned->outputs += job->step_outputs;
    planned->seqs++;
    e->in_flight[e->n_in_flight++] = &job->seq->cancelled;
}

/* Decode rows first, so that nobody's stream stalls behind a long prompt; then prompts in order of arrival, for which at least
 * half a step is kept. For decode rows and their drafts there is always room: how many a job drafts shows in what it draws
 * beyond temperature 0, so it must not depend on the others. */
static void plan(struct soq__engine *e)
{
    struct planned planned = {0};
    struct soq__job *next;

    e->n_in_flight = 0;
    for (struct soq__job *job = e->jobs; job; job = job->next)
        job->step_rows = 0;
    for (int decoding = 1; decoding >= 0; decoding--) {
        uint32_t budget = decoding ? e->max_rows : soq__max_u32(e->step_tokens, planned.rows + e->prompt_rows);

        for (struct soq__job *job = e->jobs; job; job = next) {
            next = job->next;
            if (job->state != SOQ__JOB_RUNNING || is_decoding(job) != (bool)decoding)
                continue;
            if (atomic_load(&job->seq->cancelled))
                soq__job_done(e, job, SOQ_REASON_CANCELLED);
            else if (planned.rows < budget && planned.seqs < e->step.max_seqs)
                plan_job(e, job, chunk_rows(e, job, budget - planned.rows, e->max_outputs - planned.outputs),
                         decoding ? soq__drafts_wanted(e, job) : 0, &planned);
        }
    }
}

/* The rows that were planned, and what was drafted, in the same order. */
static void build(struct soq__engine *e)
{
    soq__step_reset(&e->step);
    for (int decoding = 1; decoding >= 0; decoding--)
        for (struct soq__job *job = e->jobs; job; job = job->next)
            if (job->step_rows && is_decoding(job) == (bool)decoding)
                job->first_output = soq__step_add(&e->step, &job->seq->kv, job->seq->tokens + job->seq->kv.n_committed,
                                                  job->step_rows, job->step_outputs);
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

/* Logits of the job's row i, counted from the first that wanted any. */
static float *logits_of(const struct soq__engine *e, const struct soq__job *job, const float *logits, uint32_t i)
{
    return (float *)(uintptr_t)logits + (size_t)(job->first_output + i) * e->net.logits.cols;
}

/* Hands out the logits of the step's rows [from, to), which are the sequence's, before anybody changes them. */
static void deliver_logits(struct soq__engine *e, struct soq__job *job, uint32_t from, uint32_t to, const float *logits)
{
    uint32_t first = job->step_rows - job->step_outputs, position = job->seq->kv.n_committed;

    for (uint32_t i = from > first ? from : first; job->on_logits && i < to; i++)
        job->on_logits(job->arg, position + i, logits_of(e, job, logits, i - first), e->net.logits.cols);
    if (job->logits_from < position + to) /* not again, where rows are computed again after a preemption */
        job->logits_from = position + to;
}

/* Full blocks that the commit added go into the index: plain ones before anything of them is evicted, packed ones when they are
 * there. */
static void publish(struct soq__engine *e, struct soq__sequence *seq, uint32_t before, uint32_t end, bool is_committed)
{
    uint32_t grid = e->layout.grid ? e->layout.grid : e->layout.block_tokens;

    if (seq->root && is_committed == (e->layout.grid > 0) && end / grid > before / grid)
        soq__prefix_publish(&e->prefix, seq->root, &seq->kv, seq->tokens, end / grid * grid, soq__clock_now());
}

/* The first n rows of the step are the sequence's. */
static int commit(struct soq__engine *e, struct soq__job *job, uint32_t n)
{
    struct soq__sequence *seq = job->seq;
    uint32_t before = seq->kv.n_committed;
    int rc;

    publish(e, seq, before, before + n, false);
    rc = soq__kv_commit(&seq->kv, n, &job->err);
    if (!rc)
        publish(e, seq, before, before + n, true);
    return rc;
}

/* Known rows are the sequence's, and a token was drawn behind the last of them. Returns the reason to end, 0 to go on, negative
 * on failure. */
static int advance_known(struct soq__engine *e, struct soq__job *job)
{
    struct soq__sequence *seq = job->seq;
    bool prompt_ends = !job->n_generated && seq->kv.n_committed + job->step_rows == seq->n_tokens;
    int rc;

    rc = commit(e, job, job->step_rows);
    if (prompt_ends)
        job->prompt_done = soq__clock_now();
    if (rc || seq->kv.n_committed < seq->n_tokens)
        return rc;
    if (!job->max_tokens)
        return SOQ_REASON_LENGTH;
    job->n_steps++;
    if (job->forced)
        job->drawn.token = job->forced[job->n_generated];
    return job->draw_rc ? job->draw_rc : accept(e, job, &job->drawn);
}

/* Drafts are the sequence's as far as the full view draws the same tokens: so many rows, and that many tokens behind them. */
static int advance_drafted(struct soq__engine *e, struct soq__job *job, const float *logits)
{
    uint32_t n = 0, n_accepted = 0, first = 0, end = 0; /* rows [first, end) are those of e->draw */
    bool goes_on = true;
    int rc, reason = 0;

    while (!reason && goes_on) {
        const struct soq__draw_row *row;

        deliver_logits(e, job, n, n + 1, logits);
        if (n == end) {
            first = end;
            end += soq__choose(e, job, first, logits_of(e, job, logits, first));
        }
        row = &e->draw.rows[n - first];
        if (row->rc) {
            job->err = row->err;
            return row->rc;
        }
        reason = accept(e, job, &row->sampled);
        if (reason < 0)
            return reason;
        goes_on = row->goes_on;
        n++;
        n_accepted += goes_on;
    }
    job->n_steps++;
    soq__drafts_done(e, job, n_accepted);
    rc = commit(e, job, n);
    return rc ? rc : reason;
}

/* After the forward pass. */
static void advance(struct soq__engine *e, struct soq__job *job, const float *logits)
{
    int rc = job->n_drafts ? advance_drafted(e, job, logits) : advance_known(e, job);

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

int soq__step_compute(struct soq__engine *e, enum soq__kv_view view, const float **logits_out)
{
    const struct soq_step *step;
    int rc = soq__kv_mass_begin(&e->kv, e->step.n_lines, e->step.n_entries, &e->step_err);

    *logits_out = NULL;
    if (!rc)
        rc = soq__step_finish(&e->step, &e->kv, &step, &e->step_err);
    if (rc)
        return rc;
    e->stepping = true;
    pthread_mutex_unlock(&e->lock);
    rc = soq__forward(&e->net, &e->kv, step, view, &e->step_err);
    pthread_mutex_lock(&e->lock);
    e->stepping = false;
    if (rc || !e->step.n_outputs)
        return rc;
    return soq__exec_tensor_read(&e->exec, soq__rows(e->net.logits, e->step.n_outputs), e->logits, logits_out, &e->step_err);
}

bool soq__engine_step(struct soq__engine *e)
{
    const float *logits;
    struct soq__job *next;
    uint64_t done_before = e->n_done;
    int rc;

    soq__admit(e);
    plan(e);
    if (!e->n_in_flight)
        return e->n_done != done_before; /* some may have been cancelled or refused */
    e->step_err = (struct soq_error)SOQ_ERROR_INIT;
    rc = soq__draft(e);
    if (!rc) {
        build(e);
        rc = soq__step_compute(e, SOQ__KV_FULL, &logits);
    }
    if (rc) {
        step_failed(e, rc);
        return true;
    }
    soq__kv_delivered(&e->kv);
    for (struct soq__job *job = e->jobs; job; job = job->next)
        if (job->step_rows && !job->n_drafts)
            deliver_logits(e, job, 0, job->step_rows, logits);
    soq__draw_all(e, (float *)(uintptr_t)logits);
    for (struct soq__job *job = e->jobs; job; job = next) {
        next = job->next;
        if (job->step_rows)
            advance(e, job, logits);
    }
    return true;
}
