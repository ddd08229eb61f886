#include "check/reference.h"

#include <math.h>
#include <string.h>

#include "soquete/backend.h"

double soq__ref_dot(const float *w, const float *x, uint32_t n, double *size_out)
{
    double sum = 0, size = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)w[i] * (double)x[i];
        size += fabs((double)w[i] * (double)x[i]);
    }
    *size_out = size;
    return sum;
}

double soq__ref_activation(uint32_t kind, double x)
{
    switch (kind) {
    case SOQ_ACT_SILU:
        return x / (1 + exp(-x));
    case SOQ_ACT_GELU_TANH:
        return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case SOQ_ACT_GELU_ERF:
        return x * 0.5 * erfc(-x * M_SQRT1_2);
    default:
        return x > 0 ? x : 0;
    }
}

void soq__ref_norm(uint32_t kind, const float *x, uint32_t width, double eps, const float *weight, const float *bias,
                   double *out)
{
    double mean = 0, square = 0;

    for (uint32_t i = 0; i < width && kind == SOQ_NORM_LAYER; i++)
        mean += (double)x[i] / width;
    for (uint32_t i = 0; i < width; i++)
        square += ((double)x[i] - mean) * ((double)x[i] - mean) / width;
    for (uint32_t i = 0; i < width; i++)
        out[i] = ((double)x[i] - mean) / sqrt(square + eps) * (double)weight[i] + (bias ? (double)bias[i] : 0);
}

void soq__ref_rope(uint32_t kind, double *head, uint32_t n_rot, const float *inv_freq, double position, double mscale)
{
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        double *a = kind == SOQ_ROPE_HALF ? &head[i] : &head[2 * i], *b = kind == SOQ_ROPE_HALF ? a + n_rot / 2 : a + 1;
        double angle = position * (double)inv_freq[i], x = *a, y = *b;

        *a = mscale * (x * cos(angle) - y * sin(angle));
        *b = mscale * (x * sin(angle) + y * cos(angle));
    }
}

/* Eleven bits; below 2^-14 the spacing stays. */
double soq__ref_half(double x)
{
    int exponent;

    frexp(x, &exponent);
    exponent = exponent < -13 ? -13 : exponent;
    return ldexp(nearbyint(ldexp(x, 11 - exponent)), exponent - 11);
}

static bool sees(const struct soq__ref_attention *a, uint32_t q, uint32_t p)
{
    bool there = p < a->hole_first || p >= a->hole_last;

    return there && p <= q && (a->window == 0 || p + a->window > q || p < a->sinks);
}

static double kept(const struct soq__ref_attention *a, float x, uint32_t p)
{
    return a->halves && p >= a->halves_from ? soq__ref_half((double)x) : (double)x;
}

static double score(const struct soq__ref_attention *a, const float *q, uint32_t p)
{
    const float *k = a->k + p * a->k_stride;
    double s = 0;

    for (uint32_t d = 0; d < a->dk; d++)
        s += (double)q[d] * kept(a, k[d], p);
    s *= a->scale;
    return a->softcap > 0 ? a->softcap * tanh(s / a->softcap) : s;
}

void soq__ref_weigh(const struct soq__ref_attention *a, const float *q, uint32_t position, double *weights)
{
    double most = a->sink_logit ? (double)*a->sink_logit : -INFINITY, total;

    for (uint32_t p = 0; p <= position; p++) {
        weights[p] = sees(a, position, p) ? score(a, q, p) : -INFINITY;
        most = fmax(most, weights[p]);
    }
    total = a->sink_logit ? exp((double)*a->sink_logit - most) : 0;
    for (uint32_t p = 0; p <= position; p++) {
        weights[p] = weights[p] > -INFINITY ? exp(weights[p] - most) : 0;
        total += weights[p];
    }
    for (uint32_t p = 0; p <= position && total > 0; p++)
        weights[p] /= total;
}

void soq__ref_attend(const struct soq__ref_attention *a, const float *q, uint32_t position, double *out)
{
    double weights[SOQ__REF_POSITIONS];

    soq__ref_weigh(a, q, position, weights);
    memset(out, 0, a->dv * sizeof *out);
    for (uint32_t p = 0; p <= position; p++)
        for (uint32_t d = 0; d < a->dv && weights[p] > 0; d++)
            out[d] += weights[p] * kept(a, a->v[p * a->v_stride + d], p);
}
