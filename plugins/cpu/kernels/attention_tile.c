/* One tile of keys and values against the queries of an item.
 *
 * Keys are widened to F32 and transposed, so that lanes are entries; a score sums over the head's width in order. Values are
 * widened as they lie, so that lanes are columns; sums over entries go in order, and entries that a query does not see are not
 * touched. Queries are taken BLOCK at a time: their sums of four vectors stay in registers. */
#include <math.h>

#include "kernels/attention.h"

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

/* Asks for 16 entries from t on of the tile that comes next. */
static void fetch_ahead(const struct item *item, const struct cpu_plane *plane, uint32_t t)
{
    uint64_t entry = item->ahead_at + t;
    uint32_t n = item->group->block_tokens < 16 ? item->group->block_tokens : 16;
    const uint8_t *row = item->ahead && entry < item->ahead->end ? row_of(item->ahead, plane, entry) : NULL;

    for (size_t i = 0; row && i < n * plane->width * element_bytes(plane); i += 64)
        vec_prefetch(row + i);
}

/* Where the tile's entries lie. Those that nobody sees lie where one lies that is seen. */
static void find_rows(const struct item *item, const struct cpu_plane *plane, uint64_t begin, uint64_t seen,
                      const uint8_t *rows[TOKENS])
{
    uint32_t n = item->group->block_tokens < TOKENS ? item->group->block_tokens : TOKENS;
    size_t bytes = plane->width * element_bytes(plane);
    const uint8_t *some = NULL;

    for (uint32_t t = 0; t < TOKENS; t += n) {
        uint64_t here = seen >> t & UINT64_MAX >> (TOKENS - n);
        const uint8_t *row = NULL;

        if (here) {
            row = row_of(item, plane, begin + t);
            some = row + (uint32_t)__builtin_ctzll(here) * bytes;
        }
        for (uint32_t i = 0; i < n; i++)
            rows[t + i] = here >> i & 1 ? row + i * bytes : NULL;
    }
    for (uint32_t t = 0; t < TOKENS; t++)
        rows[t] = rows[t] ? rows[t] : some;
}

static void transpose_f32(const uint8_t *const *rows, size_t first, size_t last, float *out)
{
    for (size_t d = first; d < last; d++)
        for (uint32_t t = 0; t < 16; t++)
            memcpy(out + d * TOKENS + t, rows[t] + d * sizeof(float), sizeof(float));
}

static void transpose_f16(const uint8_t *const *rows, size_t width, float *out)
{
    size_t whole = width / 8 * 8;

    for (size_t d = 0; d < whole; d += 8)
        f16x8_transpose16(rows, d * 2, out + d * TOKENS, TOKENS);
    for (uint32_t t = 0; t < 16 && whole < width; t++) {
        uint16_t rest[8] = {0};
        f32x8 x;

        memcpy(rest, rows[t] + whole * 2, (width - whole) * 2);
        x = f32x8_from_f16(rest);
        for (size_t d = whole; d < width; d++)
            out[d * TOKENS + t] = x[d - whole];
    }
}

static void load_keys(struct item *item, uint64_t begin, uint64_t seen)
{
    const uint8_t *rows[TOKENS];

    find_rows(item, &item->group->key, begin, seen, rows);
    for (uint32_t t = 0; t < TOKENS; t += 16) {
        fetch_ahead(item, &item->group->key, t);
        if (!(seen >> t & 0xffff))
            continue;
        if (item->group->key.dtype == SOQ_DTYPE_F32)
            transpose_f32(rows + t, 0, item->dk, item->k + t);
        else
            transpose_f16(rows + t, item->dk, item->k + t);
    }
}

static void load_value(const struct cpu_plane *plane, const uint8_t *src, float *out)
{
    uint32_t whole = plane->width & ~7u, size = plane->dtype == SOQ_DTYPE_F32 ? 4 : 2;
    uint8_t rest[32] = {0};

    if (size == 4)
        memcpy(out, src, whole * sizeof *out);
    else
        for (uint32_t d = 0; d < whole; d += 8)
            f32x8_store(out + d, f32x8_from_f16(src + d * 2));
    if (whole == plane->width)
        return;
    memcpy(rest, src + whole * size, (plane->width - whole) * size);
    f32x8_store(out + whole, size == 4 ? f32x8_load((const float *)(const void *)rest) : f32x8_from_f16(rest));
}

static void load_values(struct item *item, uint64_t begin, uint64_t seen)
{
    const uint8_t *rows[TOKENS];

    find_rows(item, &item->group->value, begin, seen, rows);
    for (uint32_t t = 0; t < TOKENS; t++) {
        if (t % 16 == 0)
            fetch_ahead(item, &item->group->value, t);
        if (seen >> t & 1)
            load_value(&item->group->value, rows[t], item->v + t * item->dv);
    }
}

/* ---- Scores -------------------------------------------------------------------------------------------------------------- */

/* n_q queries against 32 entries. */
VEC_INLINE void score(uint32_t n_q, const float *q, const float *k, size_t dk, float *out)
{
    f32x8 acc[BLOCK][4];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < 4; j++)
            acc[i][j] = f32x8_splat(0.0f);
    for (size_t d = 0; d < dk; d++, q += BLOCK, k += TOKENS) {
        f32x8 x[4] = {f32x8_load(k), f32x8_load(k + 8), f32x8_load(k + 16), f32x8_load(k + 24)};

        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t j = 0; j < 4; j++)
                acc[i][j] = f32x8_madd(f32x8_splat(q[i]), x[j], acc[i][j]);
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < 4; j++)
            f32x8_store(out + i * TOKENS + j * 8, acc[i][j]);
}

