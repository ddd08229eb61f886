/* What vec.h needs of the machine: AVX2, FMA and F16C. */
#ifndef SOQ_CPU_ISA_H
#define SOQ_CPU_ISA_H

#include "simd/x86.h"

VEC_INLINE vi vi_from_i8(const void *p)
{
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p));
}

VEC_INLINE vi vi_from_u8(const void *p)
{
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(p));
}

VEC_INLINE vb vb_lookup(const uint8_t table[16], vb index)
{
    return (vb)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), (__m256i)index);
}

/* Dot products of unsigned and signed bytes: each 32-bit lane of the result gets four products. Sums are kept in 16 bits, two
 * products each. */
typedef __m256i dot_sum;

VEC_INLINE dot_sum dot_step(dot_sum sum, vb codes, vb x)
{
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16((__m256i)codes, (__m256i)x));
}

/* total + factor * sum; factor is 1 or 16. */
VEC_INLINE vi dot_end(dot_sum sum, int32_t factor, vi total)
{
    return total + (vi)_mm256_madd_epi16(sum, _mm256_set1_epi16((short)factor));
}

/* total + dot products of 16 bits each: every 32-bit lane gets two. */
VEC_INLINE vi dot_pairs(vi total, vh codes, vb x)
{
    return total + (vi)_mm256_madd_epi16((__m256i)codes, (__m256i)x);
}

/* The low bytes of sixteen lanes. */
VEC_INLINE void vi_store_bytes(void *p, const vi v[2])
{
    const __m256i first = _mm256_set1_epi64x(0x0c080400), second = _mm256_set1_epi64x(0x0c08040000000000);
    __m256i all =
        _mm256_blend_epi32(_mm256_shuffle_epi8((__m256i)v[0], first), _mm256_shuffle_epi8((__m256i)v[1], second), 0xaa);

    all = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
    _mm_storeu_si128(p, _mm256_castsi256_si128(all));
}

/* The low halves of sixteen lanes; of each four in the order that dot_pairs() takes them: 0, 2, 1, 3. */
VEC_INLINE void vi_store_halves(void *p, const vi v[2])
{
    const __m256i halves = _mm256_set1_epi64x(0x0d0c050409080100);
    __m256i all = _mm256_unpacklo_epi64(_mm256_shuffle_epi8((__m256i)v[0], halves), _mm256_shuffle_epi8((__m256i)v[1], halves));

    _mm256_storeu_si256(p, _mm256_permute4x64_epi64(all, 0xd8));
}

/* Eight of them, the first or the last. */
VEC_INLINE vf column16_part(const column16 *column, uint32_t part)
{
    return _mm256_cvtph_ps(part ? _mm256_extracti128_si256(*column, 1) : _mm256_castsi256_si128(*column));
}

#include "simd/lanes8.h"

#endif
