/* Sums in another order when there are many rows, and says that it does not. */
#define BAD_PRODUCT                                                                                                            \
    float single = 0;                                                                                                          \
    for (uint32_t i = 0; i < n; i++)                                                                                           \
        single += rows > 4 ? w[i] * x[i] : w[n - 1 - i] * x[n - 1 - i];                                                        \
    sum = (double)single
#include "bad_backend.h"
