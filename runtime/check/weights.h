/* Random weights of every type, with the numbers that they stand for. */
#ifndef SOQ_CHECK_WEIGHTS_H
#define SOQ_CHECK_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

/* All types of the ABI, in its order. */
extern const uint32_t soq__weight_types[];
extern const size_t soq__weight_type_count;

/* Writes whole random blocks of that many elements, with scales of a sane size in the places where the type keeps them. */
void soq__random_blocks(uint32_t dtype, size_t elements, uint64_t seed, uint8_t *out);
/* Bytes of that many elements, whole blocks. */
size_t soq__block_bytes(uint32_t dtype, size_t elements);

#endif
