/* Packed keys and values that are computed on as they are: scores and sums of a tile of entries, part by part (kernels/codes.h
 * says how). */
#include "kernels/codes.h"

static const struct cpu_plane *packed_plane(const struct item *item, uint32_t side)
{
    return &item->group->classes[CPU_PACKED].planes[side];
}

/* Indices from `at` on that are of one group, at most to `end`. */
static uint32_t in_group(uint32_t at, uint32_t end, uint32_t group)
{
    uint32_t next = (at / group + 1) * group;

    return (next < end ? next : end) - at;
}

/* ---- Parts --------------------------------------------------------------------------------------------------------------- */

/* The packed block with an entry; NULL: it is none. */
static inline const uint8_t *packed_block(const struct item *item, uint64_t entry)
{
    uint32_t index = (uint32_t)(entry >> __builtin_ctz(item->group->block_tokens)); /* a power of two */
    soq_block_ref ref = cpu_block_ref(item->group, item->seq->slot, index);

    return ref >> SOQ_BLOCK_CLASS_SHIFT == CPU_PACKED ? cpu_block_at(item->group, ref) : NULL;
}

/* The packed blocks of the tile of entries at `begin`, n entries each, and those that will be wanted next in their places. */
struct blocks {
    uint64_t begin;
    uint32_t n;
    const uint8_t *now[PARTS], *ahead[PARTS]; /* NULL: none, or not known */
};

static void find_blocks(const struct item *item, uint64_t seen, struct blocks *b)
{
    const struct item *next = item->ahead;

    for (uint32_t t = 0, i = 0; t < TOKENS; t += b->n, i++) {
        bool known = next && item->ahead_at + t < next->end && item->group->block_tokens <= TOKENS;

        b->now[i] = seen >> t & UINT64_MAX >> (TOKENS - b->n) ? packed_block(item, b->begin + t) : NULL;
        b->ahead[i] = known ? packed_block(next, item->ahead_at + t) : NULL;
    }
}

/* A side's tiles in them are parts of the tile of entries. */
static void add_parts(struct item *item, uint32_t side, const struct blocks *b)
{
    const struct cpu_plane *plane = packed_plane(item, side);
    const struct item *next = item->ahead ? item->ahead : item;
    const struct kvtile *layout = &plane->codes.layout;
    uint64_t here = cpu_tile_at(plane, item->args->layer, item->kv_head);
    uint64_t there = cpu_tile_at(plane, next->args->layer, next->kv_head);
    uint32_t first = (uint32_t)b->begin & (item->group->block_tokens - 1); /* 0, but in blocks of more than a tile */
    struct part *part = item->parts[side];

    for (uint32_t t = 0, i = 0; t < TOKENS; t += b->n, i++) {
        if (!b->now[i])
            continue;
        part->tile = b->now[i] + here;
        part->ahead = b->ahead[i] ? b->ahead[i] + there - part->tile : 0;
        part->at = t;
        part->first = first;
        part->n = b->n;
        part->quad = side == CPU_KEY ? 0 : first / 4;
        part->n_quads = side == CPU_KEY ? kvtile_ceil(layout->inner, 4) : b->n / 4;
        fetch(part->tile + part->ahead, layout->planes[0].at);
        item->coded[side] |= UINT64_MAX >> (TOKENS - b->n) << t;
        part++;
    }
    item->n_parts[side] = (uint32_t)(part - item->parts[side]);
}

void cpu_codes_begin(struct item *item, uint64_t begin, uint64_t seen)
{
    uint32_t tokens = item->group->block_tokens; /* a power of two */
    struct blocks b = {.begin = begin, .n = tokens < TOKENS ? tokens : TOKENS};

    item->coded[CPU_KEY] = item->coded[CPU_VALUE] = 0;
    item->n_parts[CPU_KEY] = item->n_parts[CPU_VALUE] = 0;
    if (!packed_plane(item, CPU_KEY)->codes.usable && !packed_plane(item, CPU_VALUE)->codes.usable)
        return;
    find_blocks(item, seen, &b);
    for (uint32_t side = 0; side < CPU_SIDES; side++)
        if (packed_plane(item, side)->codes.usable)
            add_parts(item, side, &b);
}

/* ---- Folding ------------------------------------------------------------------------------------------------------------- */

enum { AHEAD = 2 };

/* What is folded waits for its scales, largest numbers and quotients one after the other: so some products are folded before
 * the first of them is taken. */
