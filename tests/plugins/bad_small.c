/* Nothing is wrong with this backend, small as it is. */
#define BAD_PRODUCT                                                                                                            \
    for (uint32_t i = 0; i < n; i++)                                                                                           \
    sum += (double)w[i] * (double)x[i]
#include "bad_backend.h"
