/* Packed keys and values that are computed on as they are: scores and sums of a split, part by part (kernels/codes.h says how).
 */
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

/* A side's tiles in packed blocks. */
struct side {
    bool usable;
    uint64_t here;
    uint32_t quads; /* of keys: all dims */
};

static struct side side_of(const struct item *item, uint32_t side)
{
    const struct cpu_plane *plane = packed_plane(item, side);

    return (struct side){.usable = plane->codes.usable,
                         .here = cpu_tile_at(plane, item->args->layer, item->kv_head),
                         .quads = side == CPU_KEY ? kvtile_ceil(plane->codes.layout.inner, 4) : 0};
}

/* Entries [t, t + n) of the split, which lie in `block` from its entry `first` on, are a part. */
static void add_part(struct item *item, uint32_t number, const struct side *side, const uint8_t *block, uint32_t t,
                     uint32_t first, uint32_t n)
{
    struct part *part = &item->parts[number][item->n_parts[number]++];

    part->tile = block + side->here;
    part->at = t;
    part->first = first;
    part->n = n;
    part->quad = side->quads ? 0 : first / 4;
    part->n_quads = side->quads ? side->quads : n / 4;
    part->x = side->quads ? 0 : t;
    item->coded[number][t / TOKENS] |= UINT64_MAX >> (TOKENS - n) << t % TOKENS;
}

void cpu_codes_begin(struct item *item)
{
    const struct side key = side_of(item, CPU_KEY), value = side_of(item, CPU_VALUE);
    uint32_t tokens = item->group->block_tokens, n = tokens < TOKENS ? tokens : TOKENS; /* powers of two */

    memset(item->coded, 0, sizeof item->coded);
    memset(item->n_parts, 0, sizeof item->n_parts);
    if (!key.usable && !value.usable)
        return;
    for (uint32_t t = item->tile * TOKENS; t < item->end_tile * TOKENS; t += n) {
        uint64_t seen = item->seen[t / TOKENS] >> t % TOKENS & UINT64_MAX >> (TOKENS - n);
        const uint8_t *block = seen ? packed_block(item, item->at + t) : NULL;
        uint32_t first = (uint32_t)(item->at + t) & (tokens - 1);

        if (block && key.usable)
            add_part(item, CPU_KEY, &key, block, t, first, n);
        if (block && value.usable)
            add_part(item, CPU_VALUE, &value, block, t, first, n);
    }
}

/* ---- Folding ------------------------------------------------------------------------------------------------------------- */

_Static_assert((int)SPLIT <= (int)FOLD_MAX && (int)TILES <= (int)FOLDS && (int)FOLDS <= (int)DIGIT_GROUPS,
               "rows of digits hold a split, and some folds");

/* What meets codes, some products at a time. */
struct folding {
    struct fold folds[FOLDS];
    struct term terms[FOLDS];
    struct part parts[FOLDS]; /* of a term's own */
    struct product products[FOLDS];
    uint32_t n_folds, n_products;
    struct folded to[FOLDS];
    struct scale_room scales[FOLDS];
};

size_t cpu_codes_scratch(void)
{
    return sizeof(struct folding);
}

static struct folding *begin_folding(struct item *item)
{
    item->folding->n_folds = item->folding->n_products = 0;
    return item->folding;
}

/* Takes up what waits; rows of n_q numbers are `stride` apart. */
static void end_folding(struct folding *w, const struct cpu_codes *codes, uint32_t n_q, size_t stride)
{
    cpu_codes_fold(codes, n_q, stride, w->folds, w->n_folds);
    for (uint32_t i = 0; i < w->n_products; i++)
        cpu_codes_multiply(&w->products[i], n_q);
    w->n_folds = w->n_products = 0;
}

/* A new fold of n numbers x, as group `group` from `at` on of what meets the codes of product number `to`. */
static struct fold *add_fold(struct folding *w, const float *x, uint32_t n, uint32_t to, uint32_t group, uint32_t at,
                             struct span ahead)
{
    struct fold *fold = &w->folds[w->n_folds++];

    fold->x = x;
    fold->n = n;
    fold->group = group;
    fold->at = at;
    fold->digits = w->to[to].digits;
    fold->numbers = w->to[to].numbers;
    fold->ahead = ahead;
    return fold;
}

/* A new product of what is folded with some terms; its place among outputs is the caller's. */
static struct product *add_product(struct folding *w, const struct cpu_codes *codes, const struct term *terms, uint32_t n_terms)
{
    struct product *p = &w->products[w->n_products];
    const struct folded *folded = &w->to[w->n_products++];

    p->codes = codes;
    p->terms = terms;
    p->n_terms = n_terms;
    p->digits = folded->digits;
    p->numbers.x = folded->numbers;
    p->numbers.stride = FOLD_MAX;
    return p;
}

