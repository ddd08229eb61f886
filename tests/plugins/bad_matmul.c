/* Leaves out the last input where there are many. */
#define BAD_PRODUCT                                                                                                            \
    for (uint32_t i = 0; i < n - (n > 255); i++)                                                                               \
    sum += (double)w[i] * (double)x[i]
#include "bad_backend.h"
