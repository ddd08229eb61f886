/* "Did you mean ...": the nearest of a list of names by edit distance. */
#ifndef SOQ_BASE_NEAREST_H
#define SOQ_BASE_NEAREST_H

#include <stddef.h>

/* The closest of names[0..count) to word (optimal string alignment distance, case-insensitive), or NULL if none is close enough
 * to be a likely typing error (more than a third of the longer word's letters differ, and none is a prefix). */
const char *soq__nearest(const char *word, const char *const *names, size_t count);

#endif
