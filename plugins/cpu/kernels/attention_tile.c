/* One tile of keys and values against the queries of an item.
 *
 * Keys are widened to F32 and transposed, so that lanes are entries; a score sums over the head's width in order. Values are
 * widened as they lie, so that lanes are columns; sums over entries go in order, and entries that a query does not see are not
 * touched. Queries are taken BLOCK at a time: their sums of four vectors stay in registers. */
#include <math.h>

#include "kernels/attention.h"

/* Queries so few that nothing is gained by loading keys and values first: they are taken as they lie. */
static bool few(const struct item *item)
{
    const struct cpu_plane *k = &item->group->key, *v = &item->group->value;

    return item->n <= BLOCK && k->dtype == SOQ_DTYPE_F16 && v->dtype == SOQ_DTYPE_F16 && k->width % 8 == 0 &&
           v->width % CPU_LANES == 0 && item->group->block_tokens >= ROWS;
}

/* ---- Loads --------------------------------------------------------------------------------------------------------------- */

void cpu_item_load(struct item *item)
{
    const struct soq_attention_args *args = item->args;
    double scale = args->softcap > 0.0f ? args->scale : args->scale * LOG2E;

    for (uint32_t i = 0; i < item->n; i++) {
        uint32_t row = (uint32_t)(item->rows[i] - step_rows(item->step));
        const float *src = cpu_view_row(&args->q, row) + (size_t)cpu_item_head(item, i) * item->dk;
        float *q = item->q + i / BLOCK * item->dk * BLOCK + i % BLOCK;

        for (size_t d = 0; d < item->dk; d++)
            q[d * BLOCK] = (float)(src[d] * scale);
    }
}

static size_t element_bytes(const struct cpu_plane *plane)
{
    return plane->dtype == SOQ_DTYPE_F32 ? 4 : 2;
}

/* An entry's row in a plane; NULL: its block is not there. */
static const uint8_t *row_of(const struct item *item, const struct cpu_plane *plane, uint64_t entry)
{
    uint32_t tokens = item->group->block_tokens;
    const uint8_t *block = cpu_block(item->group, item->seq->slot, (uint32_t)(entry / tokens));

    return block ? block + plane->offset + ((uint64_t)item->args->layer * plane->heads + item->kv_head) * plane->tile_bytes +
                       entry % tokens * plane->width * element_bytes(plane)
                 : NULL;
}

/* The rows of ROWS entries, next to each other: where they are, or copies of those that somebody sees. */
static const uint8_t *rows_of(const struct item *item, const struct cpu_plane *plane, uint64_t entry, uint64_t seen)
{
    uint32_t tokens = item->group->block_tokens;
    size_t bytes = plane->width * element_bytes(plane);

    if (tokens >= ROWS)
        return row_of(item, plane, entry);
    for (uint32_t t = 0; t < ROWS; t++)
        if (seen >> t & 1)
            memcpy(item->lines + t * bytes, row_of(item, plane, entry + t), bytes);
    return item->lines;
}

/* Where the rows of the ROWS entries lie that will be wanted at this place of the next tile; those at hand, if that is not
 * known. */
static const uint8_t *rows_ahead(const struct item *item, const struct cpu_plane *plane, uint32_t t, const uint8_t *rows)
{
    uint64_t entry = item->ahead_at + t;
    const uint8_t *ahead = NULL;

    if (item->ahead && entry < item->ahead->end && item->group->block_tokens >= ROWS)
        ahead = row_of(item->ahead, plane, entry);
    return ahead ? ahead : rows;
}

VEC_INLINE void fetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        vec_prefetch(p + i);
}

/* out[d][TOKENS] = columns of ROWS rows. */
static void transpose_f16(const uint8_t *rows, const uint8_t *ahead, size_t width, float *out)
{
    size_t d = 0;

    for (; d + 8 <= width; d += 8) {
        column16 columns[8];

        column16_load8(rows + d * 2, width * 2, columns);
        fetch(ahead + d * 2 * ROWS, 8 * 2 * ROWS);
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t part = 0; part < ROWS / CPU_LANES; part++)
                vf_store(out + (d + i) * TOKENS + part * CPU_LANES, column16_part(&columns[i], part));
    }
    for (uint32_t t = 0; t < ROWS && d < width; t++) {
        uint16_t rest[8] = {0};
        f32x8 x;

        memcpy(rest, rows + (t * width + d) * 2, (width - d) * 2);
        x = f32x8_from_f16(rest);
        for (size_t i = d; i < width; i++)
            out[i * TOKENS + t] = x[i - d];
    }
}

