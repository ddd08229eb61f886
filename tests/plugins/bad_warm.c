/* Draws at another temperature than the one asked for. */
#define BAD_SAMPLE                                                                                                             \
    struct soq_sampling other = *sampling;                                                                                     \
    other.temperature *= 1.2f;                                                                                                 \
    sampling = &other
#include "bad_sampler.h"