struct folding {
    struct products p[AHEAD];
    struct part part[AHEAD]; /* of a product's own */
    struct scales s[AHEAD];
    struct folded f[AHEAD];
    uint32_t n;
};

static void multiply_folded(struct folding *w, uint32_t n_q)
{
    for (uint32_t i = 0; i < w->n; i++)
        cpu_codes_multiply(&w->p[i], n_q);
    w->n = 0;
}

/* n_q rows of n numbers take up scales, for the next product. */
static void fold(struct folding *w, uint32_t n_q, struct lines rows, size_t n, const struct scales *s)
{
    cpu_codes_fold(n_q, rows, n, s, &w->f[w->n], &w->p[w->n]);
    if (++w->n == AHEAD)
        multiply_folded(w, n_q);
}

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

/* A scale for each dim: queries take them up, anew for each group of entries. */
static void score_folded(const struct cpu_codes *codes, const struct part *part, uint32_t n_q, struct lines q, float *scores,
                         struct folding *w)
{
    uint32_t dims = codes->layout.inner, end = part->first + part->n;

    for (uint32_t at = part->first, n; at < end; at += n) {
        n = in_group(at, end, codes->group_tokens);
        w->p[w->n] = (struct products){.codes = codes,
                                       .parts = part,
                                       .n_parts = 1,
                                       .outer = at,
                                       .n_lanes = n,
                                       .out = scores + part->at + at - part->first,
                                       .out_stride = TOKENS};
        cpu_codes_dim_scales(codes, part->tile, at, dims, (float)codes->passes[0].zero, &w->s[w->n]);
        fold(w, n_q, q, steps(dims), &w->s[w->n]);
    }
}

