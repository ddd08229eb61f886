/* What vec.h needs of the machine: AVX2, FMA and F16C. */
#ifndef SOQ_CPU_ISA_H
#define SOQ_CPU_ISA_H

#include "simd/x86.h"

/* Dot products of unsigned and signed bytes: each 32-bit lane of the result gets four products. Sums are kept in 16 bits, two
 * products each, until they are flushed with the scale of their lane. */
typedef __m256i dot_sum;

enum {
    DOT_SPLITS_BYTES = 1, /* 8-bit codes are taken as two nibbles */
    DOT_STEPS_4 = 8,      /* steps that 16 bits hold, by bits of the codes */
    DOT_STEPS_5 = 4,
    DOT_STEPS_6 = 2,
    DOT_STEPS_8 = 1,
};

VEC_INLINE dot_sum dot_zero(void)
{
    return _mm256_setzero_si256();
}

VEC_INLINE dot_sum dot_step(dot_sum sum, u8x32 codes, u8x32 x)
{
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16((__m256i)codes, (__m256i)x));
}

/* The scale of a flush in the form that dot_flush takes: 16 bits in both halves of the lane. */
VEC_INLINE i32x8 dot_scale(i32x8 scale)
{
    return (scale & 0xffff) | (i32x8)((u32x8)scale << 16);
}

VEC_INLINE i32x8 dot_flush(dot_sum sum, i32x8 scale)
{
    return (i32x8)_mm256_madd_epi16(sum, (__m256i)scale);
}

#endif
