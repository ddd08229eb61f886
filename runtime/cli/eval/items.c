/* Texts and stories: which items are computed together. */
#include "base/error.h"
#include "cli/eval/lanes.h"
#include "cli/interrupt.h"

/* Items of one configuration, task and length. */
struct items {
    struct soq__eval_run *run;
    uint32_t config, length;
    enum soq__eval_task task;
    bool again; /* records that exist are computed once more, for the store */
    uint32_t next, n;
};

/* Gives the lanes the next items, as many as there is room for, all of one depth, so that prompts find what the one before them
 * has in common with them. */
static int fill(struct items *items, struct soq__eval_lanes *lanes, struct soq_error *err)
{
    struct soq__eval_run *run = items->run;
    int rc = 0;

    for (; !rc && items->next < items->n && lanes->n < run->eval->plan->parallel; items->next++) {
        struct soq__eval_key key = soq__eval_key_at(run->eval, items->config, items->task, items->length, items->next);
        bool is_new = soq__eval_is_missing(run, items->config, items->task, items->length, items->next);

        if (!is_new && !items->again)
            continue;
        if (lanes->n && key.depth != soq__eval_lanes_first(lanes)->depth)
            break;
        if (!lanes->n)
            rc = soq__eval_open_for(run, items->config, items->task, items->length, err);
        if (!rc)
            rc = soq__eval_lanes_add(lanes, &key, is_new, err);
    }
    return rc;
}

static int run_items(struct items *items, struct soq__eval_lanes *lanes, struct soq_error *err)
{
    int rc = 0;

    items->n = soq__eval_n_items(items->run->eval->plan, items->task);
    while (!rc && items->next < items->n) {
        rc = fill(items, lanes, err);
        if (!rc && soq__interrupted())
            rc = soq__fail(err, SOQ_ECANCELLED, "interrupted");
        if (!rc && lanes->n) {
            soq__eval_show(items->run, soq__eval_lanes_first(lanes));
            rc = soq__eval_lanes_run(lanes, err);
        }
        soq__eval_lanes_clear(lanes);
    }
    return rc;
}

int soq__eval_run_items(struct soq__eval_run *run, uint32_t config, bool fill_store, struct soq_error *err)
{
    static const enum soq__eval_task tasks[] = {SOQ__EVAL_TEXT, SOQ__EVAL_PASSKEY, SOQ__EVAL_RECALL};
    const struct soq__eval_plan *plan = run->eval->plan;
    struct soq__eval_lanes lanes;
    int rc = soq__eval_lanes_init(&lanes, run, err);

    for (size_t t = 0; t < sizeof tasks / sizeof tasks[0]; t++)
        for (size_t l = 0; plan->tasks[tasks[t]] && !rc && l < plan->n_lengths; l++) {
            struct items items = {.run = run,
                                  .config = config,
                                  .length = (uint32_t)plan->lengths[l],
                                  .task = tasks[t],
                                  .again = fill_store && tasks[t] == SOQ__EVAL_TEXT};

            rc = run_items(&items, &lanes, err);
        }
    soq__eval_lanes_done(&lanes);
    return rc;
}
