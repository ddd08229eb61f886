/* The engine's jobs. */
#include "cli/job.h"

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

static void cancel(void *seq)
{
    atomic_store(&((struct soq__sequence *)seq)->cancelled, true);
}

int soq__job_run(struct soq__job *job, struct soq_error *err)
{
    soq__interrupt_arm(cancel, job->seq);
    soq__engine_run(job->seq->engine, job, NULL, NULL);
    soq__interrupt_disarm();
    if (job->rc)
        *err = job->err;
    else if (job->reason == SOQ_REASON_CANCELLED)
        return soq__fail(err, SOQ_ECANCELLED, "interrupted");
    return job->rc;
}
