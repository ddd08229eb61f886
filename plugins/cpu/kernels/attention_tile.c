/* One tile of keys and values against the queries of an item.
 *
 * Of keys lanes are entries; a score sums over the head's width in order. Of values lanes are columns; sums over entries go in
 * order, and entries that a query does not see are not touched. Queries are taken BLOCK at a time: their sums of four vectors
 * stay in registers. */
#include <math.h>

#include "kernels/attention.h"

/* Queries so few that nothing is gained by loading keys and values in F16 first: they are taken as they lie. */
static bool few(const struct item *item)
{
    return item->n <= BLOCK && item->dk % 8 == 0 && item->args->head_dim_v % CPU_LANES == 0;
}

/* ---- Scores -------------------------------------------------------------------------------------------------------------- */

/* n_q queries against entries that were loaded; width in vectors. */
VEC_INLINE void score(uint32_t n_q, uint32_t width, const float *q, const float *k, size_t dk, float *out)
{
    vf acc[BLOCK][4];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++)
            acc[i][j] = vf_splat(0.0f);
    for (size_t d = 0; d < dk; d++, q += BLOCK, k += TOKENS) {
        vf x[4];

        for (uint32_t j = 0; j < width; j++)
            x[j] = vf_load(k + j * CPU_LANES);
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t j = 0; j < width; j++)
                acc[i][j] = vf_madd(vf_splat(q[i]), x[j], acc[i][j]);
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++)
            vf_store(out + i * TOKENS + j * CPU_LANES, acc[i][j]);
}

/* The same against ROWS entries in F16 as they lie; width a multiple of 8. */
VEC_INLINE void score_rows(uint32_t n_q, const float *q, const uint8_t *rows, const uint8_t *ahead, size_t dk, float *out)
{
    enum { PARTS = ROWS / CPU_LANES };
    vf acc[BLOCK][PARTS];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < PARTS; j++)
            acc[i][j] = vf_splat(0.0f);
    for (size_t d = 0; d < dk; d += 8, q += 8 * BLOCK) {
        column16 columns[8];

        column16_load8(rows + d * 2, dk * 2, columns);
        fetch(ahead + d * 2 * ROWS, 8 * 2 * ROWS);
        for (uint32_t c = 0; c < 8; c++)
            for (uint32_t j = 0; j < PARTS; j++) {
                vf x = column16_part(&columns[c], j);

                for (uint32_t i = 0; i < n_q; i++)
                    acc[i][j] = vf_madd(vf_splat(q[c * BLOCK + i]), x, acc[i][j]);
            }
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < PARTS; j++)
            vf_store(out + i * TOKENS + j * CPU_LANES, acc[i][j]);
}

/* Entries of the tile that are in `any`, at least. */
static void score_block(uint32_t n_q, const float *q, const float *k, size_t dk, uint64_t any, float *out)
{
    for (uint32_t t = 0; t < TOKENS; t += 4 * CPU_LANES) {
        uint64_t here = any >> t & UINT64_MAX >> (TOKENS - 4 * CPU_LANES);

        if (here >> 2 * CPU_LANES)
            FOR_QUERIES(n_q, score, 4, q, k + t, dk, out + t);
        else if (here)
            FOR_QUERIES(n_q, score, 2, q, k + t, dk, out + t);
    }
}

