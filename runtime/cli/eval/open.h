/* An engine for one configuration and budget. */
#ifndef SOQ_CLI_EVAL_OPEN_H
#define SOQ_CLI_EVAL_OPEN_H

#include "cli/eval/config.h"
#include "cli/options.h"
#include "engine/runtime.h"

struct soq__eval_engine {
    struct soq_runtime *runtime;
    struct soq__engine *engine;             /* NULL: none is open */
    char *identity;                         /* what it was opened with */
    const struct soq__eval_config *without; /* the last that was found to allow no prefixes; NULL: none was */
};

struct soq__eval_engine_params {
    const struct soq__args *args;
    const struct soq__model *model;
    const struct soq__eval_config *config;
    uint32_t n_prompt;  /* of which the budget may be a share */
    uint32_t context;   /* tokens of a sequence */
    uint32_t sequences; /* at the same time */
    bool prefixes;      /* what prompts have in common is computed once, where the policy and the codec allow that */
    bool try_only;      /* see what the plugins say to it, and close it again */
};

/* Opens it in place of the one before, unless that is the same. A budget is the policy's key `capacity`; its keys `recent` and
 * `window`, where it has them and nothing is written for them, come down to half of the budget. Messages name the
 * configuration. */
int soq__eval_engine_open(struct soq__eval_engine *engine, const struct soq__eval_engine_params *params, struct soq_error *err);
void soq__eval_engine_close(struct soq__eval_engine *engine);

#endif
