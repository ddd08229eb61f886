/* Conversions between f32 and the two 16-bit floats: f16 (IEEE 754 binary16) and bf16 (the upper half of an f32).
 *
 * To 16 bits they round to nearest, ties to even; infinities, subnormals and signed zeros are right; a NaN stays a NaN of the
 * same sign, made quiet, with the upper bits of its payload. The bits are those of x86 F16C and of the ARM instructions. Each
 * function is free of branches (the selects become masks), so that a compiler vectorises a loop over it on any machine. */
#ifndef PLUGIN_HALF_H
#define PLUGIN_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t f16_from_f32(float value)
{
    uint32_t bits = f32_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    /* From 65520 on everything rounds to infinity, which is what 2^16 becomes. */
    uint32_t finite = magnitude < 0x47800000 ? magnitude : 0x47800000;
    /* Moves the exponent's bias from 127 to 15; the carry of the rounding runs into the exponent, as it should. */
    uint32_t normal = (finite - 0x38000000 + 0xfff + (finite >> 13 & 1)) >> 13;
    /* Below 2^-14 the spacing is 2^-24, which is that of f32 at 0.5: let the addition round. */
    uint32_t small = f32_bits(f32_from_bits(finite) + 0.5f) - 0x3f000000;
    uint32_t number = finite < 0x38800000 ? small : normal;
    uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);

    return (uint16_t)(sign | (magnitude > 0x7f800000 ? nan : number));
}

static inline float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    uint32_t normal = (magnitude << 13) + 0x38000000;
    uint32_t small = f32_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t number = magnitude < 0x0400 ? small : normal;
    uint32_t quiet = magnitude > 0x7c00 ? 0x00400000 : 0;

    return f32_from_bits(sign | (magnitude < 0x7c00 ? number : 0x7f800000 | magnitude << 13 | quiet));
}

static inline uint16_t bf16_from_f32(float value)
{
    uint32_t bits = f32_bits(value);
    uint32_t number = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t nan = bits >> 16 | 0x40;

    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : number);
}

static inline float bf16_to_f32(uint16_t half)
{
    return f32_from_bits((uint32_t)half << 16);
}

#endif
