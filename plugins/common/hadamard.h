/* The orthonormal Walsh-Hadamard transform in natural order: y_a = sum over b of (-1)^popcount(a & b) x_b / sqrt(n). It is its
 * own inverse and keeps lengths and dot products; it spreads a loud channel evenly over all of them, so that few bits per
 * number go further (S. Ashkboos et al., "QuaRot", NeurIPS 2024). */
#ifndef PLUGIN_HADAMARD_H
#define PLUGIN_HADAMARD_H

#include <math.h>
#include <stdint.h>

/* Of what block size a row of `width` numbers is transformed: the largest power of two that divides it; 0: of none, the width
 * is neither a power of two nor a multiple of 64. */
static inline uint32_t hadamard_block(uint32_t width)
{
    uint32_t block = width & -width;

    return block == width || block >= 64 ? block : 0;
}

/* One stage: sums and differences of numbers `half` apart. */
static inline void hadamard_stage(float *x, uint32_t n, uint32_t half)
{
    for (uint32_t i = 0; i < n; i += 2 * half) {
        float *restrict low = x + i, *restrict high = x + i + half;

        for (uint32_t j = 0; j < half; j++) {
            float a = low[j], b = high[j];

            low[j] = a + b;
            high[j] = a - b;
        }
    }
}

/* Each block of `block` numbers of x [n]. */
static inline void hadamard(float *x, uint32_t n, uint32_t block)
{
    float scale = 1 / sqrtf((float)block);
    uint32_t half = 1;

    for (uint32_t i = 0; i < n; i++)
        x[i] *= scale;
    for (uint32_t i = 0; block >= 4 && i < n; i += 4) { /* the first two at once */
        float a = x[i] + x[i + 1], b = x[i] - x[i + 1], c = x[i + 2] + x[i + 3], d = x[i + 2] - x[i + 3];

        x[i] = a + c;
        x[i + 1] = b + d;
        x[i + 2] = a - c;
        x[i + 3] = b - d;
        half = 4;
    }
    for (; half < block; half *= 2)
        hadamard_stage(x, n, half);
}

#endif
