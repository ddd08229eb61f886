/* Tells probabilities of a temperature that it does not draw by. */
#define BAD_DISTRIBUTION                                                                                                       \
    struct soq_sampling warm = *sampling;                                                                                      \
    warm.temperature *= 1.5f;                                                                                                  \
    sampling = &warm
#include "bad_sampler.h"
