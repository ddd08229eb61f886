/* One candidate: from a manifest's path to a loaded plugin, with the reason where the way ends. Internal to the registry. */
#ifndef SOQ_PLUGIN_CANDIDATE_H
#define SOQ_PLUGIN_CANDIDATE_H

#include "plugin/registry.h"

/* Reads the manifest dir/file. A bad manifest makes a refused candidate; only lack of memory fails. */
int soq__candidate_create(const char *dir, size_t rank, const char *file, struct soq__candidate **candidate_out,
                          struct soq_error *err);
void soq__candidate_free(struct soq__candidate *c);

/* The order of preference, for qsort over pointers to candidates. */
int soq__candidate_compare(const void *a, const void *b);

/* Loads it unless that is done. Fails, with the reason in err and in the candidate, where its needs do not hold or its library
 * is refused; -SOQ_ENOMEM is no verdict and leaves the candidate as it was. */
int soq__candidate_load(struct soq__candidate *c, struct soq_error *err);

void soq__candidate_set(struct soq__candidate *c, enum soq__candidate_state state, const char *fmt, ...) SOQ_PRINTF(3, 4);

#endif