/* Entries in `seen`, in F16 as they lie. */
static void score_few(const struct item *item, const float *q, uint64_t seen, float *out)
{
    for (uint32_t t = 0; t < TOKENS; t += ROWS) {
        const struct place *place = &item->places[CPU_KEY][t / ROWS];

        if (seen >> t & 0xffff)
            FOR_QUERIES(item->n, score_rows, q, place->rows, place->ahead, item->dk, out + t);
    }
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------- */

/* Lanes of the mask's lowest eight bits. */
VEC_INLINE i32x8 mask_lanes(uint64_t mask)
{
    return -(i32x8_splat((int32_t)(mask & 255)) >> (i32x8){0, 1, 2, 3, 4, 5, 6, 7} & 1);
}

/* cap tanh(s / cap), then minus infinity for entries that the query does not see. */
static void cap_and_mask(float cap, uint64_t mask, float *s)
{
    for (uint32_t j = 0; j < TOKENS / 8; j++) {
        f32x8 x = f32x8_load(s + j * 8);

        if (cap > 0.0f)
            x = f32x8_splat((float)(cap * LOG2E)) * f32x8_tanh(x / f32x8_splat(cap));
        f32x8_store(s + j * 8, f32x8_select(mask_lanes(mask >> 8 * j), x, f32x8_splat(-INFINITY)));
    }
}

/* Scores of n_q queries -> weights relative to the largest score so far, zeros where nothing was seen yet; factors: for what
 * was summed before. */
VEC_INLINE void weigh(uint32_t n_q, struct item *item, uint32_t first, float *scores, float factors[BLOCK])
{
    float *max = item->part.max + first, *total = item->part.total + first, tops[BLOCK], sums[BLOCK];
    vf lanes[BLOCK];

    VEC_EACH(i, n_q) {
        lanes[i] = vf_splat(max[i]);
        VEC_EACH(t, TOKENS / CPU_LANES)
            lanes[i] = vf_max(lanes[i], vf_load(scores + i * TOKENS + t * CPU_LANES));
    }
    reduce_rows(n_q, vf_most4, lanes, tops);
    VEC_EACH(i, n_q) {
        float top = tops[i] == -INFINITY ? 0.0f : tops[i];

        lanes[i] = vf_splat(0.0f);
        VEC_EACH(t, TOKENS / CPU_LANES) {
            float *at = scores + i * TOKENS + t * CPU_LANES;
            vf x = exp2_of(vf_load(at) - vf_splat(top));

            vf_store(at, x);
            lanes[i] += x;
        }
        factors[i] = exp2_of1(max[i] - top);
        max[i] = tops[i];
    }
    reduce_rows(n_q, vf_sum4, lanes, sums);
    VEC_EACH(i, n_q)
        total[i] = total[i] * factors[i] + sums[i];
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

VEC_INLINE vf value_at(bool half, const uint8_t *v, size_t d)
{
    return half ? vf_from_f16(v + d * 2) : vf_load((const float *)(const void *)v + d);
}

/* out[i][width] += weights[i] . v, n entries in order; width in vectors; v has rows of dv F16 or F32. */
VEC_INLINE void add(uint32_t n_q, uint32_t width, bool half, const float *weights, uint32_t n, const uint8_t *v,
                    const uint8_t *ahead, size_t dv, float *out)
{
    size_t bytes = dv * (half ? 2 : 4);
    vf acc[BLOCK][4];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++)
            acc[i][j] = vf_load(out + i * dv + j * CPU_LANES);
    for (uint32_t t = 0; t < n; t++) {
        vf x[4];

        for (uint32_t j = 0; j < width; j++)
            x[j] = value_at(half, v + t * bytes, j * CPU_LANES);
        if (half)
            fetch(ahead + t * bytes, width * CPU_LANES * 2);
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t j = 0; j < width; j++)
                acc[i][j] = vf_madd(vf_splat(weights[i * TOKENS + t]), x[j], acc[i][j]);
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++)
            vf_store(out + i * dv + j * CPU_LANES, acc[i][j]);
}

/* All columns. */
VEC_INLINE void add_columns(uint32_t n_q, bool half, const float *weights, uint32_t n, const uint8_t *v, const uint8_t *ahead,
                            size_t dv, float *out)
{
    size_t d = 0, size = half ? 2 : 4;

    for (; d + 4 * CPU_LANES <= dv; d += 4 * CPU_LANES)
        add(n_q, 4, half, weights, n, v + d * size, ahead + d * size, dv, out + d);
    for (; d < dv; d += CPU_LANES)
        add(n_q, 1, half, weights, n, v + d * size, ahead + d * size, dv, out + d);
}

/* Entries [from, to) of the tile, as they were loaded. */
static void add_loaded(const struct item *item, uint32_t n_q, const float *weights, uint32_t from, uint32_t to, float *out)
{
    const uint8_t *v = (const uint8_t *)(item->v + from * item->dv);

    FOR_QUERIES(n_q, add_columns, false, weights + from, to - from, v, v, item->dv, out);
}

/* The same, in F16 as they lie. */
static void add_rows(const struct item *item, uint32_t n_q, const float *weights, uint32_t from, uint32_t to, float *out)
{
    for (uint32_t t = from, n; t < to; t += n) {
        const struct place *place = &item->places[CPU_VALUE][t / ROWS];
        size_t skip = t % ROWS * item->dv * 2;

        n = ROWS - t % ROWS < to - t ? ROWS - t % ROWS : to - t;
        FOR_QUERIES(n_q, add_columns, true, weights + t, n, place->rows + skip, place->ahead + skip, item->dv, out);
    }
}

