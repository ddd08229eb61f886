/* What the files of the kernels on codes share: attention over packed tiles as they are (codes.h of the backend).
 *
 * What meets the codes, queries or weights, takes up the scales that lie along the axis which is summed over (it is *folded*)
 * and is rounded to whole numbers of two signed digits with one scale for all that is summed up, about 15 bits. Products of
 * digits and codes are summed as integers, exactly. Codes that are floats meet what is folded as it is; sums go in order. So a
 * query's result depends on neither the other queries nor on how many vectors are taken at once. */
#ifndef SOQ_CPU_KERNELS_CODES_H
#define SOQ_CPU_KERNELS_CODES_H

#include "kernels/attention.h"

enum { DIGITS = 2 };

/* Rows of numbers: [rows][stride]. */
struct lines {
    const float *x;
    size_t stride;
};

/* Scales and minima along an axis; up to a whole step there are zeros behind them. */
struct scales {
    float scale[FOLD_MAX], minimum[FOLD_MAX];
};

/* Rows that took up scales: numbers, for codes that are floats, or else digits of one group. */
struct folded {
    float numbers[BLOCK * FOLD_MAX];
    int8_t bytes[BLOCK * DIGITS * FOLD_MAX];
    float scales[BLOCK], totals[BLOCK];
    int32_t sums[BLOCK];
};

/* Quads of codes along the inner axis of a tile. */
struct run {
    const uint8_t *tile;
    ptrdiff_t ahead; /* bytes to what will be wanted next; 0: not known */
    uint32_t quad, n_quads;
};

enum {
    RUNS = TOKENS / CODES_STEP,
    QUADS = FOLD_MAX / 4, /* of all runs */
};

/* Up to BLOCK rows against the codes of the outer indices [outer, outer + n_lanes), run by run:
 * out[row][lane] (+)= products * scale [* lane_scales] + total [* lane_minima].
 *
 * The only run may be of several groups, one behind the other: then there is a scale and a total for each row and group, and
 * the numbers for lanes lie lane_stride bytes behind those of the group before. */
struct products {
    const struct cpu_codes *codes;
    struct run runs[RUNS];
    uint32_t n_runs, outer, n_lanes; /* n_lanes is a multiple of CODES_STEP */
    uint32_t group_quads;            /* of a group; 0: all are of one */
    struct lines numbers;            /* for codes that are floats */
    struct digits digits;            /* for others */
    /* Of n_lanes outer indices, as they lie in a tile; NULL: ones. */
    const uint8_t *lane_scales, *lane_minima;
    size_t lane_stride;
    uint32_t lane_type;
    bool add; /* to out; else to zeros */
    float *out;
    size_t out_stride;
};

/* codes_multiply.c */
void cpu_codes_multiply(const struct products *p, uint32_t n_q);
/* codes_float.c. The same for codes that are floats. */
void cpu_codes_multiply_floats(const struct products *p, uint32_t n_q);

/* codes_fold.c */
extern const struct scales cpu_codes_ones;
/* The scales of the entries of some parts of a tile, one part behind the other, for the group of dims with `dim`; minima are
 * centred. */
void cpu_codes_entry_scales(const struct cpu_codes *codes, const struct part *parts, uint32_t n_parts, uint32_t dim,
                            struct scales *s);
/* Of `width` dims, for the group of entries with `token` of the tile. */
void cpu_codes_dim_scales(const struct cpu_codes *codes, const uint8_t *tile, uint32_t token, uint32_t width, struct scales *s);
/* Moves n minima to where the middle code is, which is what codes are counted from: they are centred. */
void cpu_codes_centre(const struct cpu_codes *codes, size_t n, struct scales *s);
/* n numbers in digits of group `group` of row i, which begin at `at` in it. n is a multiple of CODES_STEP, at most FOLD_MAX.
 * What is not finite makes the digits' scale so, and gives digits of 0. */
void cpu_codes_round(const struct cpu_codes *codes, const float *x, size_t n, size_t i, size_t group, size_t at,
                     struct digits *d);
/* n_q rows of n numbers take up scales and centred minima; p gets them. */
void cpu_codes_fold(uint32_t n_q, struct lines x, size_t n, const struct scales *s, struct folded *f, struct products *p);

/* codes_rotate.c. x as the format stores it; `width` numbers, `room` with the zeros behind them. */
void cpu_codes_rotate(const struct soq_kv_format *format, size_t width, size_t room, float *x);

/* Bits of each digit. Where products of two are summed in 16 bits, bytes above 127 leave room for seven. */
VEC_INLINE uint32_t digit_bits(const struct cpu_codes *codes)
{
    return DOT_SPLITS_BYTES && codes->high_bytes ? 7 : 8;
}

VEC_INLINE size_t steps(size_t n)
{
    return (n + CODES_STEP - 1) / CODES_STEP * CODES_STEP;
}

/* CPU_LANES numbers, F16 or F32. */
VEC_INLINE vf numbers_at(uint32_t dtype, const uint8_t *at, size_t index)
{
    return dtype == SOQ_DTYPE_F16 ? vf_from_f16(at + index * 2) : vf_load((const float *)(const void *)at + index);
}

/* ---- Lanes of a product -------------------------------------------------------------------------------------------------- */

enum { WIDE = VEC_REGISTERS >= 32 ? 2 : 1 /* vectors of lanes at once */ };

/* Where vector j of those from `lane` on begins; where there are no more, the one before it is taken once again. */
VEC_INLINE uint32_t lane_of(const struct products *p, uint32_t lane, uint32_t j)
{
    return lane + j * CPU_LANES < p->n_lanes ? lane + j * CPU_LANES : lane;
}

/* What lanes make of products and of a row's total. */
struct lanes {
    uint32_t at[WIDE];
    vf scale[WIDE], minimum[WIDE];
};

VEC_INLINE struct lanes lanes_of(const struct products *p, uint32_t lane, uint32_t group)
{
    size_t behind = group * p->lane_stride;
    vf zero = vf_splat((float)p->codes->passes[0].zero);
    struct lanes l;

    for (uint32_t j = 0; j < WIDE; j++) {
        l.at[j] = lane_of(p, lane, j);
        l.scale[j] = l.minimum[j] = vf_splat(1.0f);
        if (p->lane_scales)
            l.scale[j] = numbers_at(p->lane_type, p->lane_scales + behind, l.at[j]);
        if (p->lane_minima)
            l.minimum[j] = vf_madd(l.scale[j], zero, numbers_at(p->lane_type, p->lane_minima + behind, l.at[j]));
    }
    return l;
}

/* A row's products y go out; add: to what is there. */
VEC_INLINE void put_lanes(const struct products *p, bool add, uint32_t row, const struct lanes *l, const vf y[WIDE],
                          float scale, float total)
{
    float *out = p->out + row * p->out_stride;
    vf sums[WIDE];

    for (uint32_t j = 0; j < WIDE; j++)
        sums[j] = add ? vf_load(out + l->at[j]) : vf_splat(0.0f);
    for (uint32_t j = 0; j < WIDE; j++) {
        sums[j] = vf_madd(y[j], vf_splat(scale) * l->scale[j], sums[j]);
        vf_store(out + l->at[j], vf_madd(vf_splat(total), l->minimum[j], sums[j]));
    }
}

#endif
