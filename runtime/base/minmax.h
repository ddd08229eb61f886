/* The smaller and the larger of two counts. */
#ifndef SOQ_BASE_MINMAX_H
#define SOQ_BASE_MINMAX_H

#include <stdint.h>

static inline uint32_t soq__min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t soq__max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

#endif
