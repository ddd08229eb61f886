#include "cli/eval/run.h"

#include "cli/term.h"

bool soq__eval_is_missing(const struct soq__eval_run *run, uint32_t config, enum soq__eval_task task, uint32_t length,
                          uint32_t i)
{
    struct soq__eval_key key = soq__eval_key_at(run->eval, config, task, length, i);

    return !run->left_out[config] && !soq__eval_records_find(run->eval->records, &key);
}

struct soq__eval_engine_params soq__eval_params_for(const struct soq__eval_run *run, uint32_t config, enum soq__eval_task task,
                                                    uint32_t length)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    uint32_t after = plan->n_scored > plan->n_timed ? plan->n_scored : plan->n_timed;

    return (struct soq__eval_engine_params){
        .args = run->eval->args,
        .model = run->model,
        .config = &run->eval->configs->items[config],
        .n_prompt = length,
        .context = run->longest + after + 128, /* recall asks on behind the prompt */
        .sequences = task == SOQ__EVAL_SPEED ? 1 : plan->parallel,
        .prefixes = task == SOQ__EVAL_PASSKEY || task == SOQ__EVAL_RECALL,
    };
}

int soq__eval_open_for(struct soq__eval_run *run, uint32_t config, enum soq__eval_task task, uint32_t length,
                       struct soq_error *err)
{
    struct soq__eval_engine_params params = soq__eval_params_for(run, config, task, length);

    return soq__eval_engine_open(&run->engine, &params, err);
}

void soq__eval_show(const struct soq__eval_run *run, const struct soq__eval_key *key)
{
    soq__progress("%u of %u: %s, %s %u", run->n_done, run->n_all, key->config, soq__eval_task_names[key->task], key->length);
}
