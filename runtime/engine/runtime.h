/* What the handles of soquete.h hold. The command line program looks inside; embedders do not. */
#ifndef SOQ_ENGINE_RUNTIME_H
#define SOQ_ENGINE_RUNTIME_H

#include "engine/engine.h"

struct soq_runtime {
    struct soq__settings *settings;
    struct soq__registry *registry;
    void (*log)(void *ctx, int level, const char *text); /* NULL: none of its own */
    void *log_ctx;
    bool profile; /* of exec.h; set between creating it and loading a model */
};

struct soq_model {
    struct soq_runtime *runtime; /* not owned */
    struct soq__model *model;
    struct soq__engine *engine;
};

struct soq_session {
    struct soq_model *model; /* not owned */
    struct soq__sequence *seq;
    struct soq_buf note;      /* of the file that it was loaded from */
    struct soq__pins *pinned; /* not yet unpinned, the latest first; owned */
};

/* soq_model_load with room for more rows of logits in a step (perplexity, logits). */
int soq__model_open(struct soq_runtime *runtime, const char *path, const struct soq_model_params *params, uint32_t max_outputs,
                    struct soq_model **model_out, struct soq_error *err);

/* Computes and pins what [kv] prefix_pin names. */
int soq__pin_configured(struct soq_model *model, struct soq_error *err);
/* A session ends: its pins stay. */
void soq__pins_forget(struct soq_session *session);

/* Tokens of a request's messages, prompt or ids, as generation uses them. */
int soq__request_tokens(const struct soq__model *model, const struct soq_request *request, struct soq__ids *ids,
                        struct soq_error *err);

/* A struct of soquete.h from a program that may be built with an older or newer header: what it does not know keeps the value
 * that `full` has, what this library does not know is not looked at. full->struct_size says the library's size afterwards. */
int soq__struct_in(void *full, const void *given, const char *name, struct soq_error *err);
/* The other way round; given->struct_size stays. */
int soq__struct_out(void *given, const void *full, const char *name, struct soq_error *err);

#endif
