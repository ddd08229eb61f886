/* Forgets a failure as soon as the next op comes. */
#define BAD_FORGETS b->failed = 0
#define BAD_PRODUCT                                                                                                            \
    for (uint32_t i = 0; i < n; i++)                                                                                           \
    sum += (double)w[i] * (double)x[i]
#include "bad_backend.h"
