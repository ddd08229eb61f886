/* The vector types that the kernels are written in: eight lanes, whatever the machine has, and CPU_LANES (8 or 16) in the
 * matrix kernels, where a lane is an output.
 *
 * GCC's vector extension carries loads, arithmetic and selection; what needs an instruction of its own (fused multiply-add, F16
 * conversion, horizontal sums, byte products) comes from isa.h, of which each variant of the plugin has one. The build chooses
 * it by include path. Lanes never mix except in the f32x8_sum functions, whose order is fixed, so results depend on nothing but
 * the numbers. */
#ifndef SOQ_CPU_VEC_H
#define SOQ_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include "variant.h"

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

typedef float vf __attribute__((vector_size(4 * CPU_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * CPU_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * CPU_LANES))); /* sums that may wrap */
typedef uint16_t vh __attribute__((vector_size(4 * CPU_LANES))); /* two in a lane */
typedef uint8_t vb __attribute__((vector_size(4 * CPU_LANES)));  /* four in a lane */

#define VEC_INLINE static inline __attribute__((always_inline))

/* A loop of few rounds, whose number is a constant where the function is inlined: unrolled early enough for arrays that it
 * indexes to become registers. */
#define VEC_EACH(i, n) _Pragma("GCC unroll 8") for (uint32_t i = 0; i < (n); i++)

