/* What a KV policy or a KV codec works with, by the traits of its table. Policies: chunked prefill, drafts, prefix hits, fork,
 * save and load. Codecs: policies that select entries; a codec that needs positions goes with them in part, as formats of tiles
 * may waive that. */
#ifndef SOQ_CLI_COMPAT_H
#define SOQ_CLI_COMPAT_H

#include <jansson.h>

#include "plugin/registry.h"

/* A table of all policies that could be loaded, and one of all codecs, on standard output; nothing where there is none. why:
 * what "part" means is said below. */
void soq__compat_print_tables(const struct soq__registry *registry, bool why);
/* "works with chunked prefill, drafts, ...": a line on standard output; nothing for other roles. */
void soq__compat_print_line(const struct soq__plugin_role *role);
/* {"chunked_prefill": true, ...}, each true, false or "part"; NULL for other roles, or out of memory. */
json_t *soq__compat_json(const struct soq__plugin_role *role);

#endif
