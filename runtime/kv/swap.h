/* Blocks that leave the pool: their bytes in the memory of the host, for preempted sequences and for saved ones.
 *
 * A sequence that is swapped out keeps all else (positions of survivors, sums of mass, the policy's state), so it can be
 * measured, shortened and freed as ever; it must be swapped in before it computes or is forked. What it shared is private
 * afterwards. Between steps only. */
#ifndef SOQ_KV_SWAP_H
#define SOQ_KV_SWAP_H

#include "kv/cache.h"

/* Takes all blocks of the sequence out of the pool, tentative rows none; a no-op if they are out. -SOQ_ELIMIT: cache->swap is
 * full; on failure nothing has changed. */
int soq__kv_swap_out(struct soq__kv_seq *seq, struct soq_error *err);
/* Brings them back; a no-op unless they are out. There must be room. On failure they are still out. */
int soq__kv_swap_in(struct soq__kv_seq *seq, struct soq_error *err);
/* Forgets blocks that are out. */
void soq__kv_swap_drop(struct soq__kv_seq *seq);
bool soq__kv_is_out(const struct soq__kv_seq *seq);
/* Bytes that it takes in the host's memory. */
uint64_t soq__kv_swap_bytes(const struct soq__kv_seq *seq);

/* Makes an empty sequence one whose blocks are out, in memory of the caller's: n_lines times add(), by group and index. Before
 * that memory goes they must be swapped in, or dropped. */
int soq__kv_swap_borrow(struct soq__kv_seq *seq, uint32_t n_lines, struct soq_error *err);
void soq__kv_swap_add(struct soq__kv_seq *seq, uint32_t group, uint32_t index, const void *block);

/* The bytes of table line `index` of a group, wherever they are: *data_out is the place itself or scratch, which holds a
 * block. */
int soq__kv_line_read(const struct soq__kv_seq *seq, uint32_t group, uint32_t index, void *scratch, const void **data_out,
                      struct soq_error *err);
bool soq__kv_line_is_held(const struct soq__kv_seq *seq, uint32_t group, uint32_t index);

#endif
