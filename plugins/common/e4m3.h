/* The 8-bit float E4M3 (P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022, section 3; as the OCP has it): sign, 4
 * bits of exponent with bias 7, 3 of mantissa; no infinities, subnormals are multiples of 2^-9, the largest number is 448.
 *
 * Rounds to nearest, ties to even. Free of branches, so that a compiler vectorises a loop over it. */
#ifndef PLUGIN_E4M3_H
#define PLUGIN_E4M3_H

#include <stdint.h>

#include "half.h"

#define E4M3_MAX 448.0f

/* |value| is below 464, which still rounds to 448. */
static inline uint8_t e4m3_from_f32(float value)
{
    uint32_t bits = f32_bits(value), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    /* Moves the exponent's bias from 127 to 7; the carry of the rounding runs into the exponent, as it should. */
    uint32_t normal = (magnitude - 0x3c000000 + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
    /* Below 2^-6 the spacing is 2^-9, which is that of f32 at 2^14: let the addition round. */
    uint32_t small = f32_bits(f32_from_bits(magnitude) + 16384.0f) - 0x46800000;

    return (uint8_t)(sign | (magnitude < 0x3c800000 ? small : normal));
}

static inline float e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, magnitude = code & 0x7f;
    uint32_t normal = (magnitude << 20) + 0x3c000000;
    uint32_t small = f32_bits((float)(int32_t)magnitude * 0x1p-9f);

    return f32_from_bits(sign | (magnitude < 8 ? small : normal));
}

#endif
