/* The engine's jobs. */
#include "cli/job.h"

#include <signal.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cli/interrupt.h"

int soq__job_init(struct soq__job *job, struct soq__sequence *seq, const int32_t *prompt, size_t n_prompt,
                  struct soq_error *err)
{
    const struct soq__role_instance *sampler = &seq->engine->sampler;
    int rc;

    if (n_prompt > seq->engine->context)
        return soq__fail(err, SOQ_ELIMIT, "%zu tokens, but the context holds %u; raise it with -c", n_prompt,
                         seq->engine->context);
    *job = (struct soq__job){.seq = seq, .prompt = prompt, .n_prompt = (uint32_t)n_prompt, .ignore_eog = true};
    job->sampling.struct_size = sizeof job->sampling;
    rc = sampler->plugin->ops.sampler->defaults(sampler->self, &job->sampling, err);
    job->sampling.temperature = 0;
    return rc;
}

/* Several at once; each but the first has a thread of its own. */
struct crew {
    struct soq__job *jobs; /* [n] */
    pthread_t *threads;    /* [n], the first unused */
    uint32_t n;
};

static void cancel(void *arg)
{
    const struct crew *crew = arg;

    for (uint32_t i = 0; i < crew->n; i++)
        atomic_store(&crew->jobs[i].seq->cancelled, true);
}

static void *run_one(void *arg)
{
    struct soq__job *job = arg;

    soq__engine_run(job->seq->engine, job, NULL, NULL);
    return NULL;
}

/* How many run, the first included. Signals are the main thread's. */
static uint32_t start(const struct crew *crew)
{
    sigset_t all, old;
    uint32_t n = 1;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (n < crew->n && !pthread_create(&crew->threads[n], NULL, run_one, &crew->jobs[n]))
        n++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return n;
}

static int outcome(const struct crew *crew, uint32_t n_started, struct soq_error *err)
{
    for (uint32_t i = 0; i < n_started; i++) {
        if (crew->jobs[i].rc) {
            *err = crew->jobs[i].err;
            return crew->jobs[i].rc;
        }
        if (crew->jobs[i].reason == SOQ_REASON_CANCELLED)
            return soq__fail(err, SOQ_ECANCELLED, "interrupted");
    }
    return n_started < crew->n ? soq__fail(err, SOQ_ENOMEM, "cannot start %u threads", crew->n) : 0;
}

int soq__jobs_run(struct soq__job *jobs, uint32_t n, struct soq_error *err)
{
    struct crew crew = {jobs, soq__alloc_zero(n, sizeof *crew.threads), n};
    uint32_t n_started;

    if (!crew.threads)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for %u threads", n);
    soq__interrupt_arm(cancel, &crew);
    if (soq__interrupted())
        cancel(&crew); /* it came before, between two requests */
    n_started = start(&crew);
    run_one(&jobs[0]);
    for (uint32_t i = 1; i < n_started; i++)
        pthread_join(crew.threads[i], NULL);
    soq__interrupt_disarm();
    soq__free(crew.threads);
    return outcome(&crew, n_started, err);
}

int soq__job_run(struct soq__job *job, struct soq_error *err)
{
    return soq__jobs_run(job, 1, err);
}
