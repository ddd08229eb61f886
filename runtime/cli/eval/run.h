/* A measurement under way: what its parts share. */
#ifndef SOQ_CLI_EVAL_RUN_H
#define SOQ_CLI_EVAL_RUN_H

#include "cli/eval/item.h"
#include "cli/eval/logits.h"
#include "cli/eval/open.h"
#include "cli/eval/plan.h"

struct soq__eval_run {
    struct soq__eval *eval;
    struct soq__model *model;
    struct soq__eval_text text;
    struct soq__eval_engine engine;
    struct soq__row_store store; /* of the full cache, where texts are measured */
    bool *left_out;              /* [configs] */
    uint32_t longest;            /* of the plan's lengths */
    uint32_t n_done, n_all;      /* items, for the progress */
};

/* The item has no record, and is to get one. */
bool soq__eval_is_missing(const struct soq__eval_run *run, uint32_t config, enum soq__eval_task task, uint32_t length,
                          uint32_t i);
/* What the engine of a configuration, task and length is like. */
struct soq__eval_engine_params soq__eval_params_for(const struct soq__eval_run *run, uint32_t config, enum soq__eval_task task,
                                                    uint32_t length);
/* Opens it, unless it is open. */
int soq__eval_open_for(struct soq__eval_run *run, uint32_t config, enum soq__eval_task task, uint32_t length,
                       struct soq_error *err);
void soq__eval_show(const struct soq__eval_run *run, const struct soq__eval_key *key);

/* Texts and stories of a configuration. fill_store: texts that have a record are computed, too, for the store. */
int soq__eval_run_items(struct soq__eval_run *run, uint32_t config, bool fill_store, struct soq_error *err);
/* Speed tests of all configurations. */
int soq__eval_run_speed(struct soq__eval_run *run, struct soq_error *err);

#endif
