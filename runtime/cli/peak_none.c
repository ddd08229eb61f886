/* Processors without kernels of their own: the portable ones of bench_peak.c serve. */
#include "cli/peak.h"

const struct soq__peak_kernel *soq__peak_int8(size_t *count_out)
{
    *count_out = 0;
    return NULL;
}

const struct soq__peak_kernel *soq__peak_fp32(size_t *count_out)
{
    *count_out = 0;
    return NULL;
}
