/* A sampler reads all logits of a row, a few times: with several sequences as long as a tenth of their step, were it done row
 * after row. Rows do not depend on each other, so neither do tokens on the number of threads. */
#include "engine/draw.h"

#include "base/alloc.h"
#include "base/cpucount.h"
#include "base/error.h"
#include "base/pool.h"

enum { THREADS_MAX = 8 }; /* each has scratch of its own; memory is what they wait for */

int soq__draw_init(struct soq__draw *draw, uint32_t n_vocab, uint32_t max_sequences, struct soq_error *err)
{
    uint32_t threads = soq__cpu_count();

    threads = threads < THREADS_MAX ? threads : THREADS_MAX;
    draw->threads = threads < max_sequences ? threads : max_sequences;
    draw->scratch = soq__alloc_array(n_vocab, draw->threads * sizeof *draw->scratch);
    draw->jobs = soq__alloc_array(max_sequences, sizeof(struct soq__job *));
    return draw->scratch && draw->jobs ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory for sampling");
}

void soq__draw_done(struct soq__draw *draw)
{
    soq__free(draw->scratch);
    soq__free(draw->jobs);
    *draw = (struct soq__draw){0};
}

bool soq__draw_is_due(const struct soq__job *job)
{
    return job->max_tokens && job->seq->kv.n_committed + job->step_rows == job->seq->n_tokens;
}

/* From the job's last row. */
static void draw_one(struct soq__engine *e, struct soq__job *job, uint32_t *scratch)
{
    struct soq__sequence *seq = job->seq;
    uint32_t n_vocab = e->net.logits.cols;
    struct soq_sampler_row row = {
        .struct_size = sizeof row,
        .n_vocab = n_vocab,
        .logits = e->draw.logits + (size_t)(job->first_output + job->step_outputs - 1) * n_vocab,
        .scratch = scratch,
        .history = seq->tokens,
        .n_history = seq->n_tokens,
        .position = seq->n_tokens,
    };

    job->drawn = (struct soq_sampled){.struct_size = sizeof job->drawn};
    job->draw_rc = e->sampler.plugin->ops.sampler->sample(e->sampler.self, seq->sampler_state, &job->sampling, &row,
                                                          &job->drawn, &job->err);
}

static void draw_share(void *arg, const struct soq_worker *worker)
{
    struct soq__engine *e = arg;

    for (uint32_t i = worker->index; i < e->draw.n; i += worker->count)
        draw_one(e, e->draw.jobs[i], e->draw.scratch + (size_t)worker->index * e->net.logits.cols);
}

void soq__draw_all(struct soq__engine *e, float *logits)
{
    const struct soq_worker alone = {.struct_size = sizeof alone, .count = 1};
    struct soq__draw *d = &e->draw;

    d->n = 0;
    d->logits = logits;
    for (struct soq__job *job = e->jobs; job; job = job->next)
        if (job->step_rows && soq__draw_is_due(job))
            d->jobs[d->n++] = job;
    if (d->n < 2 || d->threads < 2 || soq__pool_run(e->pool, d->n < d->threads ? d->n : d->threads, draw_share, e))
        draw_share(e, &alone);
}
