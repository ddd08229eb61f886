/* What vec.h needs of an x86-64 with AVX2, FMA and F16C, but for products of bytes. */
#ifndef SOQ_CPU_X86_H
#define SOQ_CPU_X86_H

#include <immintrin.h>

VEC_INLINE f32x8 f32x8_madd(f32x8 a, f32x8 b, f32x8 c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* Both give b where either is NaN. */
VEC_INLINE f32x8 f32x8_max(f32x8 a, f32x8 b)
{
    return _mm256_max_ps(a, b);
}

VEC_INLINE f32x8 f32x8_min(f32x8 a, f32x8 b)
{
    return _mm256_min_ps(a, b);
}

VEC_INLINE i32x8 i32x8_max(i32x8 a, i32x8 b)
{
    return (i32x8)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

VEC_INLINE f32x8 f32x8_from_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

VEC_INLINE void f32x8_to_f16(void *p, f32x8 v)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* The low bytes of the lanes. */
VEC_INLINE void i32x8_store_i8(void *p, i32x8 v)
{
    const __m256i low = _mm256_set1_epi32(0x0c080400);
    __m256i bytes = _mm256_shuffle_epi8((__m256i)v, low);
    __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));

    _mm_storel_epi64(p, both);
}

/* Bytes 8i ... 8i + 7 are the lanes of v[i], which fit. */
VEC_INLINE i32x8 i32x8_pack_i8(const i32x8 v[4])
{
    __m256i low = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]), high = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);

    return (i32x8)_mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* ((0+1)+(2+3)) + ((4+5)+(6+7)) of each. */
VEC_INLINE void f32x8_sum4(f32x8 a, f32x8 b, f32x8 c, f32x8 d, float *out)
{
    __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));

    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

VEC_INLINE float f32x8_sum(f32x8 v)
{
    float out[4];

    f32x8_sum4(v, v, v, v, out);
    return out[0];
}

/* Sixteen F16 of a column, and eight columns of sixteen rows that lie stride bytes apart. */
typedef __m256i column16;

VEC_INLINE void column16_load8(const uint8_t *rows, size_t stride, column16 *out)
{
    __m256i x[8], y[8];

    /* Rows t and t + 8 in the halves. */
    for (size_t t = 0; t < 8; t++)
        x[t] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows + t * stride))),
                                       _mm_loadu_si128((const __m128i *)(rows + (t + 8) * stride)), 1);
    for (int t = 0; t < 8; t += 2) {
        y[t] = _mm256_unpacklo_epi16(x[t], x[t + 1]); /* columns 0 to 3 of two rows */
        y[t + 1] = _mm256_unpackhi_epi16(x[t], x[t + 1]);
    }
    for (int t = 0; t < 8; t += 4)
        for (int i = 0; i < 2; i++) {
            x[t + 2 * i] = _mm256_unpacklo_epi32(y[t + i], y[t + 2 + i]); /* two columns of four rows */
            x[t + 2 * i + 1] = _mm256_unpackhi_epi32(y[t + i], y[t + 2 + i]);
        }
    for (int i = 0; i < 4; i++) {
        out[2 * i] = _mm256_unpacklo_epi64(x[i], x[4 + i]); /* a column of eight rows */
        out[2 * i + 1] = _mm256_unpackhi_epi64(x[i], x[4 + i]);
    }
}

/* v as it is, in a vector register: a product of equal lanes is otherwise taken before they are spread, on the slow way from
 * the general registers. */
VEC_INLINE vi vi_keep(vi v)
{
    __asm__("" : "+v"(v));
    return v;
}

/* Hints that the line at p will be wanted: soon, in the first-level cache; */
VEC_INLINE void vec_prefetch(const void *p)
{
    _mm_prefetch(p, _MM_HINT_T0);
}

/* later, in the second-level one. */
VEC_INLINE void vec_prefetch_l2(const void *p)
{
    _mm_prefetch(p, _MM_HINT_T1);
}

VEC_INLINE void vec_pause(void)
{
    _mm_pause();
}

#endif
