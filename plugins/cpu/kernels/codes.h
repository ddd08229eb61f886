/* What the files of the kernels on codes share: attention over packed tiles as they are (codes.h of the backend).
 *
 * What meets the codes, queries or weights, takes up the scales that lie along the axis which is summed over (it is *folded*)
 * and is rounded to whole numbers with one scale for all that is summed up: of one signed digit (7 bits and a sign) beside
 * affine codes of up to 5 bits, else of two (about 15 bits). Products of digits and codes are summed as integers, exactly.
 * Codes that are floats meet what is folded as it is; sums go in order. So a query's result depends on neither the other
 * queries nor on how many vectors are taken at once.
 */
#ifndef SOQ_CPU_KERNELS_CODES_H
#define SOQ_CPU_KERNELS_CODES_H

#include "kernels/attention.h"

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
    struct digit_row digits[BLOCK];
};

enum { PARTS = TOKENS / CODES_STEP };

/* Up to BLOCK rows against the codes of the outer indices [outer, outer + n_lanes), part by part:
 * out[row][lane] (+)= products * scale [* lane_scales] + total [* lane_minima].
 *
 * The only part may be of several groups, one behind the other: then there is a scale and a total for each row and group, and
 * the numbers for lanes lie lane_stride bytes behind those of the group before. */
struct products {
    const struct cpu_codes *codes;
    const struct part *parts;
    uint32_t n_parts, outer, n_lanes; /* n_lanes is a multiple of CODES_STEP */
    uint32_t group_quads;             /* of a group; 0: all are of one */
    struct lines numbers;             /* for codes that are floats */
    const struct digit_row *digits;   /* for others */
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
void cpu_codes_multiply_floats(uint32_t n_q, const struct products *p);

/* codes_fold.c */
extern const struct scales cpu_codes_ones;
/* The scales of the entries of some parts of a tile, one part behind the other, for the group of dims with `dim`; minima are
 * moved to the middle code, which is what codes are counted from. */
void cpu_codes_entry_scales(const struct cpu_codes *codes, const struct part *parts, uint32_t n_parts, uint32_t dim,
                            struct scales *s);
/* Of `width` dims, for the group of entries with `token` of the tile; minima are moved to code `zero`. */
void cpu_codes_dim_scales(const struct cpu_codes *codes, const uint8_t *tile, uint32_t token, uint32_t width, float zero,
                          struct scales *s);
/* n_q rows of n numbers, which take up scales and moved minima, as a group of digits that begins at `at` in their rows. n is
 * a multiple of CODES_STEP, at most FOLD_MAX. What is not finite makes the group's scale so, and gives digits of 0. */
void cpu_codes_round(const struct cpu_codes *codes, uint32_t n_q, struct lines x, size_t n, const struct scales *s,
                     uint32_t group, size_t at, struct digit_row *rows);
/* The same in rows of their own, or as numbers, for products with codes: p gets them. */
void cpu_codes_fold(uint32_t n_q, struct lines x, size_t n, const struct scales *s, struct folded *f, struct products *p);

/* codes_rotate.c. x as the format stores it; `width` numbers, `room` with the zeros behind them. */
void cpu_codes_rotate(const struct soq_kv_format *format, size_t width, size_t room, float *x);

/* Digits of a number: one where codes have so few bits that their own error hides that of seven bits and a sign. It does
 * not in codebooks: with 128 dims of 1 bit attention was off by 5 % of the largest value. */
VEC_INLINE uint32_t digits_of(const struct cpu_codes *codes)
{
    return codes->lookup || codes->bits > 5 ? 2 : 1;
}

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

/* Where the vectors from `lane` on begin; where there are no more, the one before is taken once again. */
VEC_INLINE void place_lanes(const struct products *p, uint32_t lane, size_t at[WIDE])
{
    VEC_EACH(j, WIDE)
        at[j] = lane + j * CPU_LANES < p->n_lanes ? lane + j * CPU_LANES : lane;
}

/* out (+)= products of a group, times the scales of lanes, and if there are minima, totals times these; `fresh`: nothing was
 * added yet. What is summed up over groups stays in memory: registers are for the products. */
VEC_INLINE void add_products(uint32_t n_q, const struct products *p, const size_t at[WIDE], uint32_t group, bool fresh,
                             const vf products[BLOCK][WIDE])
{
    const uint8_t *scales = p->lane_scales ? p->lane_scales + group * p->lane_stride : NULL;
    const uint8_t *minima = p->lane_minima ? p->lane_minima + group * p->lane_stride : NULL;
    vf y[BLOCK][WIDE];

    VEC_EACH(j, WIDE) {
        vf scale = scales ? numbers_at(p->lane_type, scales, at[j]) : vf_splat(1.0f);

        VEC_EACH(i, n_q) {
            y[i][j] = fresh && !p->add ? vf_splat(0.0f) : vf_load(p->out + i * p->out_stride + at[j]);
            y[i][j] = vf_madd(products[i][j], scale, y[i][j]);
        }
        if (minima) {
            vf minimum = vf_madd(scale, vf_splat((float)p->codes->passes[0].zero), numbers_at(p->lane_type, minima, at[j]));

            VEC_EACH(i, n_q)
                y[i][j] = vf_madd(vf_splat(p->digits[i].totals[group]), minimum, y[i][j]);
        }
    }
    VEC_EACH(i, n_q)
        VEC_EACH(j, WIDE)
            vf_store(p->out + i * p->out_stride + at[j], y[i][j]);
}

#endif
