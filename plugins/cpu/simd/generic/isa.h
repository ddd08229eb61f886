/* What vec.h needs of the machine, in portable C (little-endian). */
#ifndef SOQ_CPU_ISA_H
#define SOQ_CPU_ISA_H

VEC_INLINE f32x8 f32x8_madd(f32x8 a, f32x8 b, f32x8 c)
{
    return a * b + c;
}

/* Both give b where either is NaN, as the machine's instructions do. */
VEC_INLINE f32x8 f32x8_max(f32x8 a, f32x8 b)
{
    return f32x8_select(a > b, a, b);
}

VEC_INLINE f32x8 f32x8_min(f32x8 a, f32x8 b)
{
    return f32x8_select(a < b, a, b);
}

VEC_INLINE i32x8 i32x8_max(i32x8 a, i32x8 b)
{
    i32x8 mask = a > b;

    return (mask & a) | (~mask & b);
}

VEC_INLINE f32x8 f32x8_from_f16(const void *p)
{
    u16x8 v;
    u32x8 h, magnitude;
    f32x8 f;

    memcpy(&v, p, sizeof v);
    h = __builtin_convertvector(v, u32x8);
    magnitude = h & 0x7fff;
    /* 2^112 moves the exponent's bias and makes normal numbers of denormal ones; infinity and NaN get their exponent back. */
    f = (f32x8)(magnitude << 13) * f32x8_splat(0x1p112f);
    return (f32x8)((u32x8)f | ((u32x8)(magnitude >= 0x7c00) & 0x7f800000) | ((h & 0x8000) << 16));
}

VEC_INLINE uint16_t f16_bits(float x)
{
    uint32_t bits, sign;

    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits >= 0x47800000)
        return (uint16_t)(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (bits < 0x38800000) {
        float f;

        /* Denormal: adding one half leaves the result in the low bits, rounded. */
        memcpy(&f, &bits, sizeof f);
        f += 0.5f;
        memcpy(&bits, &f, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | (bits - 0x38000000) >> 13);
}

VEC_INLINE void f32x8_to_f16(void *p, f32x8 v)
{
    uint16_t h[8];

    for (int i = 0; i < 8; i++)
        h[i] = f16_bits(v[i]);
    memcpy(p, h, sizeof h);
}

typedef int8_t i8x8 __attribute__((vector_size(8)));
typedef uint8_t u8x8 __attribute__((vector_size(8)));

/* The low bytes of the lanes. */
VEC_INLINE void i32x8_store_i8(void *p, i32x8 v)
{
    i8x8 bytes = __builtin_convertvector(v, i8x8);

    memcpy(p, &bytes, sizeof bytes);
}

/* Bytes 8i ... 8i + 7 are the lanes of v[i], which fit. */
VEC_INLINE i32x8 i32x8_pack_i8(const i32x8 v[4])
{
    i32x8 packed;

    for (int i = 0; i < 4; i++)
        i32x8_store_i8((uint8_t *)&packed + 8 * i, v[i]);
    return packed;
}

VEC_INLINE float f32x8_sum(f32x8 v)
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

VEC_INLINE void f32x8_sum4(f32x8 a, f32x8 b, f32x8 c, f32x8 d, float *out)
{
    out[0] = f32x8_sum(a);
    out[1] = f32x8_sum(b);
    out[2] = f32x8_sum(c);
    out[3] = f32x8_sum(d);
}

VEC_INLINE vi vi_from_i8(const void *p)
{
    i8x8 v;

    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vi);
}

VEC_INLINE vi vi_from_u8(const void *p)
{
    u8x8 v;

    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vi);
}

VEC_INLINE vb vb_lookup(const uint8_t table[16], vb index)
{
    uint8_t in[32], out[32];

    memcpy(in, &index, sizeof in);
    for (int i = 0; i < 32; i++)
        out[i] = table[in[i] & 15];
    return vb_load(out);
}

/* Dot products of unsigned and signed bytes: each 32-bit lane of the result gets four products. Sums are kept in 16 bits, two
 * products each. */
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef i16x16 dot_sum;

VEC_INLINE dot_sum dot_step(dot_sum sum, vb codes, vb x)
{
    i16x16 c = (i16x16)codes, s = (i16x16)x;
    i16x16 even = (c & 0xff) * ((i16x16)((u16x16)s << 8) >> 8);
    i16x16 odd = (i16x16)((u16x16)c >> 8) * (s >> 8);

    return sum + (even + odd);
}

/* total + factor * sum; factor is 1 or 16. */
VEC_INLINE vi dot_end(dot_sum sum, int32_t factor, vi total)
{
    vi pairs = (vi)sum;

    return total + (((vi)((u32x8)pairs << 16) >> 16) + (pairs >> 16)) * factor;
}

/* total + dot products of 16 bits each: every 32-bit lane gets two. */
VEC_INLINE vi dot_pairs(vi total, vh codes, vb x)
{
    vi c = (vi)codes, s = (vi)x;

    return total + (c & 0xffff) * ((vi)((vu)s << 16) >> 16) + (vi)((vu)c >> 16) * (s >> 16);
}

/* The low bytes of sixteen lanes. */
VEC_INLINE void vi_store_bytes(void *p, const vi v[2])
{
    i32x8_store_i8(p, v[0]);
    i32x8_store_i8((uint8_t *)p + 8, v[1]);
}

/* The low halves of sixteen lanes; of each four in the order that dot_pairs() takes them: 0, 2, 1, 3. */
VEC_INLINE void vi_store_halves(void *p, const vi v[2])
{
    int16_t halves[16];

    for (int i = 0; i < 16; i++)
        halves[i / 4 * 4 + i % 2 * 2 + i / 2 % 2] = (int16_t)v[i / 8][i % 8];
    memcpy(p, halves, sizeof halves);
}

/* Sixteen F16 of a column, widened, and eight columns of sixteen rows that lie stride bytes apart. */
typedef struct {
    float x[16];
} column16;

VEC_INLINE void column16_load8(const uint8_t *rows, size_t stride, column16 *out)
{
    for (size_t t = 0; t < 16; t++) {
        f32x8 x = f32x8_from_f16(rows + t * stride);

        for (int d = 0; d < 8; d++)
            out[d].x[t] = x[d];
    }
}

/* Eight of them, the first or the last. */
VEC_INLINE vf column16_part(const column16 *column, uint32_t part)
{
    return vf_load(column->x + part * 8);
}

#include "simd/lanes8.h"

VEC_INLINE vi vi_keep(vi v)
{
    return v;
}

/* Hints that the line at p will be wanted: soon, in the first-level cache; */
VEC_INLINE void vec_prefetch(const void *p)
{
    __builtin_prefetch(p);
}

/* later, in the second-level one. */
VEC_INLINE void vec_prefetch_l2(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}

VEC_INLINE void vec_pause(void)
{
    __asm__ volatile("" ::: "memory");
}

#endif
