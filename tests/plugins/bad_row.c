/* Computes a row more than there are. */
#define BAD_ROWS args->x.rows + (args->x.rows == 7)
#define BAD_PRODUCT                                                                                                            \
    for (uint32_t i = 0; i < n; i++)                                                                                           \
    sum += (double)w[i] * (double)x[i]
#include "bad_backend.h"