VEC_INLINE f32x8 f32x8_load(const float *p)
{
    f32x8 v;

    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE void f32x8_store(float *p, f32x8 v)
{
    memcpy(p, &v, sizeof v);
}

VEC_INLINE f32x8 f32x8_splat(float x)
{
    return (f32x8){x, x, x, x, x, x, x, x};
}

VEC_INLINE i32x8 i32x8_splat(int32_t x)
{
    return (i32x8){x, x, x, x, x, x, x, x};
}

VEC_INLINE vf vf_load(const float *p)
{
    vf v;

    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

VEC_INLINE vi vi_splat(int32_t x)
{
    return x + (vi){0};
}

VEC_INLINE vf vf_splat(float x)
{
    int32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (vf)vi_splat(bits);
}

VEC_INLINE vf vf_from_i32(vi v)
{
    return __builtin_convertvector(v, vf);
}

/* The first n lanes of p, zeros behind. */
VEC_INLINE vf vf_load_n(const float *p, uint32_t n)
{
    float lanes[CPU_LANES] = {0};

    for (uint32_t i = 0; i < n; i++)
        lanes[i] = p[i];
    return vf_load(lanes);
}

VEC_INLINE void vf_store_n(float *p, vf v, uint32_t n)
{
    float lanes[CPU_LANES];

    vf_store(lanes, v);
    for (uint32_t i = 0; i < n; i++)
        p[i] = lanes[i];
}

VEC_INLINE vb vb_load(const void *p)
{
    vb v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* Four bytes, in every lane. */
VEC_INLINE vb vb_splat4(const void *p)
{
    int32_t x;

    memcpy(&x, p, sizeof x);
    return (vb)vi_splat(x);
}

VEC_INLINE vb vb_high_nibbles(vb v)
{
    return (vb)((vh)v >> 4) & 15;
}

/* Every byte's bit `bit` moves to bit 4 (and its neighbours along: mask them). */
VEC_INLINE vb vb_shift_to_4(vb v, uint32_t bit)
{
    return (vb)(bit < 4 ? (vh)v << (uint16_t)(4 - bit) : (vh)v >> (uint16_t)(bit - 4));
}

/* mask ? a : b; lanes of mask are 0 or -1. */
VEC_INLINE f32x8 f32x8_select(i32x8 mask, f32x8 a, f32x8 b)
{
    return (f32x8)((mask & (i32x8)a) | (~mask & (i32x8)b));
}

/* The first n lanes of p, zeros behind; n < 8. */
VEC_INLINE f32x8 f32x8_load_n(const float *p, uint32_t n)
{
    float lanes[8] = {0};

    for (uint32_t i = 0; i < n; i++)
        lanes[i] = p[i];
    return f32x8_load(lanes);
}

VEC_INLINE void f32x8_store_n(float *p, f32x8 v, uint32_t n)
{
    float lanes[8];

    f32x8_store(lanes, v);
    for (uint32_t i = 0; i < n; i++)
        p[i] = lanes[i];
}

VEC_INLINE void i32x8_store(void *p, i32x8 v)
{
    memcpy(p, &v, sizeof v);
}

VEC_INLINE int32_t i32x8_sum(i32x8 v)
{
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
    return v[0] + v[1];
}

/* rows[i][j] <-> rows[j][i] */
VEC_INLINE void i32x8_transpose(i32x8 rows[8])
{
    i32x8 x[8], y[8];

#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        x[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        x[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        int from = i / 2 * 4 + i % 2; /* columns i % 2 * 2 and the next, and those four behind, of four rows */

        y[2 * i] = __builtin_shufflevector(x[from], x[from + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        y[2 * i + 1] = __builtin_shufflevector(x[from], x[from + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = __builtin_shufflevector(y[i], y[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[i + 4] = __builtin_shufflevector(y[i], y[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

VEC_INLINE f32x8 f32x8_from_i32(i32x8 v)
{
    return __builtin_convertvector(v, f32x8);
}

#include "isa.h"

VEC_INLINE int32_t i32x8_largest(i32x8 v)
{
    v = i32x8_max(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
    v = i32x8_max(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
    return v[0] > v[1] ? v[0] : v[1];
}

/* name(a, b, c, d): the largest lane of each of them, twice. */
#define MOST4(name, type, max)                                                                                                 \
    VEC_INLINE type name(type a, type b, type c, type d)                                                                       \
    {                                                                                                                          \
        a = max(__builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13),                                                       \
                __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15));                                                    \
        c = max(__builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13),                                                       \
                __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15));                                                    \
        a = max(__builtin_shufflevector(a, c, 0, 1, 8, 9, 4, 5, 12, 13),                                                       \
                __builtin_shufflevector(a, c, 2, 3, 10, 11, 6, 7, 14, 15));                                                    \
        return max(a, __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3));                                                  \
    }

MOST4(f32x8_most4, f32x8, f32x8_max)
MOST4(i32x8_most4, i32x8, i32x8_max)

/* Sums of lanes of each; their largest; and the largest of numbers that are not negative, or NaN if there is one, as bits are
 * ordered. */
VEC_INLINE void vf_sum4(vf a, vf b, vf c, vf d, float *out)
{
    f32x8_sum4(vf_to_8(a), vf_to_8(b), vf_to_8(c), vf_to_8(d), out);
}

VEC_INLINE void vf_most4(vf a, vf b, vf c, vf d, float *out)
{
    f32x8 most = f32x8_most4(vf_to_8_most(a), vf_to_8_most(b), vf_to_8_most(c), vf_to_8_most(d));

    memcpy(out, &most, 4 * sizeof *out);
}

VEC_INLINE void vf_magnitude4(vf a, vf b, vf c, vf d, float *out)
{
    i32x8 most = i32x8_most4(vi_to_8_most((vi)a), vi_to_8_most((vi)b), vi_to_8_most((vi)c), vi_to_8_most((vi)d));

    memcpy(out, &most, 4 * sizeof *out);
}

/* Rounds to the nearest integer (ties to even) where |x| < 2^22. */
VEC_INLINE vi vi_round(vf x)
{
    return (vi)(x + vf_splat(0x1.8p23f)) - vi_splat(0x4b400000);
}

VEC_INLINE i32x8 i32x8_round(f32x8 x)
{
    return (i32x8)(x + f32x8_splat(0x1.8p23f)) - i32x8_splat(0x4b400000);
}

/* e^x with a relative error below 2e-7 (Cephes' polynomial after reduction by ln 2 in two parts). Below -87 it is 0, above
 * 88.7 infinity; NaN stays NaN. */
VEC_INLINE f32x8 f32x8_exp(f32x8 x)
{
    f32x8 z = f32x8_min(f32x8_splat(89.0f), f32x8_max(f32x8_splat(-88.0f), x));
    i32x8 n = i32x8_round(z * f32x8_splat(0x1.715476p0f));
    f32x8 nf = f32x8_from_i32(n);
    f32x8 r = f32x8_madd(nf, f32x8_splat(2.12194440e-4f), f32x8_madd(nf, f32x8_splat(-0.693359375f), z));
    f32x8 p = f32x8_splat(1.9875691500e-4f);
    i32x8 half = n >> 1;

    p = f32x8_madd(p, r, f32x8_splat(1.3981999507e-3f));
    p = f32x8_madd(p, r, f32x8_splat(8.3334519073e-3f));
    p = f32x8_madd(p, r, f32x8_splat(4.1665795894e-2f));
    p = f32x8_madd(p, r, f32x8_splat(1.6666665459e-1f));
    p = f32x8_madd(p, r, f32x8_splat(5.0000001201e-1f));
    p = f32x8_madd(p, r * r, r + f32x8_splat(1.0f));
    /* 2^n in two factors: n reaches 128. */
    p = p * (f32x8)((half + i32x8_splat(127)) << 23) * (f32x8)((n - half + i32x8_splat(127)) << 23);
    return f32x8_select(x < f32x8_splat(-87.0f), f32x8_splat(0.0f), p);
}

/* tanh with a relative error below 5e-7. */
VEC_INLINE f32x8 f32x8_tanh(f32x8 x)
{
    f32x8 far = f32x8_splat(1.0f) - f32x8_splat(2.0f) / (f32x8_exp(x + x) + f32x8_splat(1.0f));
    f32x8 z = x * x;
    f32x8 near = f32x8_splat(-5.70498872745e-3f);

    near = f32x8_madd(near, z, f32x8_splat(2.06390887954e-2f));
    near = f32x8_madd(near, z, f32x8_splat(-5.37397155531e-2f));
    near = f32x8_madd(near, z, f32x8_splat(1.33314422036e-1f));
    near = f32x8_madd(near, z, f32x8_splat(-3.33332819422e-1f));
    near = f32x8_madd(near, z * x, x);
    return f32x8_select(z < f32x8_splat(0.625f * 0.625f), near, far);
}

#endif
