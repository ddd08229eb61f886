/* Goes on when it should stop. */
#define BAD_CANCELLED 0
#define BAD_PRODUCT                                                                                                            \
    for (uint32_t i = 0; i < n; i++)                                                                                           \
    sum += (double)w[i] * (double)x[i]
#include "bad_backend.h"
