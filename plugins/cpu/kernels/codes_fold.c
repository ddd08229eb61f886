/* Scales of packed tiles, and rows that take them up: folded and rounded to digits, or just folded. */
#include <math.h>

#include "kernels/codes.h"

const struct scales cpu_codes_ones = {.scale = {[0 ... FOLD_MAX - 1] = 1.0f}};

/* ---- Scales -------------------------------------------------------------------------------------------------------------- */

/* An axis of scales and minima in a tile: `group` neighbours share one, and these lie `stride` apart. */
struct axis {
    const uint8_t *at;
    uint32_t group, stride;
};

/* n numbers from `index` on, which neighbours share. */
static void spread_numbers(const struct cpu_codes *codes, const struct axis *axis, const uint8_t *at, uint32_t index,
                           uint32_t n, float *out)
{
    for (uint32_t i = 0, end; i < n; i = end) {
        uint32_t group = (index + i) / axis->group;
        float x;

        end = (group + 1) * axis->group - index < n ? (group + 1) * axis->group - index : n;
        cpu_widen(codes->scale_type, at + (size_t)group * axis->stride * codes->scale_bytes, 1, &x);
        for (uint32_t k = i; k < end; k++)
            out[k] = x;
    }
}

/* n numbers from `index` on, one for each. */
static void gather_numbers(const struct cpu_codes *codes, const struct axis *axis, const uint8_t *at, uint32_t index,
                           uint32_t n, float *out)
{
    uint8_t gathered[FOLD_MAX * sizeof(float)] = {0};
    size_t size = codes->scale_bytes;

    for (uint32_t i = 0; i < n; i++)
        memcpy(gathered + i * size, at + (size_t)(index + i) * axis->stride * size, size);
    cpu_widen(codes->scale_type, gathered, n, out);
}

/* In either way. */
static void collect_numbers(const struct cpu_codes *codes, const struct axis *axis, const uint8_t *at, uint32_t index,
                            uint32_t n, float *out)
{
    if (axis->group > 1)
        spread_numbers(codes, axis, at, index, n, out);
    else
        gather_numbers(codes, axis, at, index, n, out);
}

/* n of them that lie next to each other from `at` on, and if there are minima, from `minima` on. */
VEC_INLINE void widen_scales(uint32_t dtype, const uint8_t *at, const uint8_t *minima, uint32_t n, float zero, float *scale,
                             float *minimum)
{
    for (uint32_t i = 0; i < n; i += CPU_LANES) {
        vf x = numbers_at(dtype, at, i);

        vf_store(scale + i, x);
        if (minima)
            vf_store(minimum + i, vf_madd(x, vf_splat(zero), numbers_at(dtype, minima, i)));
    }
}

/* Those of n indices from `index` on go to s from `to` on; minima are moved to code `zero`. */
static void load_scales(const struct cpu_codes *codes, struct axis axis, uint32_t index, uint32_t n, float zero, uint32_t to,
                        struct scales *s)
{
    const uint8_t *at = axis.at + index * codes->scale_bytes, *minima = codes->layout.min_at ? at + codes->layout.min_at : NULL;
    float *scale = s->scale + to, *minimum = s->minimum + to;

    if (axis.group > 1 || axis.stride > 1 || n % CPU_LANES) {
        collect_numbers(codes, &axis, axis.at, index, n, scale);
        if (minima)
            collect_numbers(codes, &axis, axis.at + codes->layout.min_at, index, n, minimum);
        for (uint32_t i = 0; i < n && minima; i++)
            minimum[i] += zero * scale[i];
    } else if (codes->scale_type == SOQ_DTYPE_F16)
        widen_scales(SOQ_DTYPE_F16, at, minima, n, zero, scale, minimum);
    else
        widen_scales(SOQ_DTYPE_F32, at, minima, n, zero, scale, minimum);
}

void cpu_codes_entry_scales(const struct cpu_codes *codes, const struct part *parts, uint32_t n_parts, uint32_t dim,
                            struct scales *s)
{
    size_t offset = (size_t)(dim / codes->group_dims) * codes->layout.token_groups * codes->scale_bytes;
    uint32_t n = 0;

    for (const struct part *part = parts; part < parts + n_parts; n += part++->n) {
        struct axis axis = {part->tile + offset, codes->group_tokens, 1};

        load_scales(codes, axis, part->first, part->n, (float)codes->passes[0].zero, n, s);
    }
}

void cpu_codes_dim_scales(const struct cpu_codes *codes, const uint8_t *tile, uint32_t token, uint32_t width, float zero,
                          struct scales *s)
{
    size_t offset = (size_t)(token / codes->group_tokens) * codes->scale_bytes;
    struct axis axis = {tile + offset, codes->group_dims, codes->layout.token_groups};

    load_scales(codes, axis, 0, width, zero, 0, s);
    for (size_t i = width; i < steps(width); i++)
        s->scale[i] = s->minimum[i] = 0.0f;
}

/* ---- Digits -------------------------------------------------------------------------------------------------------------- */

/* n numbers x times fold go to product; their largest magnitudes by lanes. */
VEC_INLINE vf fold_row(const float *x, const float *fold, size_t n, vf *product)
{
    vi most = vi_splat(0);

    VEC_EACH(k, n / CPU_LANES) {
        product[k] = vf_load(x + k * CPU_LANES) * vf_load(fold + k * CPU_LANES);
        most = vi_max(most, (vi)product[k] & 0x7fffffff);
    }
    return (vf)most;
}

