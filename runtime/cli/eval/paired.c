#include "cli/eval/paired.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "cli/eval/random.h"

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double mean_of(const double *values, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return sum / (double)n;
}

int soq__interval_of(const double *values, size_t n, struct soq__interval *out, struct soq_error *err)
{
    enum { TAIL = SOQ__BOOTSTRAP_SAMPLES / 40 }; /* 2.5 % */
    struct soq__random r = {SOQ__BOOTSTRAP_SEED};
    double *means;

    if (!n) {
        *out = (struct soq__interval){0};
        return 0;
    }
    means = soq__alloc_array(SOQ__BOOTSTRAP_SAMPLES, sizeof *means);
    if (!means)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for the bootstrap");
    for (size_t s = 0; s < SOQ__BOOTSTRAP_SAMPLES; s++) {
        double sum = 0;

        for (size_t i = 0; i < n; i++)
            sum += values[soq__random_below(&r, (uint32_t)n)];
        means[s] = sum / (double)n;
    }
    qsort(means, SOQ__BOOTSTRAP_SAMPLES, sizeof *means, ascending);
    *out = (struct soq__interval){n, mean_of(values, n), means[TAIL], means[SOQ__BOOTSTRAP_SAMPLES - 1 - TAIL]};
    soq__free(means);
    return 0;
}
