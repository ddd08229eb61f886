/* What vec.h needs of the machine: AVX-512 with VNNI. Matrix kernels take sixteen lanes, all others eight. */
#ifndef SOQ_CPU_ISA_H
#define SOQ_CPU_ISA_H

#include "simd/x86.h"

enum {
    DOT_SUM_BITS = 32,
    DOT_SPLITS_BYTES = 0,
    DOT_STEPS_2 = 8, /* any number; a block has 8 */
    DOT_STEPS_4 = 8,
    DOT_STEPS_5 = 8,
    DOT_STEPS_6 = 8,
    DOT_STEPS_8 = 8,
};

VEC_INLINE vf vf_madd(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* b where either is NaN. */
VEC_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

VEC_INLINE vf vf_from_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

VEC_INLINE vf vf_from_bf16(const void *p)
{
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16);
}

VEC_INLINE vi vi_from_i8(const void *p)
{
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128(p));
}

VEC_INLINE vi vi_from_u8(const void *p)
{
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128(p));
}

VEC_INLINE vb vb_lookup(const uint8_t table[16], vb index)
{
    return (vb)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), (__m512i)index);
}

/* Dot products of unsigned and signed bytes: each 32-bit lane gets four products, summed in 32 bits: the total itself. */
typedef vi dot_sum;

VEC_INLINE dot_sum dot_begin(vi total)
{
    return total;
}

VEC_INLINE dot_sum dot_step(dot_sum sum, vb codes, vb x)
{
    return (dot_sum)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)x);
}

/* The same with the four bytes at x in every lane. As an operand in memory they take no register: with one for each product,
 * out-of-order execution runs out of them before it reaches the next block. Compilers load them apart. */
typedef int32_t any_i32 __attribute__((may_alias, aligned(1)));

VEC_INLINE dot_sum dot_step4(dot_sum sum, vb codes, const uint8_t *x)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*(const any_i32 *)x));
    return sum;
}

/* The total; with a factor of 1. */
VEC_INLINE vi dot_end(dot_sum sum, int32_t factor, vi total)
{
    (void)factor;
    (void)total;
    return sum;
}

/* total + dot products of 16 bits each: every 32-bit lane gets two. */
VEC_INLINE vi dot_pairs(vi total, vh codes, vb x)
{
    return (vi)_mm512_dpwssd_epi32((__m512i)total, (__m512i)codes, (__m512i)x);
}

VEC_INLINE vi vi_max(vi a, vi b)
{
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

/* The low bytes of sixteen lanes. */
VEC_INLINE void vi_store_bytes(void *p, const vi v[1])
{
    _mm_storeu_si128(p, _mm512_cvtepi32_epi8((__m512i)v[0]));
}

/* The low halves of sixteen lanes; of each four in the order that dot_pairs() takes them: 0, 2, 1, 3. */
VEC_INLINE void vi_store_halves(void *p, const vi v[1])
{
    vi ordered = (vi)_mm512_shuffle_epi32((__m512i)v[0], _MM_PERM_DBCA);

    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)ordered));
}

/* Sums of the lanes that are eight apart. */
VEC_INLINE f32x8 vf_to_8(vf v)
{
    return (f32x8)_mm512_castps512_ps256(v) + (f32x8)_mm512_extractf32x8_ps(v, 1);
}

/* The larger ones. */
VEC_INLINE f32x8 vf_to_8_most(vf v)
{
    return f32x8_max((f32x8)_mm512_castps512_ps256(v), (f32x8)_mm512_extractf32x8_ps(v, 1));
}

VEC_INLINE i32x8 vi_to_8_most(vi v)
{
    return i32x8_max((i32x8)_mm512_castsi512_si256((__m512i)v), (i32x8)_mm512_extracti64x4_epi64((__m512i)v, 1));
}

/* All of them. */
VEC_INLINE vf column16_part(const column16 *column, uint32_t part)
{
    (void)part;
    return _mm512_cvtph_ps(*column);
}

#endif
