/* What vec.h needs of the machine: AVX-512 with VNNI, in vectors of 256 bits (32 of them, and no lower clock). */
#ifndef SOQ_CPU_ISA_H
#define SOQ_CPU_ISA_H

#include "simd/x86.h"

/* Dot products of unsigned and signed bytes: each 32-bit lane gets four products, summed in 32 bits. */
typedef i32x8 dot_sum;

enum {
    DOT_SPLITS_BYTES = 0,
    DOT_STEPS_4 = 8, /* any number; a block has 8 */
    DOT_STEPS_5 = 8,
    DOT_STEPS_6 = 8,
    DOT_STEPS_8 = 8,
};

VEC_INLINE dot_sum dot_zero(void)
{
    return (dot_sum){0};
}

VEC_INLINE dot_sum dot_step(dot_sum sum, u8x32 codes, u8x32 x)
{
    return (dot_sum)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)codes, (__m256i)x);
}

/* The scale of a flush in the form that dot_flush takes. */
VEC_INLINE i32x8 dot_scale(i32x8 scale)
{
    return scale;
}

VEC_INLINE i32x8 dot_flush(dot_sum sum, i32x8 scale)
{
    return sum * scale;
}

#endif