/* Codes of the outer indices [outer, outer + n_lanes); sums go to out, or are added. */
static void place_product(struct product *p, uint32_t outer, uint32_t n_lanes, float *out, size_t out_stride, bool add)
{
    p->outer = outer;
    p->n_lanes = n_lanes;
    p->out = out;
    p->out_stride = out_stride;
    p->add = add;
}

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

/* A scale for each dim: queries take them up, anew for each group of entries. */
static void score_folded(struct item *item, const struct cpu_codes *codes, uint32_t n_q, struct lines q, float *scores)
{
    struct folding *w = begin_folding(item);
    uint32_t dims = codes->layout.inner;

    for (const struct part *part = item->parts[CPU_KEY], *last = part + item->n_parts[CPU_KEY]; part < last; part++)
        for (uint32_t at = part->first, end = at + part->n, n; at < end; at += n) {
            uint32_t i = w->n_products;

            n = in_group(at, end, codes->group_tokens);
            cpu_codes_dim_scales(codes, part->tile, at, dims,
                                 add_fold(w, q.x, (uint32_t)steps(dims), i, 0, 0, take_ahead(&item->ahead, n, AHEAD_SCORES)),
                                 &w->scales[i]);
            w->terms[i] = (struct term){.parts = part, .n_parts = 1};
            place_product(add_product(w, codes, &w->terms[i], 1), at, n, scores + part->at + at - part->first, SPLIT, false);
            if (w->n_products == FOLDS)
                end_folding(w, codes, n_q, q.stride);
        }
    end_folding(w, codes, n_q, q.stride);
}

