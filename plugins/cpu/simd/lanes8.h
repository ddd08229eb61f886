/* Matrix kernels with eight lanes and products of bytes summed in 16 bits: what isa.h adds where there is nothing better. */
#ifndef SOQ_CPU_LANES8_H
#define SOQ_CPU_LANES8_H

enum {
    DOT_SUM_BITS = 16,    /* of dot_step() */
    DOT_SPLITS_BYTES = 1, /* 8-bit codes are taken as two nibbles */
    DOT_STEPS_2 = 40,     /* steps that 16 bits hold, by bits of the codes */
    DOT_STEPS_4 = 8,
    DOT_STEPS_5 = 4,
    DOT_STEPS_6 = 2,
    DOT_STEPS_8 = 1,
};

VEC_INLINE vf vf_madd(vf a, vf b, vf c)
{
    return f32x8_madd(a, b, c);
}

/* b where either is NaN. */
VEC_INLINE vf vf_max(vf a, vf b)
{
    return f32x8_max(a, b);
}

VEC_INLINE vf vf_from_f16(const void *p)
{
    return f32x8_from_f16(p);
}

VEC_INLINE vf vf_from_bf16(const void *p)
{
    u16x8 v;

    memcpy(&v, p, sizeof v);
    return (vf)(__builtin_convertvector(v, u32x8) << 16);
}

/* With the four bytes at x in every lane. */
VEC_INLINE dot_sum dot_step4(dot_sum sum, vb codes, const uint8_t *x)
{
    return dot_step(sum, codes, vb_splat4(x));
}

VEC_INLINE vi vi_max(vi a, vi b)
{
    return i32x8_max(a, b);
}

/* Sums of the lanes that are eight apart. */
VEC_INLINE f32x8 vf_to_8(vf v)
{
    return v;
}

/* The larger ones. */
VEC_INLINE f32x8 vf_to_8_most(vf v)
{
    return v;
}

VEC_INLINE i32x8 vi_to_8_most(vi v)
{
    return v;
}

/* Sums begin at zero and are added to the total at the end. */
VEC_INLINE dot_sum dot_begin(vi total)
{
    (void)total;
    return (dot_sum){0};
}

#endif
