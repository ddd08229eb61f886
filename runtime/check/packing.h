/* What checks of packed blocks share: caches that are filled and packed, and formats that are tried on shapes. */
#ifndef SOQ_CHECK_PACKING_H
#define SOQ_CHECK_PACKING_H

#include "check/cache.h"

/* All layers get all positions; then the blocks of the first n_packed entries are packed, `skip` of which hold nothing. */
void soq__cache_fill(struct soq__cache *c, uint32_t n_packed, uint32_t skip);

struct soq__packing_tries {
    const struct soq__coder_spec (*specs)[2]; /* [n_specs]: keys, values */
    size_t n_specs;
    const struct soq__cache_shape *shapes; /* [n_shapes] */
    size_t n_shapes;
    uint32_t flags; /* SOQ_OPDESC_... beyond those of the shapes */
    void (*try)(struct soq__rig *rig, const struct soq__cache_shape *shape, struct soq__coder *coders);
};

/* Opens the rig and tries each pair of formats in each shape, as far as the backend claims them; skips the check where it
 * claims none. */
void soq__packing_try(struct soq__kit *kit, const struct soq__packing_tries *tries);

#endif