/* A scale for each entry and group of dims; the queries' digits are there, from query `first` on. */
static void score_by_entry(struct item *item, const struct cpu_codes *codes, uint32_t first, uint32_t n_q, struct lines q,
                           float *scores)
{
    uint32_t dims = codes->layout.inner, n_groups = kvtile_ceil(dims, codes->group_dims);
    size_t group_bytes = codes->layout.outer * codes->scale_bytes;
    struct part parts[DIGIT_GROUPS];
    struct term terms[DIGIT_GROUPS];
    struct product p = {.codes = codes,
                        .terms = terms,
                        .n_terms = n_groups,
                        .lane_type = codes->scale_type,
                        .digits = item->digits + first,
                        .numbers = q,
                        .out_stride = SPLIT};

    for (uint32_t g = 0, dim = 0; g < n_groups; g++, dim += codes->group_dims) {
        parts[g] = (struct part){.quad = dim / 4, .n_quads = kvtile_ceil(in_group(dim, dims, codes->group_dims), 4), .x = dim};
        terms[g] = (struct term){.parts = &parts[g], .n_parts = 1, .group = g};
    }
    for (uint32_t k = 0; k < item->n_parts[CPU_KEY]; k++) {
        const struct part *part = &item->parts[CPU_KEY][k];
        const uint8_t *scales = part->tile + part->first * codes->scale_bytes;

        for (uint32_t g = 0; g < n_groups; g++, scales += group_bytes) {
            parts[g].tile = part->tile;
            terms[g].scales = scales;
            terms[g].minima = codes->layout.min_at ? scales + codes->layout.min_at : NULL;
        }
        terms[0].ahead = take_ahead(&item->ahead, part->n, AHEAD_SCORES);
        p.outer = part->first;
        p.n_lanes = part->n;
        p.out = scores + part->at;
        cpu_codes_multiply(&p, n_q);
    }
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

/* The parts of each tile are a term. */
static uint32_t terms_of_tiles(const struct item *item, struct term terms[TILES])
{
    const struct part *part = item->parts[CPU_VALUE], *end = part + item->n_parts[CPU_VALUE];
    uint32_t n = 0;

    for (; part < end; part += terms[n++].n_parts) {
        const struct part *next = part + 1;

        while (next < end && next->at / TOKENS == part->at / TOKENS)
            next++;
        terms[n] = (struct term){.parts = part, .n_parts = (uint32_t)(next - part), .group = part->at / TOKENS};
    }
    return n;
}

/* A scale for each entry and group of dims: the weights take them up, tile by tile. */
static void add_folded(struct item *item, const struct cpu_codes *codes, uint32_t n_q, const float *weights, float *out)
{
    struct folding *w = begin_folding(item);
    struct term tiles[TILES];
    uint32_t n_tiles = terms_of_tiles(item, tiles), n_groups = kvtile_ceil(codes->layout.outer, codes->group_dims);

    for (uint32_t dim = 0, dims; dim < codes->layout.outer; dim += dims) {
        struct term *terms = &w->terms[w->n_folds];
        uint32_t i = w->n_products;

        dims = in_group(dim, codes->layout.outer, codes->group_dims);
        for (uint32_t k = 0; k < n_tiles; k++) {
            uint32_t at = tiles[k].group * TOKENS;
            struct scale_room *room = &w->scales[w->n_folds];
            struct fold *fold = add_fold(w, weights + at, TOKENS, i, tiles[k].group, at,
                                         take_ahead(&item->ahead, TOKENS / n_groups, AHEAD_FOLD));

            cpu_codes_entry_scales(codes, tiles[k].parts, tiles[k].n_parts, dim, fold, room);
            terms[k] = tiles[k];
            terms[k].ahead = take_ahead(&item->ahead, TOKENS / n_groups, AHEAD_VALUES);
        }
        place_product(add_product(w, codes, terms, n_tiles), dim, dims, out + dim, item->out_stride, true);
        if (w->n_folds + TILES > FOLDS)
            end_folding(w, codes, n_q, SPLIT);
    }
    end_folding(w, codes, n_q, SPLIT);
}

/* Some groups of entries, which wait. */
static void add_groups(struct folding *w, const struct cpu_codes *codes, uint32_t n_q, float *out, size_t out_stride)
{
    struct product *p = add_product(w, codes, w->terms, w->n_folds);

    p->lane_type = SOQ_DTYPE_F32;
    place_product(p, 0, codes->layout.outer, out, out_stride, true);
    end_folding(w, codes, n_q, SPLIT);
}

/* A scale for each dim and group of entries. */
static void add_by_dim(struct item *item, const struct cpu_codes *codes, uint32_t n_q, const float *weights, float *out)
{
    struct folding *w = begin_folding(item);

    for (const struct part *part = item->parts[CPU_VALUE], *last = part + item->n_parts[CPU_VALUE]; part < last; part++)
        for (uint32_t t = part->first, end = t + part->n, n; t < end; t += n) {
            uint32_t i = w->n_folds, at = part->at + t - part->first;

            n = in_group(t, end, codes->group_tokens);
            cpu_codes_load_dim_scales(codes, part->tile, t, codes->layout.outer, &w->scales[i]);
            w->parts[i] = *part;
            w->parts[i].quad = t / 4;
            w->parts[i].n_quads = n / 4;
            w->parts[i].x = at;
            w->terms[i] = (struct term){&w->parts[i],
                                        1,
                                        i,
                                        (const uint8_t *)w->scales[i].scale,
                                        codes->layout.min_at ? (const uint8_t *)w->scales[i].minimum : NULL,
                                        take_ahead(&item->ahead, n, AHEAD_VALUES)};
            cpu_codes_ones(add_fold(w, weights + at, n, 0, i, at, take_ahead(&item->ahead, n, AHEAD_FOLD)));
            if (w->n_folds == FOLDS)
                add_groups(w, codes, n_q, out, item->out_stride);
        }
    if (w->n_folds)
        add_groups(w, codes, n_q, out, item->out_stride);
}

/* ---- Items --------------------------------------------------------------------------------------------------------------- */

/* Digits of all queries by groups of dims. */
static void round_queries(const struct cpu_codes *codes, const struct item *item)
{
    uint32_t dims = codes->layout.inner;

    for (uint32_t i = 0; i < item->n; i += BLOCK)
        for (uint32_t k = 0, g = 0, n; k < dims; k += n, g++) {
            struct fold fold;

            n = in_group(k, dims, codes->group_dims);
            fold.x = item->coded_q + i * item->coded_q_stride + k;
            fold.n = (uint32_t)steps(n);
            fold.group = g;
            fold.at = k;
            fold.digits = item->digits + i;
            fold.ahead = (struct span){NULL, 0};
            cpu_codes_ones(&fold);
            cpu_codes_fold(codes, item->n - i < BLOCK ? item->n - i : BLOCK, item->coded_q_stride, &fold, 1);
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

    if (!item->n_parts[CPU_KEY])
        return;
    if (item->coded_from != q)
        prepare_queries(item, q);
    if (codes->folded)
        score_folded(item, codes, n_q, rows, scores);
    else
        score_by_entry(item, codes, first, n_q, rows, scores);
}

void cpu_codes_add(struct item *item, uint32_t first, uint32_t n_q, const float *weights)
{
    const struct cpu_codes *codes = &packed_plane(item, CPU_VALUE)->codes;
    float *out = item->part.out + first * item->out_stride + item->coded_out;

    if (!item->n_parts[CPU_VALUE])
        return;
    if (codes->folded)
        add_folded(item, codes, n_q, weights, out);
    else
        add_by_dim(item, codes, n_q, weights, out);
}