/* n numbers times `factor`, which fit into their digits; the sums of whole numbers in lanes. In a float as large as 1.5 2^23
 * whole numbers stand in the low bits: of these the low byte is the low digit, and the byte above, when one half was added, the
 * high one. Digits of seven bits are moved there. */
VEC_INLINE vi split_row(uint32_t n_digits, uint32_t bits, const vf *product, float factor, size_t n, size_t at,
                        struct digit_row *row)
{
    const int32_t up = 32 - (int32_t)bits;
    vi half = vi_splat(1 << (bits - 1));
    vu sum = (vu)vi_splat(0);

    VEC_EACH(k, n / CPU_LANES) {
        vi whole = (vi)vf_madd(product[k], vf_splat(factor), vf_splat(0x1.8p23f));

        sum += (vu)whole;
        if (n_digits == 2)
            vi_store_i8(row->bytes[0] + at + k * CPU_LANES, (whole + half) >> (int32_t)bits);
        vi_store_i8(row->bytes[n_digits - 1] + at + k * CPU_LANES, bits == 8 ? whole : whole << up >> up);
    }
    return (vi)(sum - (uint32_t)(n / CPU_LANES * 0x4b400000));
}

/* What meets codes that are counted from the middle one, or minima that lie along the rows. */
VEC_INLINE void offset_rows(uint32_t n_q, size_t n, const struct cpu_codes *codes, struct lines x, const float *minimum,
                            const vi sums[BLOCK], uint32_t group, struct digit_row *rows)
{
    float zero = (float)codes->passes[0].zero, out[BLOCK];
    vf lanes[BLOCK];

    VEC_EACH(i, n_q) {
        lanes[i] = vf_from_i32(sums[i]) * vf_splat(-zero * rows[i].scales[group]);
        if (minimum)
            VEC_EACH(k, n / CPU_LANES)
                lanes[i] = vf_madd(vf_load(x.x + i * x.stride + k * CPU_LANES), vf_load(minimum + k * CPU_LANES), lanes[i]);
    }
    reduce_rows(n_q, vf_sum4, lanes, out);
    VEC_EACH(i, n_q)
        rows[i].offsets[group] = out[i];
}

VEC_INLINE void round_group(uint32_t n_q, uint32_t n_digits, uint32_t bits, size_t n, const struct cpu_codes *codes,
                            struct lines x, const struct scales *s, uint32_t group, size_t at, struct digit_row *rows)
{
    const int32_t one = (1 << (bits - 1)) - 1, most = n_digits == 1 ? one : (one << bits) + one;
    vf products[BLOCK][FOLD_MAX / CPU_LANES], lanes[BLOCK];
    float tops[BLOCK];
    vi sums[BLOCK];

    VEC_EACH(i, n_q)
        lanes[i] = fold_row(x.x + i * x.stride, s->scale, n, products[i]);
    reduce_rows(n_q, vf_magnitude4, lanes, tops);
    VEC_EACH(i, n_q) {
        sums[i] = vi_splat(0);
        if (tops[i] > 0x1p-100f && tops[i] < INFINITY)
            sums[i] = split_row(n_digits, bits, products[i], (float)most / tops[i], n, at, &rows[i]);
        else
            VEC_EACH(d, n_digits)
                memset(rows[i].bytes[d] + at, 0, n);
        rows[i].scales[group] = tops[i] * (1.0f / (float)most);
    }
    offset_rows(n_q, n, codes, x, codes->folded && codes->layout.min_at ? s->minimum : NULL, sums, group, rows);
}

/* Sums of rows. */
static void add_up(uint32_t n_q, struct lines x, size_t n, uint32_t group, struct digit_row *rows)
{
    for (uint32_t i = 0; i < n_q; i++) {
        vf sum = vf_splat(0.0f);

        for (size_t k = 0; k < n; k += CPU_LANES)
            sum += vf_load(x.x + i * x.stride + k);
        rows[i].totals[group] = f32x8_sum(vf_to_8(sum));
    }
}

/* Rows of 64 numbers are the most frequent ones. */
VEC_INLINE void round_rows(uint32_t n_q, uint32_t n_digits, size_t n, const struct cpu_codes *codes, struct lines x,
                           const struct scales *s, uint32_t group, size_t at, struct digit_row *rows)
{
    if (n == 64)
        round_group(n_q, n_digits, digit_bits(codes), 64, codes, x, s, group, at, rows);
    else
        round_group(n_q, n_digits, digit_bits(codes), n, codes, x, s, group, at, rows);
}

void cpu_codes_round(const struct cpu_codes *codes, uint32_t n_q, struct lines x, size_t n, const struct scales *s,
                     uint32_t group, size_t at, struct digit_row *rows)
{
    if (digits_of(codes) == 1)
        FOR_QUERIES(n_q, round_rows, 1, n, codes, x, s, group, at, rows);
    else
        FOR_QUERIES(n_q, round_rows, 2, n, codes, x, s, group, at, rows);
    if (!codes->folded && codes->layout.min_at)
        add_up(n_q, x, n, group, rows);
}

void cpu_codes_fold(uint32_t n_q, struct lines x, size_t n, const struct scales *s, struct folded *f, struct products *p)
{
    p->numbers = (struct lines){f->numbers, n};
    p->digits = f->digits;
    if (!p->codes->floats)
        cpu_codes_round(p->codes, n_q, x, n, s, 0, 0, f->digits);
    for (uint32_t i = 0; i < n_q && p->codes->floats; i++)
        for (size_t k = 0; k < n; k += CPU_LANES)
            vf_store(f->numbers + i * n + k, vf_load(x.x + i * x.stride + k) * vf_load(s->scale + k));
}
