/* Scales of packed tiles, and rows that take them up: folded and rounded to digits, or just folded. */
#include <math.h>
#include <stddef.h>

#include "kernels/codes.h"

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

/* Those of n indices from `index` on, and if there are minima, these. */
static void load_numbers(const struct cpu_codes *codes, const struct axis *axis, uint32_t index, uint32_t n, float *scale,
                         float *minimum)
{
    collect_numbers(codes, axis, axis->at, index, n, scale);
    if (codes->layout.min_at)
        collect_numbers(codes, axis, axis->at + codes->layout.min_at, index, n, minimum);
}

/* n numbers are taken from where they lie next to each other, from step `step` of the fold on. */
static void take_numbers(const uint8_t *at, size_t bytes, uint32_t n, uint32_t step, struct fold *fold)
{
    for (uint32_t k = 0; k < n; k += CODES_STEP, at += CODES_STEP * bytes)
        fold->scales[step++] = at;
}

static void take_room(const struct cpu_codes *codes, const struct scale_room *room, struct fold *fold)
{
    fold->type = SOQ_DTYPE_F32;
    fold->minima = codes->layout.min_at ? (ptrdiff_t)offsetof(struct scale_room, minimum) : 0;
    take_numbers((const uint8_t *)room->scale, sizeof(float), fold->n, 0, fold);
}

static void clear_room(struct scale_room *room, uint32_t n)
{
    memset(room->scale, 0, n * sizeof(float));
    memset(room->minimum, 0, n * sizeof(float));
}

void cpu_codes_ones(struct fold *fold)
{
    static const float ones[FOLD_MAX] = {[0 ... FOLD_MAX - 1] = 1.0f};

    fold->type = SOQ_DTYPE_F32;
    fold->minima = 0;
    take_numbers((const uint8_t *)ones, sizeof(float), fold->n, 0, fold);
}

void cpu_codes_entry_scales(const struct cpu_codes *codes, const struct part *parts, uint32_t n_parts, uint32_t dim,
                            struct fold *fold, struct scale_room *room)
{
    size_t offset = (size_t)(dim / codes->group_dims) * codes->layout.token_groups * codes->scale_bytes;
    const struct part *end = parts + n_parts;

    if (codes->group_tokens == 1 && n_parts * parts->n == TOKENS) {
        fold->type = codes->scale_type;
        fold->minima = (ptrdiff_t)codes->layout.min_at;
        for (const struct part *part = parts; part < end; part++)
            take_numbers(part->tile + offset + part->first * codes->scale_bytes, codes->scale_bytes, part->n,
                         part->at % TOKENS / CODES_STEP, fold);
        return;
    }
    clear_room(room, fold->n);
    for (const struct part *part = parts; part < end; part++) {
        struct axis axis = {part->tile + offset, codes->group_tokens, 1};

        load_numbers(codes, &axis, part->first, part->n, room->scale + part->at % TOKENS, room->minimum + part->at % TOKENS);
    }
    take_room(codes, room, fold);
}

/* Those of dims. */
static struct axis dim_axis(const struct cpu_codes *codes, const uint8_t *tile, uint32_t token)
{
    size_t offset = (size_t)(token / codes->group_tokens) * codes->scale_bytes;

    return (struct axis){tile + offset, codes->group_dims, codes->layout.token_groups};
}

void cpu_codes_load_dim_scales(const struct cpu_codes *codes, const uint8_t *tile, uint32_t token, uint32_t width,
                               struct scale_room *room)
{
    struct axis axis = dim_axis(codes, tile, token);

    load_numbers(codes, &axis, 0, width, room->scale, room->minimum);
}

void cpu_codes_dim_scales(const struct cpu_codes *codes, const uint8_t *tile, uint32_t token, uint32_t width, struct fold *fold,
                          struct scale_room *room)
{
    struct axis axis = dim_axis(codes, tile, token);

    if (axis.group == 1 && axis.stride == 1 && width == fold->n) {
        fold->type = codes->scale_type;
        fold->minima = (ptrdiff_t)codes->layout.min_at;
        take_numbers(axis.at, codes->scale_bytes, width, 0, fold);
        return;
    }
    clear_room(room, fold->n);
    load_numbers(codes, &axis, 0, width, room->scale, room->minimum);
    take_room(codes, room, fold);
}

/* ---- Digits -------------------------------------------------------------------------------------------------------------- */