static void score_block(uint32_t n_q, const float *q, const float *k, size_t dk, float *out)
{
    switch (n_q) {
    case 1:
        score(1, q, k, dk, out);
        break;
    case 2:
        score(2, q, k, dk, out);
        break;
    case 3:
        score(3, q, k, dk, out);
        break;
    case 4:
        score(BLOCK < 4 ? BLOCK : 4, q, k, dk, out);
        break;
    case 5:
        score(BLOCK < 5 ? BLOCK : 5, q, k, dk, out);
        break;
    default:
        score(BLOCK, q, k, dk, out);
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
    x = f32x8_max(x, __builtin_shuffle(x, (i32x8){4, 5, 6, 7, 0, 1, 2, 3}));
    x = f32x8_max(x, __builtin_shuffle(x, (i32x8){2, 3, 0, 1, 6, 7, 4, 5}));
    x = f32x8_max(x, __builtin_shuffle(x, (i32x8){1, 0, 3, 2, 5, 4, 7, 6}));
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

/* out[i][width] += weights[i] . v, entries [from, to) in order; width in vectors. */
VEC_INLINE void add(uint32_t n_q, uint32_t width, const float *weights, uint32_t from, uint32_t to, const float *v, size_t dv,
                    float *out)
{
    f32x8 acc[BLOCK][4];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++)
            acc[i][j] = f32x8_load(out + i * dv + j * 8);
    for (uint32_t t = from; t < to; t++) {
        f32x8 x[4];

        for (uint32_t j = 0; j < width; j++)
            x[j] = f32x8_load(v + t * dv + j * 8);
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t j = 0; j < width; j++)
                acc[i][j] = f32x8_madd(f32x8_splat(weights[i * TOKENS + t]), x[j], acc[i][j]);
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++)
            f32x8_store(out + i * dv + j * 8, acc[i][j]);
}

/* All columns. */
VEC_INLINE void add_columns(uint32_t n_q, const float *weights, uint32_t from, uint32_t to, const float *v, size_t dv,
                            float *out)
{
    size_t d = 0;

    for (; d + 32 <= dv; d += 32)
        add(n_q, 4, weights, from, to, v + d, dv, out + d);
    for (; d < dv; d += 8)
        add(n_q, 1, weights, from, to, v + d, dv, out + d);
}

static void add_block(uint32_t n_q, const float *weights, uint32_t from, uint32_t to, const float *v, size_t dv, float *out)
{
    switch (n_q) {
    case 1:
        add_columns(1, weights, from, to, v, dv, out);
        break;
    case 2:
        add_columns(2, weights, from, to, v, dv, out);
        break;
    case 3:
        add_columns(3, weights, from, to, v, dv, out);
        break;
    case 4:
        add_columns(BLOCK < 4 ? BLOCK : 4, weights, from, to, v, dv, out);
        break;
    case 5:
        add_columns(BLOCK < 5 ? BLOCK : 5, weights, from, to, v, dv, out);
        break;
    default:
        add_columns(BLOCK, weights, from, to, v, dv, out);
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

static void add_seen(const struct item *item, uint32_t first, uint32_t n_q, uint64_t any, const float *weights)
{
    const uint64_t *masks = item->masks + first;
    float *out = item->part.out + first * item->dv;

    while (any) {
        uint32_t from = (uint32_t)__builtin_ctzll(any), to = run_end(masks, n_q, from), n = 0;

        for (uint32_t i = 0; i < n_q; i++)
            n += masks[i] >> from & 1;
        if (n == n_q)
            add_block(n_q, weights, from, to, item->v, item->dv, out);
        for (uint32_t i = 0; i < n_q && n < n_q; i++)
            if (masks[i] >> from & 1)
                add_block(1, weights + i * TOKENS, from, to, item->v, item->dv, out + i * item->dv);
        any = to < TOKENS ? any >> to << to : 0;
    }
}

/* ---- A tile -------------------------------------------------------------------------------------------------------------- */

static void scale_sums(float *out, size_t dv, float factor)
{
    for (size_t d = 0; d < dv && factor < 1.0f; d += 8)
        f32x8_store(out + d, f32x8_load(out + d) * f32x8_splat(factor));
}

static void sum_block(struct item *item, uint32_t first, uint32_t n_q, const float *q, float *scores)
{
    uint64_t any = 0;

    for (uint32_t i = first; i < first + n_q; i++)
        any |= item->masks[i];
    for (uint32_t t = 0; t < TOKENS; t += 32)
        if (any >> t & UINT32_MAX)
            score_block(n_q, q, item->k + t, item->dk, scores + t);
    for (uint32_t i = 0; i < n_q; i++)
        if (item->masks[first + i])
            scale_sums(item->part.out + (first + i) * item->dv, item->dv, weigh(item, first + i, scores + i * TOKENS));
    add_seen(item, first, n_q, any, scores);
}

void cpu_item_sum_tile(struct item *item, const float *q, float *scores, uint64_t begin, uint64_t seen)
{
    load_keys(item, begin, seen);
    load_values(item, begin, seen);
    for (uint32_t i = 0; i < item->n; i += BLOCK)
        sum_block(item, i, item->n - i < BLOCK ? item->n - i : BLOCK, q + i * item->dk, scores + i * TOKENS);
}
