/* `--stats`: what each pool of the KV cache holds, to the byte. Between two requests. */
#ifndef SOQ_CLI_STATS_KV_H
#define SOQ_CLI_STATS_KV_H

#include <jansson.h>
#include <stdio.h>

#include "kv/cache.h"

void soq__kv_stats_print(const struct soq__kv_cache *kv, FILE *stream);
json_t *soq__kv_stats_json(const struct soq__kv_cache *kv);

#endif
