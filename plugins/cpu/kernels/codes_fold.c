/* Scales of packed tiles, and rows that take them up: folded and rounded to digits, or just folded. */
#include <math.h>

#include "kernels/codes.h"

const struct scales cpu_codes_ones = {.scale = {[0 ... FOLD_MAX - 1] = 1.0f}, .minimum = {[0 ... FOLD_MAX - 1] = 1.0f}};

/* ---- Scales -------------------------------------------------------------------------------------------------------------- */

/* n numbers from `index` on along an axis, where `group` neighbours share one and these lie `stride` apart. */
static void load_numbers(uint32_t dtype, const uint8_t *at, uint32_t index, uint32_t n, uint32_t group, uint32_t stride,
                         float *out)
{
    size_t size = cpu_number_bytes(dtype);
    uint8_t gathered[FOLD_MAX * sizeof(float)];

    if (group == 1 && stride == 1) {
        uint32_t i = 0;

        for (; i + CPU_LANES <= n; i += CPU_LANES)
            vf_store(out + i, numbers_at(dtype, at, index + i));
        if (i < n)
            cpu_widen(dtype, at + (index + i) * size, n - i, out + i);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        memcpy(gathered + i * size, at + (size_t)((index + i) / group) * stride * size, size);
    cpu_widen(dtype, gathered, n, out);
}

void cpu_codes_centre(const struct cpu_codes *codes, size_t n, struct scales *s)
{
    vf zero = vf_splat((float)codes->passes[0].zero);

    for (size_t i = 0; i < n && codes->layout.min_at; i += CPU_LANES)
        vf_store(s->minimum + i, vf_madd(vf_load(s->scale + i), zero, vf_load(s->minimum + i)));
}

void cpu_codes_entry_scales(const struct cpu_codes *codes, const struct part *parts, uint32_t n_parts, uint32_t dim,
                            struct scales *s)
{
    size_t offset = (size_t)(dim / codes->group_dims) * codes->layout.token_groups * cpu_number_bytes(codes->scale_type);
    uint32_t n = 0;

    for (const struct part *part = parts; part < parts + n_parts; n += part++->n) {
        const uint8_t *at = part->tile + offset;

        load_numbers(codes->scale_type, at, part->first, part->n, codes->group_tokens, 1, s->scale + n);
        if (codes->layout.min_at)
            load_numbers(codes->scale_type, at + codes->layout.min_at, part->first, part->n, codes->group_tokens, 1,
                         s->minimum + n);
    }
    cpu_codes_centre(codes, n, s);
}

void cpu_codes_dim_scales(const struct cpu_codes *codes, const uint8_t *tile, uint32_t token, uint32_t width, struct scales *s)
{
    const uint8_t *at = tile + token / codes->group_tokens * cpu_number_bytes(codes->scale_type);
    uint32_t stride = codes->layout.token_groups;

    load_numbers(codes->scale_type, at, 0, width, codes->group_dims, stride, s->scale);
    if (codes->layout.min_at)
        load_numbers(codes->scale_type, at + codes->layout.min_at, 0, width, codes->group_dims, stride, s->minimum);
    for (size_t i = width; i < steps(width); i++)
        s->scale[i] = s->minimum[i] = 0.0f;
}

/* ---- Digits -------------------------------------------------------------------------------------------------------------- */

/* The largest magnitude of n numbers x times fold, which go to product: its bits, which are ordered as it is. */
VEC_INLINE int32_t fold_row(const float *x, const float *fold, size_t n, float *product)
{
    vi most = vi_splat(0);

    for (size_t k = 0; k < n; k += CPU_LANES) {
        vf v = vf_load(x + k) * vf_load(fold + k);

        vf_store(product + k, v);
        most = vi_max(most, (vi)v & 0x7fffffff);
    }
    return vi_largest(most);
}

/* Numbers times `factor`, which fit into their digits; returns the sum of the whole numbers. In a float as large as 1.5 2^23
 * whole numbers stand in the low bits: of these the low byte is the low digit, and the byte above, when one half was added, the
 * high one. Digits of seven bits are moved there. */
VEC_INLINE int32_t split_row(uint32_t bits, const float *product, float factor, size_t n, int8_t *digits, size_t row_bytes)
{
    const int32_t up = 32 - (int32_t)bits;
    vi sum = vi_splat(0), base = vi_splat(0x4b400000), half = vi_splat(1 << (bits - 1));

    for (size_t k = 0; k < n; k += CPU_LANES) {
        vi whole = (vi)vf_madd(vf_load(product + k), vf_splat(factor), vf_splat(0x1.8p23f)) - base;

        sum += whole;
        vi_store_i8(digits + k, (whole + half) >> (int32_t)bits);
        vi_store_i8(digits + row_bytes + k, bits == 8 ? whole : whole << up >> up);
    }
    return vi_sum(sum);
}

/* Row i of n numbers, times their scales, to digits of group `group`, which begin at `at` in it. */
VEC_INLINE void round_row(uint32_t bits, size_t n, const float *x, const struct scales *s, size_t i, size_t group, size_t at,
                          struct digits *d)
{
    const int32_t one = (1 << (bits - 1)) - 1, most = (one << bits) + one;
    float product[FOLD_MAX], top;
    int32_t top_bits = fold_row(x, s->scale, n, product), sum = 0;
    int8_t *digits = d->bytes + i * DIGITS * d->row_bytes + at;

    memcpy(&top, &top_bits, sizeof top);
    if (top > 0x1p-100f && top < INFINITY)
        sum = split_row(bits, product, (float)most / top, n, digits, d->row_bytes);
    else
        for (uint32_t k = 0; k < DIGITS; k++)
            memset(digits + k * d->row_bytes, 0, n);
    d->scales[i * d->groups + group] = top * (1.0f / (float)most);
    d->sums[i * d->groups + group] = sum;
}

/* out[i]: the sum of row i times y; four rows at a time, where there are fewer the first one again. */
static void product_sums(uint32_t n_q, struct lines x, const float *y, size_t n, float *out)
{
    for (uint32_t first = 0; first < n_q; first += 4) {
        f32x8 sums[4];
        float four[4];

        for (uint32_t i = 0; i < 4; i++) {
            const float *row = x.x + (first + i < n_q ? first + i : first) * x.stride;
            vf sum = vf_splat(0.0f);

            for (size_t k = 0; k < n; k += CPU_LANES)
                sum = vf_madd(vf_load(row + k), vf_load(y + k), sum);
            sums[i] = vf_to_8(sum);
        }
        f32x8_sum4(sums[0], sums[1], sums[2], sums[3], four);
        for (uint32_t i = first; i < n_q && i < first + 4; i++)
            out[i] = four[i - first];
    }
}

void cpu_codes_round(const struct cpu_codes *codes, const float *x, size_t n, size_t i, size_t group, size_t at,
                     struct digits *d)
{
    round_row(digit_bits(codes), n, x, &cpu_codes_ones, i, group, at, d);
    d->totals[i * d->groups + group] = 0.0f;
    if (codes->layout.min_at)
        product_sums(1, (struct lines){x, 0}, cpu_codes_ones.minimum, n, &d->totals[i * d->groups + group]);
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

VEC_INLINE void round_rows(uint32_t bits, size_t n, uint32_t n_q, struct lines x, const struct scales *s, struct digits *d)
{
    for (uint32_t i = 0; i < n_q; i++)
        round_row(bits, n, x.x + i * x.stride, s, i, 0, 0, d);
}

/* Rows of 64 numbers are the most frequent ones. */
void cpu_codes_fold(uint32_t n_q, struct lines x, size_t n, const struct scales *s, struct folded *f, struct products *p)
{
    const struct cpu_codes *codes = p->codes;

    p->numbers = (struct lines){f->numbers, n};
    p->digits = (struct digits){f->bytes, n, f->scales, f->sums, f->totals, 1};
    if (codes->floats)
        for (uint32_t i = 0; i < n_q; i++)
            fold_row(x.x + i * x.stride, s->scale, n, f->numbers + i * n);
    else if (n == 64 && digit_bits(codes) == 8)
        round_rows(8, 64, n_q, x, s, &p->digits);
    else
        round_rows(digit_bits(codes), n, n_q, x, s, &p->digits);
    memset(f->totals, 0, sizeof f->totals);
    if (codes->layout.min_at)
        product_sums(n_q, x, s->minimum, n, f->totals);
}
