/* What an answer cost: the summary on standard error and the "stats" of JSON. */
#ifndef SOQ_CLI_STATS_H
#define SOQ_CLI_STATS_H

#include <jansson.h>
#include <stdio.h>

#include "soquete/soquete.h"

/* The most memory that this process has had, bytes. */
uint64_t soq__peak_memory(void);

/* With what the model keeps beyond its sessions: prefixes, and sessions that are swapped out. */
void soq__stats_print(const struct soq_result *result, struct soq_model *model, FILE *stream);
json_t *soq__stats_json(const struct soq_result *result, struct soq_model *model);

#endif
