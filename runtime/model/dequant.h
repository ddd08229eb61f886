/* Quantised blocks to float, at reference quality: exact, portable, one block after the other. Backends have fast versions. */
#ifndef SOQ_MODEL_DEQUANT_H
#define SOQ_MODEL_DEQUANT_H

#include <stddef.h>

#include "soquete/dtype.h"

/* blocks: n_blocks whole blocks, any alignment; out: [n_blocks * elements per block]. */
typedef void soq__dequant_fn(const void *blocks, float *out, size_t n_blocks);

/* Never NULL for an enum soq_dtype; NULL for other ids. */
soq__dequant_fn *soq__dequant(enum soq_dtype type);

#endif
