/* What a sequence's cache holds, as numbers: for tools that look into it. Between steps; blocks are in the pool. */
#ifndef SOQ_KV_READ_H
#define SOQ_KV_READ_H

#include "kv/cache.h"

/* Plane 0, keys, or 1, values, as the codec gives them back, of a layer and kv head: out [n_committed][width]. Entries that are
 * gone stay as they are in out. */
int soq__kv_read(const struct soq__kv_seq *seq, uint32_t layer, uint32_t head, uint32_t plane, float *out,
                 struct soq_error *err);

/* Attention probabilities that the entries of a layer and kv head got, summed over rows and query heads, in units of 1 /
 * SOQ_MASS_ONE: [n_committed], the sequence's, valid until the next step. NULL: nobody counts them. */
const uint64_t *soq__kv_mass_of(const struct soq__kv_seq *seq, uint32_t layer, uint32_t head);

#endif