/* A scale for each entry and group of dims; the queries' digits are there, from query `first` on. */
static void score_by_entry(const struct cpu_codes *codes, const struct part *part, uint32_t first, uint32_t n_q, struct lines q,
                           const struct digit_row *digits, float *scores)
{
    const uint8_t *scales = part->tile + part->first * codes->scale_bytes;
    struct products p = {.codes = codes,
                         .parts = part,
                         .n_parts = 1,
                         .outer = part->first,
                         .n_lanes = part->n,
                         .group_quads = (codes->group_dims + 3) / 4,
                         .numbers = q,
                         .digits = digits + first,
                         .lane_scales = scales,
                         .lane_minima = codes->layout.min_at ? scales + codes->layout.min_at : NULL,
                         .lane_stride = codes->layout.outer * codes->scale_bytes,
                         .lane_type = codes->scale_type,
                         .out = scores + part->at,
                         .out_stride = TOKENS};

    cpu_codes_multiply(&p, n_q);
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

/* The weights of the parts' entries, where these are not all of the tile, one part behind the other. */
static struct lines weights_of(const struct part *parts, uint32_t n_parts, uint32_t n_q, const float *weights, float *room)
{
    float *out = room;

    for (const struct part *part = parts; part < parts + n_parts; out += part++->n)
        for (uint32_t i = 0; i < n_q; i++)
            memcpy(out + i * TOKENS, weights + i * TOKENS + part->at, part->n * sizeof *out);
    return (struct lines){room, TOKENS};
}

/* A scale for each entry and group of dims: the weights take them up. */
static void add_folded(const struct item *item, const struct cpu_codes *codes, uint32_t n_q, const float *weights, float *out,
                       struct folding *w)
{
    const struct part *parts = item->parts[CPU_VALUE];
    uint32_t n_parts = item->n_parts[CPU_VALUE], n = 0;
    struct lines rows = {weights, TOKENS};
    float room[BLOCK * TOKENS];

    for (uint32_t i = 0; i < n_parts; i++)
        n += parts[i].n;
    if (n < TOKENS)
        rows = weights_of(parts, n_parts, n_q, weights, room);
    for (uint32_t dim = 0, dims; dim < codes->layout.outer; dim += dims) {
        dims = in_group(dim, codes->layout.outer, codes->group_dims);
        w->p[w->n] = (struct products){.codes = codes,
                                       .parts = parts,
                                       .n_parts = n_parts,
                                       .outer = dim,
                                       .n_lanes = dims,
                                       .add = true,
                                       .out = out + dim,
                                       .out_stride = item->dv};
        cpu_codes_entry_scales(codes, parts, n_parts, dim, &w->s[w->n]);
        fold(w, n_q, rows, n, &w->s[w->n]);
    }
}

/* A scale for each dim and group of entries. */
static void add_by_dim(const struct item *item, const struct cpu_codes *codes, const struct part *part, uint32_t n_q,
                       const float *weights, float *out, struct folding *w)
{
    uint32_t dims = codes->layout.outer, end = part->first + part->n;

    for (uint32_t t = part->first, n; t < end; t += n) {
        struct lines some = {weights + part->at + t - part->first, TOKENS};
        struct scales *s = &w->s[w->n];

        n = in_group(t, end, codes->group_tokens);
        w->part[w->n] = *part;
        w->part[w->n].quad = t / 4;
        w->part[w->n].n_quads = n / 4;
        w->p[w->n] = (struct products){.codes = codes,
                                       .parts = &w->part[w->n],
                                       .n_parts = 1,
                                       .n_lanes = dims,
                                       .lane_scales = (const uint8_t *)s->scale,
                                       .lane_minima = codes->layout.min_at ? (const uint8_t *)s->minimum : NULL,
                                       .lane_type = SOQ_DTYPE_F32,
                                       .add = true,
                                       .out = out,
                                       .out_stride = item->dv};
        cpu_codes_dim_scales(codes, part->tile, t, dims, 0.0f, s);
        fold(w, n_q, some, n, &cpu_codes_ones);
    }
}

/* ---- Items --------------------------------------------------------------------------------------------------------------- */

/* Digits of all queries by groups of dims. */
static void round_queries(const struct cpu_codes *codes, const struct item *item)
{
    uint32_t dims = codes->layout.inner;

    for (uint32_t i = 0; i < item->n; i += BLOCK)
        for (uint32_t k = 0, g = 0, n; k < dims; k += n, g++) {
            struct lines rows = {item->coded_q + i * item->coded_q_stride + k, item->coded_q_stride};

            n = in_group(k, dims, codes->group_dims);
            cpu_codes_round(codes, item->n - i < BLOCK ? item->n - i : BLOCK, rows, steps(n), &cpu_codes_ones, g, k,
                            item->digits + i);
        }
}

/* Rows of the queries, rotated as the keys are, and their digits. */
static void prepare_queries(struct item *item, const float *q)
{
    const struct cpu_plane *plane = packed_plane(item, CPU_KEY);

    item->coded_from = q;
    for (uint32_t i = 0; i < item->n; i++) {
        const float *src = q + i / BLOCK * item->dk * BLOCK + i % BLOCK;
        float *row = item->coded_q + i * item->coded_q_stride;

        for (size_t d = 0; d < item->dk; d++)
            row[d] = src[d * BLOCK];
        memset(row + item->dk, 0, (item->coded_q_stride - item->dk) * sizeof *row);
        cpu_codes_rotate(&plane->format, item->dk, item->coded_q_stride, row);
    }
    if (!plane->codes.folded && !plane->codes.floats)
        round_queries(&plane->codes, item);
}

void cpu_codes_score(struct item *item, const float *q, uint32_t first, uint32_t n_q, float *scores)
{
    const struct cpu_codes *codes = &packed_plane(item, CPU_KEY)->codes;
    struct lines rows = {item->coded_q + first * item->coded_q_stride, item->coded_q_stride};
    struct folding w;

    w.n = 0;
    if (item->coded_from != q)
        prepare_queries(item, q);
    for (uint32_t k = 0; k < item->n_parts[CPU_KEY]; k++) {
        const struct part *part = &item->parts[CPU_KEY][k];

        if (codes->folded)
            score_folded(codes, part, n_q, rows, scores, &w);
        else
            score_by_entry(codes, part, first, n_q, rows, item->digits, scores);
    }
    multiply_folded(&w, n_q);
}

void cpu_codes_add(struct item *item, uint32_t first, uint32_t n_q, const float *weights)
{
    const struct cpu_codes *codes = &packed_plane(item, CPU_VALUE)->codes;
    float *out = item->part.coded + first * item->dv;
    struct folding w;

    w.n = 0;
    if (codes->folded)
        add_folded(item, codes, n_q, weights, out, &w);
    else
        for (uint32_t k = 0; k < item->n_parts[CPU_VALUE]; k++)
            add_by_dim(item, codes, &item->parts[CPU_VALUE][k], n_q, weights, out, &w);
    multiply_folded(&w, n_q);
}