/* Row i of fold f is number f * n_q + i. */
enum { ROWS_MAX = FOLDS * BLOCK };
_Static_assert((int)ROWS_MAX % (int)CPU_LANES == 0 && ROWS_MAX % 4 == 0, "rows are taken in vectors, and four at a time");

/* What the rows of some folds are multiplied by to be digits, and their digits by to be numbers again. */
struct factors {
    float down[ROWS_MAX], up[ROWS_MAX];
};

enum { STEP = CODES_STEP / CPU_LANES /* vectors */ };

/* Numbers of a step. */
VEC_INLINE void load_step(uint32_t dtype, const uint8_t *at, vf out[STEP])
{
    VEC_EACH(j, STEP)
        out[j] = numbers_at(dtype, at, j * CPU_LANES);
}

/* Magnitudes, the largest ones by lanes. */
VEC_INLINE void find_largest(uint32_t n_q, const struct fold *fold, size_t stride, vf *out)
{
    const float *x = fold->x;
    vi most[BLOCK];

    VEC_EACH(i, n_q)
        most[i] = vi_splat(0);
    for (size_t k = 0, n = fold->n; k < n; k += CODES_STEP) {
        vf scale[STEP];

        load_step(fold->type, fold->scales[k / CODES_STEP], scale);
        VEC_EACH(i, n_q)
            VEC_EACH(j, STEP)
                most[i] = vi_max(most[i], (vi)(vf_load(x + i * stride + k + j * CPU_LANES) * scale[j]) & 0x7fffffff);
    }
    VEC_EACH(i, n_q)
        out[i] = (vf)most[i];
}

/* fn() of four rows of lanes at a time; n is a multiple of 4. */
VEC_INLINE void reduce(void fn(vf a, vf b, vf c, vf d, float *out), const vf *rows, uint32_t n, float *out)
{
    for (uint32_t r = 0; r < n; r += 4)
        fn(rows[r], rows[r + 1], rows[r + 2], rows[r + 3], out + r);
}

/* Factors for digits up to `most`: 0 for rows of zeros, and for those with something that is not finite, whose way back is
 * not finite either. */
static void find_factors(const float *tops, uint32_t n, float most, struct factors *f)
{
    for (uint32_t r = 0; r < n; r += CPU_LANES) {
        vf top = vf_load(tops + r);
        vi usable = (top > vf_splat(0x1p-100f)) & (top < vf_splat(INFINITY));

        vf_store(f->down + r, (vf)((vi)(vf_splat(most) / top) & usable));
        vf_store(f->up + r, top * vf_splat(1.0f / most));
    }
}

/* Whole numbers that stand in the low bits of floats as large as 1.5 2^23: the low byte is the low digit, and the byte above,
 * when one half was added, the high one. */
VEC_INLINE void store_digits(uint32_t n_digits, const vi whole[STEP], size_t at, struct digit_row *row)
{
    vi high[STEP];

    if (digits_together(n_digits)) {
        vi_store_halves(row->halves + at, whole);
        return;
    }
    if (n_digits == 2) {
        VEC_EACH(j, STEP)
            high[j] = (vi)((vu)whole[j] + 128) >> 8;
        vi_store_bytes(row->bytes[0] + at, high);
    }
    vi_store_bytes(row->bytes[n_digits - 1] + at, whole);
}

/* Rows times `down` as digits. offsets: what meets codes that are counted from the middle one, and what minima along the rows
 * add, which are moved there; by lanes. */