static void add_run(const struct item *item, uint32_t n_q, const float *weights, uint32_t from, uint32_t to, float *out)
{
    if (item->lying >> from & 1)
        add_rows(item, n_q, weights, from, to, out);
    else
        add_loaded(item, n_q, weights, from, to, out);
}

/* Bit t: entries t and t + 1 are taken alike. */
static uint64_t borders(uint64_t bits)
{
    return bits ^ bits >> 1;
}

/* The end of the run of entries from `from` on that the same ones of the n_q queries see, and that are taken alike. */
static uint32_t run_end(const struct item *item, const uint64_t *masks, uint32_t n_q, uint32_t from)
{
    uint64_t any = borders(item->lying);

    for (uint32_t i = 0; i < n_q; i++)
        any |= borders(masks[i]);
    any = (any & UINT64_MAX >> 1) >> from;
    return any ? from + (uint32_t)__builtin_ctzll(any) + 1 : TOKENS;
}

static void add_seen(const struct item *item, uint32_t first, uint32_t n_q, uint64_t any, const float *weights)
{
    const uint64_t *masks = item->masks + first;
    float *out = item->part.out + first * item->dv;

    while (any) {
        uint32_t from = (uint32_t)__builtin_ctzll(any), to = run_end(item, masks, n_q, from), n = 0;

        for (uint32_t i = 0; i < n_q; i++)
            n += (uint32_t)(masks[i] >> from & 1);
        if (n == n_q)
            add_run(item, n_q, weights, from, to, out);
        for (uint32_t i = 0; i < n_q && n < n_q; i++)
            if (masks[i] >> from & 1)
                add_run(item, 1, weights + i * TOKENS, from, to, out + i * item->dv);
        any = to < TOKENS ? any >> to << to : 0;
    }
}

/* ---- A tile -------------------------------------------------------------------------------------------------------------- */

static void scale_sums(float *out, size_t dv, float factor)
{
    for (size_t d = 0; d < dv && factor < 1.0f; d += 8)
        f32x8_store(out + d, f32x8_load(out + d) * f32x8_splat(factor));
}

/* Queries of a block, whose scores are there. */
static void sum_block(struct item *item, uint32_t first, uint32_t n_q, uint64_t any, float *scores)
{
    float factors[BLOCK];

    for (uint32_t i = 0; i < n_q; i++)
        if (item->masks[first + i] != UINT64_MAX || item->args->softcap > 0.0f)
            cap_and_mask(item->args->softcap, item->masks[first + i], scores + i * TOKENS);
    FOR_QUERIES(n_q, weigh, item, first, scores, factors);
    for (uint32_t i = 0; i < n_q; i++) {
        scale_sums(item->part.out + (first + i) * item->dv, item->dv, factors[i]);
        if (item->part.coded != item->part.out)
            scale_sums(item->part.coded + (first + i) * item->dv, item->dv, factors[i]);
    }
    add_seen(item, first, n_q, any & ~item->coded[CPU_VALUE], scores);
    if (item->coded[CPU_VALUE])
        cpu_codes_add(item, first, n_q, scores);
}

void cpu_item_sum_tile(struct item *item, const float *q, float *scores, uint64_t begin, uint64_t seen)
{
    uint64_t keys, values, lying;

    cpu_codes_begin(item, begin, seen);
    keys = seen & ~item->coded[CPU_KEY];
    values = seen & ~item->coded[CPU_VALUE];
    lying = few(item) ? cpu_item_places(item, CPU_KEY, begin, keys) : 0;
    item->lying = few(item) ? cpu_item_places(item, CPU_VALUE, begin, values) : 0;
    cpu_item_load_keys(item, begin, keys & ~lying);
    cpu_item_load_values(item, begin, values & ~item->lying);
    for (uint32_t first = 0, n_q; first < item->n; first += n_q) {
        float *out = scores + first * TOKENS;
        uint64_t any = 0;

        n_q = item->n - first < BLOCK ? item->n - first : BLOCK;
        for (uint32_t i = first; i < first + n_q; i++)
            any |= item->masks[i];
        score_block(n_q, q + first * item->dk, item->k, item->dk, any & keys & ~lying, out);
        if (lying)
            score_few(item, q, lying, out);
        if (item->coded[CPU_KEY])
            cpu_codes_score(item, q, first, n_q, out);
        sum_block(item, first, n_q, any, out);
    }
}
