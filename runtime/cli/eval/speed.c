/* Speed tests. */
#include "base/error.h"
#include "cli/eval/run.h"
#include "cli/interrupt.h"
#include "cli/job.h"

/* The prompt and one token more than is timed, alone in a cache whose peak is counted from here. */
static int time_one(struct soq__eval_run *run, const struct soq__eval_key *key, struct soq_error *err)
{
    struct soq__engine *e = run->engine.engine;
    struct soq__eval_record r = {.key = *key};
    struct soq__sequence *seq = NULL;
    struct soq__job job;
    int rc;

    e->kv.budget.peak = e->kv.budget.used;
    rc = soq__sequence_create(e, &seq, err);
    if (!rc)
        rc = soq__job_init(&job, seq, run->text.ids.data, key->length, err);
    if (!rc) {
        job.max_tokens = run->eval->plan->n_timed + 1;
        rc = soq__job_run(&job, err);
    }
    if (!rc) {
        r.kv_bytes = job.kv_bytes;
        r.kv_peak = e->kv.budget.peak;
        r.tok_s = run->eval->plan->n_timed / (job.last_token - job.first_token);
        rc = soq__eval_records_add(run->eval->records, &r, err);
    }
    soq__sequence_free(seq);
    return rc;
}

/* In turns, so that what else the machine does meets all alike. */
int soq__eval_run_speed(struct soq__eval_run *run, struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < plan->n_reps; i++)
        for (uint32_t c = 0; !rc && c < run->eval->configs->n; c++)
            for (size_t l = 0; !rc && l < plan->n_lengths; l++) {
                struct soq__eval_key key = soq__eval_key_at(run->eval, c, SOQ__EVAL_SPEED, (uint32_t)plan->lengths[l], i);

                if (!soq__eval_is_missing(run, c, SOQ__EVAL_SPEED, key.length, i))
                    continue;
                soq__eval_show(run, &key);
                rc = soq__eval_open_for(run, c, SOQ__EVAL_SPEED, key.length, err);
                if (!rc && soq__interrupted())
                    rc = soq__fail(err, SOQ_ECANCELLED, "interrupted");
                if (!rc)
                    rc = time_one(run, &key, err);
                run->n_done++;
            }
    return rc;
}
