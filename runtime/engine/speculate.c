/* Accepting drafts. */
#include "engine/speculate.h"

#include <string.h>

#include "plugins/common/philox.h"

double soq__uniform(uint64_t seed, uint32_t position, enum soq__stream stream)
{
    return philox_uniform(seed, position, stream);
}

enum { LANES = 8, RUN = 512 /* tokens */ };

/* In sums that do not wait for each other: one sum would wait for an addition at each of a vocabulary's tokens. */
static double sum_of(const float *weights, uint32_t n)
{
    double lanes[LANES] = {0}, sum = 0;
    uint32_t t = 0;

    for (; t + LANES <= n; t += LANES)
        for (uint32_t i = 0; i < LANES; i++)
            lanes[i] += (double)weights[t + i];
    for (; t < n; t++)
        sum += (double)weights[t];
    for (uint32_t i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

/* Of the run that begins at `first`. */
static uint32_t run_length(uint32_t first, uint32_t n)
{
    return n - first < RUN ? n - first : RUN;
}

/* First the run of tokens, then the token. Where rounding hides it, the last one with weight. */
int32_t soq__pick(const float *weights, uint32_t n, double u)
{
    double total = 0, reached = 0, before = 0;
    uint32_t drawn = 0, first = 0;

    for (uint32_t t = 0; t < n; t += RUN)
        total += sum_of(weights + t, run_length(t, n));
    for (uint32_t t = 0; t < n && reached <= u * total; t += RUN) {
        double sum = sum_of(weights + t, run_length(t, n));

        first = sum > 0 ? t : first;
        before = sum > 0 ? reached : before;
        reached += sum;
    }
    reached = before;
    for (uint32_t t = first; t < n && t - first < RUN && reached <= u * total; t++) {
        reached += (double)weights[t];
        drawn = weights[t] > 0 ? t : drawn;
    }
    return (int32_t)drawn;
}

double soq__acceptance(const float *p, const float *q, int32_t token)
{
    return p[token] < q[token] ? (double)p[token] / (double)q[token] : p[token] > 0;
}

void soq__residual(const float *p, float *q, uint32_t n)
{
    bool any = false;

    for (uint32_t t = 0; t < n; t++) {
        q[t] = p[t] > q[t] ? p[t] - q[t] : 0.0f;
        any = any || q[t] > 0;
    }
    if (!any)
        memcpy(q, p, n * sizeof *q);
}