VEC_INLINE void split_rows(uint32_t n_q, uint32_t n_digits, bool minima, float zero, const struct fold *fold, size_t stride,
                           const float *down, const float *up, vf *offsets)
{
    const size_t n = fold->n, at = fold->at;
    const uint32_t dtype = fold->type;
    const float *x = fold->x;
    struct digit_row *digits = fold->digits;
    vf added[BLOCK];
    vu sums[BLOCK];

    VEC_EACH(i, n_q) {
        added[i] = vf_splat(0.0f);
        sums[i] = (vu)vi_splat(0);
    }
    for (size_t k = 0; k < n; k += CODES_STEP) {
        vf scale[STEP], minimum[STEP];

        load_step(dtype, fold->scales[k / CODES_STEP], scale);
        if (minima) {
            load_step(dtype, fold->scales[k / CODES_STEP] + fold->minima, minimum);
            VEC_EACH(j, STEP)
                minimum[j] = vf_madd(scale[j], vf_splat(zero), minimum[j]);
        }
        VEC_EACH(i, n_q) {
            vi whole[STEP];

            VEC_EACH(j, STEP) {
                vf y = vf_load(x + i * stride + k + j * CPU_LANES);

                whole[j] = (vi)vf_madd(y * scale[j], vf_splat(down[i]), vf_splat(0x1.8p23f));
                if (minima)
                    added[i] = vf_madd(y, minimum[j], added[i]);
                sums[i] += (vu)whole[j];
            }
            store_digits(n_digits, whole, at + k, &digits[i]);
        }
    }
    VEC_EACH(i, n_q)
        offsets[i] =
            vf_madd(vf_from_i32((vi)(sums[i] - (uint32_t)(n / CPU_LANES) * 0x4b400000u)), vf_splat(-zero * up[i]), added[i]);
}

VEC_INLINE void round_folds(uint32_t n_q, uint32_t n_digits, const struct cpu_codes *codes, size_t stride,
                            const struct fold *folds, uint32_t n)
{
    const uint32_t rows = n * n_q, filled = (rows + 3) / 4 * 4;
    const float most = n_digits == 1 ? 127.0f : 32639.0f;            /* 127 * 256 + 127 */
    float zero = (float)codes->passes[0].zero, sums[ROWS_MAX] = {0}; /* those behind the last row are looked at, too */
    struct factors factors;
    vf lanes[ROWS_MAX];

    for (uint32_t r = rows; r < filled; r++)
        lanes[r] = vf_splat(0.0f);
    for (uint32_t f = 0; f < n; f++)
        find_largest(n_q, &folds[f], stride, lanes + f * n_q);
    reduce(vf_magnitude4, lanes, filled, sums);
    find_factors(sums, filled, most, &factors);
    for (uint32_t f = 0, r = 0; f < n; f++, r += n_q) {
        fetch(folds[f].ahead);
        if (folds[f].minima)
            split_rows(n_q, n_digits, true, zero, &folds[f], stride, factors.down + r, factors.up + r, lanes + r);
        else
            split_rows(n_q, n_digits, false, zero, &folds[f], stride, factors.down + r, factors.up + r, lanes + r);
    }
    reduce(vf_sum4, lanes, filled, sums);
    for (uint32_t f = 0; f < n; f++)
        VEC_EACH(i, n_q) {
            folds[f].digits[i].scales[folds[f].group] = factors.up[f * n_q + i];
            folds[f].digits[i].offsets[folds[f].group] = sums[f * n_q + i];
        }
}

/* Sums of rows. */
static void add_up(uint32_t n_q, size_t stride, const struct fold *fold)
{
    for (uint32_t i = 0; i < n_q; i++) {
        vf sum = vf_splat(0.0f);

        for (size_t k = 0; k < fold->n; k += CPU_LANES)
            sum += vf_load(fold->x + i * stride + k);
        fold->digits[i].totals[fold->group] = f32x8_sum(vf_to_8(sum));
    }
}

/* As numbers. */
static void scale_rows(uint32_t n_q, size_t stride, const struct fold *fold)
{
    fetch(fold->ahead);
    for (size_t k = 0; k < fold->n; k += CODES_STEP) {
        vf scale[STEP];

        load_step(fold->type, fold->scales[k / CODES_STEP], scale);
        for (uint32_t i = 0; i < n_q; i++)
            VEC_EACH(j, STEP) {
                size_t at = k + j * CPU_LANES;

                vf_store(fold->numbers + i * FOLD_MAX + fold->at + at, vf_load(fold->x + i * stride + at) * scale[j]);
            }
    }
}

void cpu_codes_fold(const struct cpu_codes *codes, uint32_t n_q, size_t stride, const struct fold *folds, uint32_t n)
{
    if (codes->floats) {
        for (uint32_t i = 0; i < n; i++)
            scale_rows(n_q, stride, &folds[i]);
        return;
    }
    if (digits_of(codes) == 1)
        FOR_QUERIES(n_q, round_folds, 1, codes, stride, folds, n);
    else
        FOR_QUERIES(n_q, round_folds, 2, codes, stride, folds, n);
    for (uint32_t i = 0; i < n && !codes->folded && codes->layout.min_at; i++)
        add_up(n_q, stride, &folds[i]);
}
