/* Keys and values in plain numbers against the queries of an item, a tile at a time.
 *
 * Of keys lanes are entries; a score sums over the head's width in order. Of values lanes are columns; sums over entries go in
 * order, and entries that a query does not see are not touched. Queries are taken BLOCK at a time: their sums of four vectors
 * stay in registers. */
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
            vf_store(out + i * SPLIT + j * CPU_LANES, acc[i][j]);
}

/* The same against ROWS entries in F16 as they lie; width a multiple of 8. */
VEC_INLINE void score_rows(uint32_t n_q, const float *q, const uint8_t *rows, struct span ahead, size_t dk, float *out)
{
    enum { VECTORS = ROWS / CPU_LANES };
    size_t each = ahead.bytes / (dk / 8);
    vf acc[BLOCK][VECTORS];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < VECTORS; j++)
            acc[i][j] = vf_splat(0.0f);
    for (size_t d = 0; d < dk; d += 8, q += 8 * BLOCK) {
        column16 columns[8];

        column16_load8(rows + d * 2, dk * 2, columns);
        fetch((struct span){ahead.at + d / 8 * each, each});
        for (uint32_t c = 0; c < 8; c++)
            for (uint32_t j = 0; j < VECTORS; j++) {
                vf x = column16_part(&columns[c], j);

                for (uint32_t i = 0; i < n_q; i++)
                    acc[i][j] = vf_madd(vf_splat(q[c * BLOCK + i]), x, acc[i][j]);
            }
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < VECTORS; j++)
            vf_store(out + i * SPLIT + j * CPU_LANES, acc[i][j]);
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
static void score_few(struct item *item, const float *q, uint64_t seen, float *out)
{
    for (uint32_t t = 0; t < TOKENS; t += ROWS)
        if (seen >> t & 0xffff)
            FOR_QUERIES(item->n, score_rows, q, item->places[CPU_KEY][t / ROWS], take_ahead(&item->ahead, ROWS, AHEAD_PLAIN),
                        item->dk, out + t);
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

VEC_INLINE vf value_at(bool half, const uint8_t *v, size_t d)
{
    return half ? vf_from_f16(v + d * 2) : vf_load((const float *)(const void *)v + d);
}

/* out[i][width] += weights[i] . v, n entries in order; width in vectors; v has rows of dv F16 or F32. For each entry
 * ahead.bytes are fetched. */
VEC_INLINE void add(uint32_t n_q, uint32_t width, bool half, const float *weights, uint32_t n, const uint8_t *v, size_t dv,
                    struct span ahead, float *out, size_t out_stride)
{
    size_t bytes = dv * (half ? 2 : 4);
    vf acc[BLOCK][4];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++)
            acc[i][j] = vf_load(out + i * out_stride + j * CPU_LANES);
    for (uint32_t t = 0; t < n; t++) {
        vf x[4];

        for (uint32_t j = 0; j < width; j++)
            x[j] = value_at(half, v + t * bytes, j * CPU_LANES);
        if (half)
            fetch((struct span){ahead.at + t * ahead.bytes, ahead.bytes});
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t j = 0; j < width; j++)
                acc[i][j] = vf_madd(vf_splat(weights[i * SPLIT + t]), x[j], acc[i][j]);
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++)
            vf_store(out + i * out_stride + j * CPU_LANES, acc[i][j]);
}

/* All columns. */
VEC_INLINE void add_columns(uint32_t n_q, bool half, const float *weights, uint32_t n, const uint8_t *v, size_t dv,
                            struct span ahead, float *out, size_t out_stride)
{
    const struct span nothing = {v, 0};
    size_t d = 0, size = half ? 2 : 4;

    for (; d + 4 * CPU_LANES <= dv; d += 4 * CPU_LANES)
        add(n_q, 4, half, weights, n, v + d * size, dv, d ? nothing : ahead, out + d, out_stride);
    for (; d < dv; d += CPU_LANES)
        add(n_q, 1, half, weights, n, v + d * size, dv, d ? nothing : ahead, out + d, out_stride);
}

/* Entries [from, to) of the tile, as they were loaded. */
static void add_loaded(const struct item *item, uint32_t n_q, const float *weights, uint32_t from, uint32_t to, float *out)
{
    const uint8_t *v = (const uint8_t *)(item->v + from * item->dv);

    FOR_QUERIES(n_q, add_columns, false, weights + from, to - from, v, item->dv, (struct span){v, 0}, out, item->out_stride);
}

