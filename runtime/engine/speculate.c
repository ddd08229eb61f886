/* Accepting drafts. */
#include "engine/speculate.h"

#include <string.h>

#include "plugins/common/philox.h"

double soq__uniform(uint64_t seed, uint32_t position, enum soq__stream stream)
{
    return philox_uniform(seed, position, stream);
}

int32_t soq__pick(const float *weights, uint32_t n, double u)
{
    double total = 0, reached = 0;
    uint32_t drawn = 0;

    for (uint32_t t = 0; t < n; t++)
        total += (double)weights[t];
    for (uint32_t t = 0; t < n && reached <= u * total; t++) {
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
