/* Between cache.c and sequence.c. */
#ifndef SOQ_KV_INTERNAL_H
#define SOQ_KV_INTERNAL_H

#include "kv/cache.h"

int soq__kv_push_edit(struct soq__kv_cache *cache, struct soq_step_edit edit, struct soq_error *err);
/* Takes a reference to the source until the copy is delivered. */
int soq__kv_push_copy(struct soq__kv_cache *cache, struct soq_step_copy copy, struct soq_error *err);
/* Gives a reference to a block back. If it was the last, a copy to it that is still pending is dropped: its slab may go with
 * it. */
void soq__kv_let_go(struct soq__kv_cache *cache, uint32_t group, soq_block_ref block);
/* Whether everything promised to all sequences fits under the limit. */
bool soq__kv_promises_fit(const struct soq__kv_cache *cache);

#endif