static void transpose_f32(const uint8_t *rows, size_t width, float *out)
{
    for (size_t d = 0; d < width; d++)
        for (uint32_t t = 0; t < ROWS; t++)
            memcpy(out + d * TOKENS + t, rows + (t * width + d) * sizeof(float), sizeof(float));
}

static void load_keys(struct item *item, uint64_t begin, uint64_t seen)
{
    const struct cpu_plane *plane = &item->group->key;

    for (uint32_t t = 0; t < TOKENS; t += ROWS) {
        const uint8_t *rows;

        if (!(seen >> t & 0xffff))
            continue;
        rows = rows_of(item, plane, begin + t, seen >> t);
        if (plane->dtype == SOQ_DTYPE_F32)
            transpose_f32(rows, plane->width, item->k + t);
        else
            transpose_f16(rows, rows_ahead(item, plane, t, rows), plane->width, item->k + t);
    }
}

static void load_value(const struct cpu_plane *plane, const uint8_t *src, size_t dv, float *out)
{
    size_t whole = plane->width & ~(size_t)7, size = element_bytes(plane);
    uint8_t rest[32] = {0};

    if (size == 4)
        memcpy(out, src, whole * sizeof *out);
    else
        for (size_t d = 0; d < whole; d += 8)
            f32x8_store(out + d, f32x8_from_f16(src + d * 2));
    if (whole == dv)
        return;
    memset(out + whole, 0, (dv - whole) * sizeof *out);
    memcpy(rest, src + whole * size, (plane->width - whole) * size);
    if (whole < plane->width)
        f32x8_store(out + whole, size == 4 ? f32x8_load((const float *)(const void *)rest) : f32x8_from_f16(rest));
}

static void load_values(struct item *item, uint64_t begin, uint64_t seen)
{
    const struct cpu_plane *plane = &item->group->value;
    size_t bytes = plane->width * element_bytes(plane);

    for (uint32_t t = 0; t < TOKENS; t += ROWS) {
        const uint8_t *rows, *ahead;

        if (!(seen >> t & 0xffff))
            continue;
        rows = rows_of(item, plane, begin + t, seen >> t);
        ahead = rows_ahead(item, plane, t, rows);
        for (uint32_t i = 0; i < ROWS; i++) {
            fetch(ahead + i * bytes, bytes);
            if (seen >> (t + i) & 1)
                load_value(plane, rows + i * bytes, item->dv, item->v + (t + i) * item->dv);
        }
    }
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

/* fn(n, ...) for n = n_q as a constant. */
#define FOR_QUERIES(n_q, fn, ...)                                                                                              \
    do {                                                                                                                       \
        switch (n_q) {                                                                                                         \
        case 1:                                                                                                                \
            fn(1, __VA_ARGS__);                                                                                                \
            break;                                                                                                             \
        case 2:                                                                                                                \
            fn(2, __VA_ARGS__);                                                                                                \
            break;                                                                                                             \
        case 3:                                                                                                                \
            fn(3, __VA_ARGS__);                                                                                                \
            break;                                                                                                             \
        case 4:                                                                                                                \
            fn(BLOCK < 4 ? BLOCK : 4, __VA_ARGS__);                                                                            \
            break;                                                                                                             \
        case 5:                                                                                                                \
            fn(BLOCK < 5 ? BLOCK : 5, __VA_ARGS__);                                                                            \
            break;                                                                                                             \
        default:                                                                                                               \
            fn(BLOCK, __VA_ARGS__);                                                                                            \
        }                                                                                                                      \
    } while (0)

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

static void score_few(const struct item *item, const float *q, uint64_t begin, uint64_t seen, float *out)
{
    for (uint32_t t = 0; t < TOKENS; t += ROWS) {
        const uint8_t *rows, *ahead;

        if (!(seen >> t & 0xffff))
            continue;
        rows = row_of(item, &item->group->key, begin + t);
        ahead = rows_ahead(item, &item->group->key, t, rows);
        FOR_QUERIES(item->n, score_rows, q, rows, ahead, item->dk, out + t);
    }
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------- */

/* Lanes of the mask's lowest eight bits. */
VEC_INLINE i32x8 mask_lanes(uint64_t mask)
{
    return -(i32x8_splat((int32_t)(mask & 255)) >> (i32x8){0, 1, 2, 3, 4, 5, 6, 7} & 1);
}

/* The largest lane. */
VEC_INLINE float f32x8_most(f32x8 x)
{
    x = f32x8_max(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3));
    x = f32x8_max(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5));
    x = f32x8_max(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6));
    return x[0];
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

