/* A sequence's cache as bytes, and back: what a saved session holds.
 *
 * Everything that the continuation depends on: blocks, positions of survivors, sums of attention mass, the policies' state.
 * Numbers are little-endian; blocks are as the codec stores them. The bytes fit a cache of the same groups, policies and
 * codecs, which the caller makes sure of; whatever else is wrong with them is found here. */
#ifndef SOQ_KV_IMAGE_H
#define SOQ_KV_IMAGE_H

#include "kv/cache.h"

/* Takes the next n bytes. */
typedef int soq__put(void *arg, const void *data, size_t n, struct soq_error *err);

/* Nothing may be tentative; blocks may be swapped out. */
int soq__kv_image_save(const struct soq__kv_seq *seq, soq__put *put, void *arg, struct soq_error *err);
/* Makes an empty sequence what the image says, its blocks swapped out and still in `data`: before these go they must be swapped
 * in, or dropped. -SOQ_ECORRUPT: the bytes are no such image. On failure the sequence is empty again. */
int soq__kv_image_load(struct soq__kv_seq *seq, const void *data, size_t n, struct soq_error *err);

#endif
