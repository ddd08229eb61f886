/* --profile: where the time of steps went, backend by backend or op by op, and what was copied between backends. */
#ifndef SOQ_CLI_PROFILE_H
#define SOQ_CLI_PROFILE_H

#include <jansson.h>
#include <stdio.h>

#include "engine/exec.h"

/* The executor's counters at one moment, or between two. */
struct soq__profile {
    uint64_t n_runs[SOQ_BACKENDS_MAX];
    double seconds[SOQ_BACKENDS_MAX];
    struct soq__copies copies;
};

/* What was counted since `before`; NULL: since the model was loaded. No step may be in flight. */
struct soq__profile soq__profile_since(const struct soq__exec *exec, const struct soq__profile *before);

/* A line for each backend that computed and one for the copies. */
void soq__profile_print(const struct soq__profile *profile, const struct soq__exec *exec, FILE *stream);
json_t *soq__profile_json(const struct soq__profile *profile, const struct soq__exec *exec);

/* A line for each op that was called. */
void soq__op_times_print(const struct soq__op_times *times, FILE *stream);
json_t *soq__op_times_json(const struct soq__op_times *times);

#endif
