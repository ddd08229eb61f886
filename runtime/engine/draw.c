/* A sampler reads all logits of a row, a few times: as long as a tenth of a step, were it done row after row. Rows do not
 * depend on each other, so neither do tokens on the number of threads. */
#include "engine/draw.h"

#include "base/alloc.h"
#include "base/cpucount.h"
#include "base/error.h"
#include "base/minmax.h"
#include "base/pool.h"

enum { THREADS_MAX = 8 }; /* each has scratch of its own; memory is what they wait for */

int soq__draw_init(struct soq__draw *draw, const struct soq__engine *e, uint32_t n_vocab, struct soq_error *err)
{
    bool compares = e->drafting.on && e->drafting.by_ratio;

    draw->threads = soq__min_u32(soq__min_u32(soq__cpu_count(), THREADS_MAX), e->max_sequences * (1 + e->drafting.most));
    draw->rows = soq__alloc_array(soq__max_u32(e->max_sequences, draw->threads), sizeof *draw->rows);
    draw->scratch = soq__alloc_array(n_vocab, draw->threads * sizeof *draw->scratch);
    if (compares)
        draw->probabilities = soq__alloc_array(n_vocab, draw->threads * sizeof *draw->probabilities);
    if (draw->rows && draw->scratch && (draw->probabilities || !compares))
        return 0;
    return soq__fail(err, SOQ_ENOMEM, "out of memory for sampling");
}

void soq__draw_done(struct soq__draw *draw)
{
    soq__free(draw->rows);
    soq__free(draw->scratch);
    soq__free(draw->probabilities);
    *draw = (struct soq__draw){0};
}

void soq__draw_begin(struct soq__draw *draw)
{
    draw->n = 0;
}

void soq__draw_add(struct soq__draw *draw, struct soq__job *job, uint32_t ahead, float *logits)
{
    draw->rows[draw->n++] = (struct soq__draw_row){
        .job = job,
        .ahead = ahead,
        .logits = logits,
        .sampled = {.struct_size = sizeof draw->rows->sampled},
        .err = SOQ_ERROR_INIT,
    };
}

static void draw_share(void *arg, const struct soq_worker *worker)
{
    struct soq__engine *e = arg;

    for (uint32_t i = worker->index; i < e->draw.n; i += worker->count)
        e->draw.fn(e, &e->draw.rows[i], worker->index);
}

void soq__draw_run(struct soq__engine *e, soq__draw_fn *fn)
{
    const struct soq_worker alone = {.struct_size = sizeof alone, .count = 1};
    uint32_t threads = soq__min_u32(e->draw.n, e->draw.threads);

    e->draw.fn = fn;
    if (threads < 2 || soq__pool_run(e->pool, threads, draw_share, e))
        draw_share(e, &alone);
}

struct soq_sampler_row soq__draw_input(const struct soq__engine *e, const struct soq__draw_row *row, uint32_t thread)
{
    const struct soq__job *job = row->job;
    uint32_t n_vocab = e->net.logits.cols, known = job->seq->kv.n_committed + job->step_rows - job->n_drafts;

    return (struct soq_sampler_row){
        .struct_size = sizeof(struct soq_sampler_row),
        .n_vocab = n_vocab,
        .logits = row->logits,
        .scratch = e->draw.scratch + (size_t)thread * n_vocab,
        .history = job->seq->tokens,
        .n_history = known + row->ahead,
        .position = known + row->ahead,
    };
}

void soq__draw_sample(struct soq__engine *e, struct soq__draw_row *row, uint32_t thread)
{
    const struct soq_sampler_row input = soq__draw_input(e, row, thread);
    const struct soq__job *job = row->job;

    row->rc = e->sampler.plugin->ops.sampler->sample(e->sampler.self, job->seq->sampler_state, &job->sampling, &input,
                                                     &row->sampled, &row->err);
}

/* The job's rows in this step reach its last known token, so that the next one is wanted. */
static bool is_due(const struct soq__job *job)
{
    return job->max_tokens && job->step_rows && job->seq->kv.n_committed + job->step_rows == job->seq->n_tokens;
}

void soq__draw_all(struct soq__engine *e, float *logits)
{
    struct soq__draw *d = &e->draw;

    soq__draw_begin(d);
    for (struct soq__job *job = e->jobs; job; job = job->next)
        if (is_due(job))
            soq__draw_add(d, job, 0, logits + (size_t)(job->first_output + job->step_outputs - 1) * e->net.logits.cols);
    soq__draw_run(e, soq__draw_sample);
    for (uint32_t i = 0; i < d->n; i++) {
        struct soq__job *job = d->rows[i].job;

        job->drawn = d->rows[i].sampled;
        job->draw_rc = d->rows[i].rc;
        if (job->draw_rc)
            job->err = d->rows[i].err;
    }
}
