/* What a KV policy works with, by the traits of its table: chunked prefill, drafts, prefix hits, fork, save and load. */
#ifndef SOQ_CLI_COMPAT_H
#define SOQ_CLI_COMPAT_H

#include <jansson.h>
#include <stdint.h>

#include "plugin/registry.h"

/* A table of all policies that could be loaded, on standard output; nothing where there is none. */
void soq__compat_print_table(const struct soq__registry *registry);
/* "chunked prefill, drafts, ..." or "nothing of it": one line on standard output. */
void soq__compat_print_line(uint32_t traits);
/* {"chunked_prefill": true, ...}; NULL: out of memory. */
json_t *soq__compat_json(uint32_t traits);

#endif
