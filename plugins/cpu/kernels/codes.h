/* What the files of the kernels on codes share: attention over packed tiles as they are (codes.h of the backend).
 *
 * What meets the codes, queries or weights, takes up the scales that lie along the axis which is summed over (it is *folded*)
 * and is rounded to whole numbers with one scale for all that a term of a product sums up: of one signed digit (7 bits and a
 * sign) beside affine codes of up to 5 bits, else of two (about 15 bits). Products of digits and codes are summed as integers,
 * exactly. Codes that are floats meet what is folded as it is; sums go in order. So a query's result depends on neither the
 * other queries nor on how many vectors are taken at once.
 */
#ifndef SOQ_CPU_KERNELS_CODES_H
#define SOQ_CPU_KERNELS_CODES_H

#include "kernels/attention.h"

/* Rows of numbers: [rows][stride]. */
struct lines {
    const float *x;
    size_t stride;
};

/* What meets the codes of up to BLOCK rows: digits, or for codes that are floats numbers. */
struct folded {
    union {
        struct digit_row digits[BLOCK];
        float numbers[BLOCK * FOLD_MAX];
    };
};

/* n numbers of each row that take up scales and minima, as group `group` of digits from `at` on; or as numbers from there on.
 */
struct fold {
    const float *x; /* [n_q][n] */
    uint32_t n;     /* a multiple of CODES_STEP */
    uint32_t group, at;
    const uint8_t *scales[FOLD_MAX / CODES_STEP]; /* of CODES_STEP numbers each */
    uint32_t type;                                /* of scales and minima */
    ptrdiff_t minima;                             /* bytes from scales to their minima; 0: there are none */
    struct digit_row *digits;                     /* [n_q] */
    float *numbers;                               /* [n_q][FOLD_MAX] */
    struct span ahead;                            /* to be fetched meanwhile */
};

enum { FOLDS = 8 /* are taken at once: each waits for its largest numbers and quotients, one after the other */ };

/* Codes of some parts, one behind the other along the inner axis, that are multiplied by one group of digits. */
struct term {
    const struct part *parts;
    uint32_t n_parts, group;
    const uint8_t *scales, *minima; /* of n_lanes outer indices, as they lie in a tile; NULL: ones; none */
    struct span ahead;              /* to be fetched meanwhile */
};

/* Up to BLOCK rows against the codes of the outer indices [outer, outer + n_lanes):
 * out[row][lane] (+)= sum over terms of products * scale [* lane's scale] + offset [+ total * lane's minimum]. */
struct product {
    const struct cpu_codes *codes;
    const struct term *terms;
    uint32_t n_terms, outer, n_lanes; /* n_lanes is a multiple of CODES_STEP */
    uint32_t lane_type;               /* of lanes' scales and minima */
    const struct digit_row *digits;
    struct lines numbers; /* for codes that are floats */
    bool add;             /* to out; else to zeros */
    float *out;
    size_t out_stride;
};

/* codes_multiply.c */
void cpu_codes_multiply(const struct product *p, uint32_t n_q);
/* codes_float.c. The same for codes that are floats. */
void cpu_codes_multiply_floats(uint32_t n_q, const struct product *p);

/* codes_fold.c. Scales and minima as numbers, where they do not lie as they are wanted. */
struct scale_room {
    float scale[FOLD_MAX], minimum[FOLD_MAX];
};
/* fold->scales and so on: ones; of a tile's entries, which lie in some parts, for the group of dims with `dim`; of all dims,
 * for the group of entries with `token` of a packed tile. */
void cpu_codes_ones(struct fold *fold);
void cpu_codes_entry_scales(const struct cpu_codes *codes, const struct part *parts, uint32_t n_parts, uint32_t dim,
                            struct fold *fold, struct scale_room *room);
void cpu_codes_dim_scales(const struct cpu_codes *codes, const uint8_t *tile, uint32_t token, uint32_t width, struct fold *fold,
                          struct scale_room *room);
/* The latter as numbers. */
void cpu_codes_load_dim_scales(const struct cpu_codes *codes, const uint8_t *tile, uint32_t token, uint32_t width,
                               struct scale_room *room);
/* n_q rows, `stride` numbers from one to the next, up to FOLDS times. What is not finite makes the group's scale so. */
void cpu_codes_fold(const struct cpu_codes *codes, uint32_t n_q, size_t stride, const struct fold *folds, uint32_t n);

/* codes_rotate.c. x as the format stores it; `width` numbers, `room` with the zeros behind them. */
void cpu_codes_rotate(const struct soq_kv_format *format, size_t width, size_t room, float *x);

/* Digits of a number: one where codes have so few bits that their own error hides that of seven bits and a sign. It does
 * not in codebooks: with 128 dims of 1 bit attention was off by 5 % of the largest value. */
VEC_INLINE uint32_t digits_of(const struct cpu_codes *codes)
{
    return codes->lookup || codes->bits > 5 ? 2 : 1;
}

/* Two digits meet codes as one number where products of bytes are summed in 16 bits: few of them fit. */
VEC_INLINE bool digits_together(uint32_t n_digits)
{
    return n_digits == 2 && DOT_SUM_BITS == 16;
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

enum { WIDE = 2 /* vectors of lanes at once */ };

/* Where the vectors from `lane` on begin; where there are no more, the one before is taken once again. */
VEC_INLINE void place_lanes(const struct product *p, uint32_t lane, size_t at[WIDE])
{
    VEC_EACH(j, WIDE)
        at[j] = lane + j * CPU_LANES < p->n_lanes ? lane + j * CPU_LANES : lane;
}

VEC_INLINE void begin_lanes(uint32_t n_q, const struct product *p, const size_t at[WIDE], vf y[BLOCK][WIDE])
{
    VEC_EACH(i, n_q)
        VEC_EACH(j, WIDE)
            y[i][j] = p->add ? vf_load(p->out + i * p->out_stride + at[j]) : vf_splat(0.0f);
}

VEC_INLINE void end_lanes(uint32_t n_q, const struct product *p, const size_t at[WIDE], vf y[BLOCK][WIDE])
{
    VEC_EACH(i, n_q)
        VEC_EACH(j, WIDE)
            vf_store(p->out + i * p->out_stride + at[j], y[i][j]);
}

/* y += what a term gives, times the scales of lanes, and if there are minima, totals times these. */
VEC_INLINE void add_term(uint32_t n_q, const struct product *p, const struct term *term, const size_t at[WIDE],
                         const vf products[BLOCK][WIDE], vf y[BLOCK][WIDE])
{
    VEC_EACH(j, WIDE) {
        vf scale = term->scales ? numbers_at(p->lane_type, term->scales, at[j]) : vf_splat(1.0f);

        VEC_EACH(i, n_q)
            y[i][j] = vf_madd(products[i][j], scale, y[i][j]);
        if (term->minima) {
            vf minimum =
                vf_madd(scale, vf_splat((float)p->codes->passes[0].zero), numbers_at(p->lane_type, term->minima, at[j]));

            VEC_EACH(i, n_q)
                y[i][j] = vf_madd(vf_splat(p->digits[i].totals[term->group]), minimum, y[i][j]);
        }
    }
}

#endif