/* The same, in F16 as they lie. */
static void add_rows(struct item *item, uint32_t n_q, const float *weights, uint32_t from, uint32_t to, float *out)
{
    for (uint32_t t = from, n; t < to; t += n) {
        const uint8_t *rows = item->places[CPU_VALUE][t / ROWS] + t % ROWS * item->dv * 2;
        struct span ahead; /* of each row */

        n = ROWS - t % ROWS < to - t ? ROWS - t % ROWS : to - t;
        ahead = take_ahead(&item->ahead, n, AHEAD_PLAIN);
        ahead.bytes /= n;
        FOR_QUERIES(n_q, add_columns, true, weights + t, n, rows, item->dv, ahead, out, item->out_stride);
    }
}

static void add_run(struct item *item, uint32_t n_q, const float *weights, uint32_t from, uint32_t to, float *out)
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

/* The end of the run of entries from `from` on that the same ones of n_q queries see, and that are taken alike. */
static uint32_t run_end(const struct item *item, uint32_t tile, uint32_t first, uint32_t n_q, uint32_t from)
{
    uint64_t any = borders(item->lying) | borders(item->coded[CPU_VALUE][tile]);

    for (uint32_t i = first; i < first + n_q; i++)
        any |= borders(item->masks[i][tile]);
    any = (any & UINT64_MAX >> 1) >> from;
    return any ? from + (uint32_t)__builtin_ctzll(any) + 1 : TOKENS;
}

/* Those of the tile's entries in `any`, which some of n_q queries see. */
static void add_seen(struct item *item, uint32_t tile, uint32_t first, uint32_t n_q, uint64_t any, const float *weights)
{
    float *out = item->part.out + first * item->out_stride;

    while (any) {
        uint32_t from = (uint32_t)__builtin_ctzll(any), to = run_end(item, tile, first, n_q, from), n = 0;

        for (uint32_t i = first; i < first + n_q; i++)
            n += (uint32_t)(item->masks[i][tile] >> from & 1);
        if (n == n_q)
            add_run(item, n_q, weights, from, to, out);
        for (uint32_t i = 0; i < n_q && n < n_q; i++)
            if (item->masks[first + i][tile] >> from & 1)
                add_run(item, 1, weights + i * SPLIT, from, to, out + i * item->out_stride);
        any = to < TOKENS ? any >> to << to : 0;
    }
}

/* ---- Items --------------------------------------------------------------------------------------------------------------- */

/* The entries of the tile that are not coded and that some of n_q queries see. */
static uint64_t plain_of(const struct item *item, uint32_t side, uint32_t tile, uint32_t first, uint32_t n_q)
{
    uint64_t any = 0;

    for (uint32_t i = first; i < first + n_q; i++)
        any |= item->masks[i][tile];
    return any & ~item->coded[side][tile];
}

void cpu_plain_score(struct item *item, const float *q, uint32_t tile, float *scores)
{
    uint64_t begin = item->at + tile * TOKENS, seen = item->seen[tile] & ~item->coded[CPU_KEY][tile];
    uint64_t lying = few(item) ? cpu_item_places(item, CPU_KEY, begin, seen) : 0;

    cpu_item_load_keys(item, begin, seen & ~lying);
    scores += tile * TOKENS;
    for (uint32_t first = 0, n_q; first < item->n && seen != lying; first += n_q) {
        n_q = item->n - first < BLOCK ? item->n - first : BLOCK;
        score_block(n_q, q + first * item->dk, item->k, item->dk, plain_of(item, CPU_KEY, tile, first, n_q) & ~lying,
                    scores + first * SPLIT);
    }
    if (lying) /* scores of loaded keys come with others beside them */
        score_few(item, q, lying, scores);
}

void cpu_plain_add(struct item *item, uint32_t tile, const float *weights)
{
    uint64_t begin = item->at + tile * TOKENS, seen = item->seen[tile] & ~item->coded[CPU_VALUE][tile];

    item->lying = few(item) ? cpu_item_places(item, CPU_VALUE, begin, seen) : 0;
    cpu_item_load_values(item, begin, seen & ~item->lying);
    weights += tile * TOKENS;
    for (uint32_t first = 0, n_q; first < item->n && seen; first += n_q) {
        n_q = item->n - first < BLOCK ? item->n - first : BLOCK;
        add_seen(item, tile, first, n_q, plain_of(item, CPU_VALUE, tile, first, n_q), weights + first * SPLIT);
    }
}
