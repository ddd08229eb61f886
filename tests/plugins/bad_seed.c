/* Goes on where it was instead of looking at the position. */
#include <stdint.h>

static uint64_t bad_draws;
#define BAD_SAMPLE                                                                                                             \
    struct soq_sampling other = *sampling;                                                                                     \
    other.seed += bad_draws++;                                                                                                 \
    sampling = &other
#include "bad_sampler.h"
