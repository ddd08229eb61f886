/* Attention over segments of a cache, some of whose keys stand for other positions, beside f64. */
#ifndef SOQ_CHECK_SEGMENTS_H
#define SOQ_CHECK_SEGMENTS_H

#include "check/cache.h"

/* A step of the last n_rows of n_entries positions. */
struct soq__segments_try {
    uint32_t n_entries, n_rows;
    uint32_t n_packed; /* the blocks of the first entries, so many, are packed with coders [2] */
    struct soq__coder *coders;
    /* Makes segments of the one that sees all. */
    void (*lay)(struct soq__rig_step *step, uint32_t n_entries);
};

void soq__segments_try(struct soq__rig *rig, const struct soq__cache_shape *shape, const struct soq__segments_try *t);

/* For lay(): a second segment from entry `first` on, behind the n entries that the first one keeps. */
void soq__segments_split(struct soq__rig_step *step, uint32_t n, uint32_t first, uint32_t n_entries);

#endif