/* Scores -> weights relative to the largest score so far; returns the factor for what was summed before. */
static float weigh(struct item *item, uint32_t i, float *s)
{
    float max, before;
    f32x8 x[TOKENS / 8], most, sum;

    if (item->masks[i] != UINT64_MAX || item->args->softcap > 0.0f)
        cap_and_mask(item->args->softcap, item->masks[i], s);
    for (uint32_t j = 0; j < TOKENS / 8; j++)
        x[j] = f32x8_load(s + j * 8);
    most = f32x8_max(f32x8_max(f32x8_max(x[0], x[1]), f32x8_max(x[2], x[3])),
                     f32x8_max(f32x8_max(x[4], x[5]), f32x8_max(x[6], x[7])));
    max = f32x8_most(f32x8_max(most, f32x8_splat(item->part.max[i])));
    for (uint32_t j = 0; j < TOKENS / 8; j++) {
        x[j] = exp2_of(x[j] - f32x8_splat(max));
        f32x8_store(s + j * 8, x[j]);
    }
    sum = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    before = exp2_of1(item->part.max[i] - max);
    item->part.max[i] = max;
    item->part.total[i] = item->part.total[i] * before + f32x8_sum(sum);
    return before;
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
static void add_rows(const struct item *item, uint32_t n_q, const float *weights, uint64_t begin, uint32_t from, uint32_t to,
                     float *out)
{
    const struct cpu_plane *plane = &item->group->value;

    for (uint32_t t = from, n; t < to; t += n) {
        const uint8_t *v = row_of(item, plane, begin + t), *ahead = rows_ahead(item, plane, t, v);

        n = ROWS - t % ROWS < to - t ? ROWS - t % ROWS : to - t;
        FOR_QUERIES(n_q, add_columns, true, weights + t, n, v, ahead, item->dv, out);
    }
}

/* The end of the run of entries from `from` on that the same ones of the n_q queries see. */
static uint32_t run_end(const uint64_t *masks, uint32_t n_q, uint32_t from)
{
    uint32_t end = TOKENS;

    for (uint32_t i = 0; i < n_q; i++) {
        uint64_t rest = masks[i] >> from, other = rest & 1 ? ~rest : rest;
        uint32_t n = other ? (uint32_t)__builtin_ctzll(other) : TOKENS;

        end = n < end - from ? from + n : end;
    }
    return end;
}

static void add_run(const struct item *item, uint32_t n_q, const float *weights, uint64_t begin, uint32_t from, uint32_t to,
                    float *out)
{
    if (few(item))
        add_rows(item, n_q, weights, begin, from, to, out);
    else
        add_loaded(item, n_q, weights, from, to, out);
}

static void add_seen(const struct item *item, uint32_t first, uint32_t n_q, uint64_t begin, uint64_t any, const float *weights)
{
    const uint64_t *masks = item->masks + first;
    float *out = item->part.out + first * item->dv;

    while (any) {
        uint32_t from = (uint32_t)__builtin_ctzll(any), to = run_end(masks, n_q, from), n = 0;

        for (uint32_t i = 0; i < n_q; i++)
            n += (uint32_t)(masks[i] >> from & 1);
        if (n == n_q)
            add_run(item, n_q, weights, begin, from, to, out);
        for (uint32_t i = 0; i < n_q && n < n_q; i++)
            if (masks[i] >> from & 1)
                add_run(item, 1, weights + i * TOKENS, begin, from, to, out + i * item->dv);
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
static void sum_block(struct item *item, uint32_t first, uint32_t n_q, uint64_t begin, uint64_t any, float *scores)
{
    for (uint32_t i = 0; i < n_q; i++)
        if (item->masks[first + i])
            scale_sums(item->part.out + (first + i) * item->dv, item->dv, weigh(item, first + i, scores + i * TOKENS));
    add_seen(item, first, n_q, begin, any, scores);
}

void cpu_item_sum_tile(struct item *item, const float *q, float *scores, uint64_t begin, uint64_t seen)
{
    if (few(item)) {
        score_few(item, q, begin, seen, scores);
        sum_block(item, 0, item->n, begin, seen, scores);
        return;
    }
    load_keys(item, begin, seen);
    load_values(item, begin, seen);
    for (uint32_t first = 0, n_q; first < item->n; first += n_q) {
        uint64_t any = 0;

        n_q = item->n - first < BLOCK ? item->n - first : BLOCK;
        for (uint32_t i = first; i < first + n_q; i++)
            any |= item->masks[i];
        score_block(n_q, q + first * item->dk, item->k, item->dk, any, scores + first * TOKENS);
        sum_block(item, first, n_q, begin, any, scores + first * TOKENS);
    }
}
