#include "cli/eval/plan.h"

struct soq__eval_key soq__eval_key(const struct soq__eval *eval, uint32_t config, enum soq__eval_task task, uint32_t length,
                                   uint32_t depth, uint32_t index)
{
    return (struct soq__eval_key){
        eval->model, eval->fingerprint, eval->configs->items[config].label, eval->items[task], task, length, depth, index};
}

uint32_t soq__eval_n_items(const struct soq__eval_plan *plan, enum soq__eval_task task)
{
    if (task == SOQ__EVAL_SPEED)
        return plan->n_reps;
    return task == SOQ__EVAL_PASSKEY ? plan->n_items * (uint32_t)plan->n_depths : plan->n_items;
}

struct soq__eval_key soq__eval_key_at(const struct soq__eval *eval, uint32_t config, enum soq__eval_task task, uint32_t length,
                                      uint32_t i)
{
    const struct soq__eval_plan *plan = eval->plan;

    if (task != SOQ__EVAL_PASSKEY)
        return soq__eval_key(eval, config, task, length, 0, i);
    return soq__eval_key(eval, config, task, length, (uint32_t)plan->depths[i / plan->n_items], i % plan->n_items);
}
