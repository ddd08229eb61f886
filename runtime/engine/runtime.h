/* What the handles of soquete.h hold. The command line program looks inside; embedders do not. */
#ifndef SOQ_ENGINE_RUNTIME_H
#define SOQ_ENGINE_RUNTIME_H

#include "engine/engine.h"

struct soq_runtime {
    struct soq__settings *settings;
    struct soq__registry *registry;
};

struct soq_model {
    struct soq_runtime *runtime; /* not owned */
    struct soq__model *model;
    struct soq__engine *engine;
};

struct soq_session {
    struct soq_model *model; /* not owned */
    struct soq__sequence *seq;
};

/* soq_model_load with room for more rows of logits in a step (perplexity, logits). */
int soq__model_open(struct soq_runtime *runtime, const char *path, const struct soq_model_params *params, uint32_t max_outputs,
                    struct soq_model **model_out, struct soq_error *err);

/* Tokens of a request's messages, prompt or ids, as generation uses them. */
int soq__request_tokens(const struct soq__model *model, const struct soq_request *request, struct soq__ids *ids, struct soq_error *err);

#endif
