/* Attention over blocks: softmax(scale q . k) v, one pass over tiles of keys and values (online softmax: Milakov and
 * Gimelshein, 2018, arXiv:1805.02867; split over entries as in Flash-Decoding, 2023).
 *
 * A query is one head of one row. Up to CPU_TILE_QUERIES queries of the same sequence and kv head form an item and share each
 * tile of keys and values, which is widened to F32 first. Tiles begin at multiples of their size, sums are taken split by split
 * (CPU_SPLIT_TOKENS entries, at multiples of that) and the splits merged in order. So the result of a query depends on what it
 * sees and where that lies, not on chunks, other rows or threads; when there are fewer items than threads, splits run in
 * parallel and are merged afterwards, with the same arithmetic. */
#include <math.h>

#include "cpu.h"
#include "simd/vec.h"

enum { TOKENS = CPU_TILE_TOKENS, QUERIES = CPU_TILE_QUERIES };

/* Numerator and denominator of a softmax over part of the entries, relative to the largest score. */
struct sums {
    float max[QUERIES], total[QUERIES]; /* max is -inf where nothing was seen */
    float *out;                         /* [QUERIES][dv] */
};

/* An item: where its queries come from, and the thread's scratch. */
struct item {
    const struct soq_attention_args *args;
    const struct cpu_group *group;
    const struct soq_step *step;
    const struct soq_step_seq *seq;
    uint32_t kv_head, first, n; /* queries [first, first + n) of the sequence and kv head; query i: row i / ratio */
    uint32_t ratio;             /* heads per kv head */
    uint32_t tile;              /* entries of a tile */
    size_t dk, dv;              /* widths, padded to lanes with zeros */
    float *q, *k, *v, *scores;  /* [QUERIES][dk], [TOKENS][dk], [TOKENS][dv], [QUERIES][TOKENS] */
    struct sums part, whole;
    uint32_t masks[QUERIES]; /* bit t: the query sees entry t of the tile */
};

static size_t padded(uint32_t width)
{
    return ((size_t)width + 7) / 8 * 8;
}

uint64_t cpu_attention_scratch(const struct cpu_group *group)
{
    size_t dk = padded(group->key.width), dv = padded(group->value.width);

    return (QUERIES * dk + TOKENS * dk + TOKENS * dv + QUERIES * TOKENS + 2 * QUERIES * dv) * sizeof(float);
}

static float exp1(float x)
{
    return f32x8_exp(f32x8_splat(x))[0];
}

static const struct soq_step_row *query_row(const struct item *item, uint32_t i)
{
    return &step_rows(item->step)[item->seq->first_row + (item->first + i) / item->ratio];
}

static uint32_t query_head(const struct item *item, uint32_t i)
{
    return item->kv_head * item->ratio + (item->first + i) % item->ratio;
}

/* The item's queries, scaled and padded. */
static void load_queries(struct item *item)
{
    const struct soq_attention_args *args = item->args;
    f32x8 scale = f32x8_splat(args->scale);

    for (uint32_t i = 0; i < item->n; i++) {
        uint32_t row = item->seq->first_row + (item->first + i) / item->ratio, d = 0;
        const float *src = cpu_view_row(&args->q, row) + (size_t)query_head(item, i) * args->head_dim_k;
        float *q = item->q + i * item->dk;

        for (; d + 8 <= args->head_dim_k; d += 8)
            f32x8_store(q + d, f32x8_load(src + d) * scale);
        if (d < args->head_dim_k)
            f32x8_store(q + d, f32x8_load_n(src + d, args->head_dim_k - d) * scale);
    }
}

/* Entries [place, place + n) of a block's tile as F32, [n][padded]. */
static void load_tile(const struct item *item, const struct cpu_plane *plane, const uint8_t *block, uint32_t place, uint32_t n,
                      float *out)
{
    size_t size = plane->dtype == SOQ_DTYPE_F32 ? 4 : 2, stride = padded(plane->width), whole = plane->width & ~(size_t)7;
    const uint8_t *src = block + plane->offset +
                         ((uint64_t)item->args->layer * plane->heads + item->kv_head) * plane->tile_bytes +
                         (size_t)place * plane->width * size;

    for (uint32_t t = 0; t < n; t++, src += plane->width * size, out += stride) {
        uint8_t rest[32] = {0};

        if (size == 4)
            memcpy(out, src, whole * 4);
        else
            for (size_t d = 0; d < whole; d += 8)
                f32x8_store(out + d, f32x8_from_f16(src + d * 2));
        if (whole == stride)
            continue;
        memcpy(rest, src + whole * size, (plane->width - whole) * size);
        f32x8_store(out + whole, size == 4 ? f32x8_load((const float *)(const void *)rest) : f32x8_from_f16(rest));
    }
}

/* Dot products of one or two queries with four keys, eight partial sums each. */
VEC_INLINE void dots4(uint32_t n_q, const float *q, const float *k, size_t dk, float *out)
{
    f32x8 acc[2][4];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t t = 0; t < 4; t++)
            acc[i][t] = f32x8_splat(0.0f);
    for (size_t d = 0; d < dk; d += 8)
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t t = 0; t < 4; t++)
                acc[i][t] = f32x8_madd(f32x8_load(q + i * dk + d), f32x8_load(k + t * dk + d), acc[i][t]);
    for (uint32_t i = 0; i < n_q; i++)
        f32x8_sum4(acc[i][0], acc[i][1], acc[i][2], acc[i][3], out + i * TOKENS);
}

static void score_tile(const struct item *item)
{
    uint32_t i = 0;

    for (; i + 2 <= item->n; i += 2)
        for (uint32_t t = 0; t < item->tile; t += 4)
            dots4(2, item->q + i * item->dk, item->k + t * item->dk, item->dk, item->scores + i * TOKENS + t);
    for (uint32_t t = 0; i < item->n && t < item->tile; t += 4)
        dots4(1, item->q + i * item->dk, item->k + t * item->dk, item->dk, item->scores + i * TOKENS + t);
}

/* Lanes of the mask's lowest eight bits. */
VEC_INLINE i32x8 mask_lanes(uint32_t mask)
{
    return -(i32x8_splat((int32_t)(mask & 255)) >> (i32x8){0, 1, 2, 3, 4, 5, 6, 7} & 1);
}

/* Scores -> weights relative to the largest score so far; returns the factor for what was summed before. */
static float weigh_tile(struct item *item, uint32_t i)
{
    float cap = item->args->softcap, max = item->part.max[i], before, *s = item->scores + i * TOKENS, lanes[8];
    f32x8 x[TOKENS / 8], largest = f32x8_splat(-INFINITY), sum = f32x8_splat(0.0f);

    for (uint32_t j = 0; j < TOKENS / 8; j++) {
        x[j] = f32x8_load(s + j * 8);
        if (cap > 0.0f)
            x[j] = f32x8_splat(cap) * f32x8_tanh(x[j] / f32x8_splat(cap));
        x[j] = f32x8_select(mask_lanes(item->masks[i] >> 8 * j), x[j], f32x8_splat(-INFINITY));
        largest = f32x8_max(largest, x[j]);
    }
    f32x8_store(lanes, largest);
    for (uint32_t j = 0; j < 8; j++)
        max = lanes[j] <= max ? max : lanes[j];
    for (uint32_t j = 0; j < TOKENS / 8; j++) {
        x[j] = f32x8_exp(x[j] - f32x8_splat(max));
        sum += x[j];
        f32x8_store(s + j * 8, x[j]);
    }
    before = exp1(item->part.max[i] - max);
    item->part.max[i] = max;
    item->part.total[i] = item->part.total[i] * before + f32x8_sum(sum);
    return before;
}

/* One or two queries that see the same entries: out[i][width] = out[i] * before[i] + weights[i] . v, entry by entry; width in
 * vectors. */
VEC_INLINE void add_values(uint32_t n_q, uint32_t width, const float *before, const float *weights, uint32_t mask,
                           const float *v, size_t dv, float *out)
{
    f32x8 acc[2][8];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t d = 0; d < width; d++)
            acc[i][d] = f32x8_load(out + i * dv + d * 8) * f32x8_splat(before[i]);
    for (uint32_t t = (uint32_t)__builtin_ctz(mask), last = 32 - (uint32_t)__builtin_clz(mask); t < last; t++) {
        if (!(mask >> t & 1))
            continue;
        for (uint32_t d = 0; d < width; d++) {
            f32x8 x = f32x8_load(v + t * dv + d * 8);

            for (uint32_t i = 0; i < n_q; i++)
                acc[i][d] = f32x8_madd(f32x8_splat(weights[i * TOKENS + t]), x, acc[i][d]);
        }
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t d = 0; d < width; d++)
            f32x8_store(out + i * dv + d * 8, acc[i][d]);
}

static void add_tile(const struct item *item, uint32_t i, uint32_t n_q, const float *before)
{
    const float *weights = item->scores + i * TOKENS;
    float *out = item->part.out + i * item->dv;
    uint32_t mask = item->masks[i];
    size_t d = 0;

    for (; d + 32 <= item->dv; d += 32)
        if (n_q == 2)
            add_values(2, 4, before, weights, mask, item->v + d, item->dv, out + d);
        else
            add_values(1, 4, before, weights, mask, item->v + d, item->dv, out + d);
    for (; d < item->dv; d += 8)
        for (uint32_t j = 0; j < n_q; j++)
            add_values(1, 1, before + j, weights + j * TOKENS, mask, item->v + d, item->dv, out + j * item->dv + d);
}

static void accumulate_tile(struct item *item)
{
    for (uint32_t i = 0, n_q; i < item->n; i += n_q) {
        float before[2];

        n_q = i + 1 < item->n && item->masks[i] == item->masks[i + 1] ? 2 : 1;
        if (!item->masks[i])
            continue;
        for (uint32_t j = 0; j < n_q; j++)
            before[j] = weigh_tile(item, i + j);
        add_tile(item, i, n_q, before);
    }
}

/* Bits [first, last) of a tile that begins at entry `begin`. */
static uint32_t range_bits(int64_t first, int64_t last, int64_t begin, uint32_t tile)
{
    int64_t a = first - begin < 0 ? 0 : first - begin, b = last - begin > tile ? tile : last - begin;

    return a < b ? (uint32_t)((UINT64_C(1) << b) - (UINT64_C(1) << a)) : 0;
}

/* Fills the masks of a tile; returns the union. Positions are entries + offset. */
static uint32_t mask_tile(struct item *item, const struct soq_step_segment *segment, uint32_t begin)
{
    const struct soq_attention_args *args = item->args;
    int64_t offset = segment->position_offset, first = segment->first_entry, end = first + segment->n_entries;
    uint32_t any = 0;

    for (uint32_t i = 0; i < item->n; i++) {
        const struct soq_step_row *row = query_row(item, i);
        int64_t last = row->entry < row->position - offset ? row->entry : row->position - offset, from = first;

        last = last + 1 < end ? last + 1 : end;
        if (args->window && row->position - offset - args->window + 1 > from)
            from = row->position - offset - args->window + 1;
        item->masks[i] = range_bits(from, last, begin, item->tile);
        if (args->window)
            item->masks[i] |= range_bits(first, args->sinks - offset < last ? args->sinks - offset : last, begin, item->tile);
        any |= item->masks[i];
    }
    return any;
}

static bool holds(const struct item *item, const struct soq_step_segment *segment)
{
    return segment->group == item->group->index && item->args->layer >= segment->first_layer &&
           item->args->layer - segment->first_layer < segment->n_layers && item->kv_head >= segment->first_head &&
           item->kv_head - segment->first_head < segment->n_heads;
}

static void sum_tile(struct item *item, const struct soq_step_segment *segment, uint32_t begin)
{
    const struct cpu_group *group = item->group;
    uint32_t seen = mask_tile(item, segment, begin), place = begin % group->block_tokens, from, n;
    const uint8_t *block;

    if (!seen)
        return;
    block = cpu_block(group, item->seq->slot, begin / group->block_tokens);
    from = (uint32_t)__builtin_ctz(seen);
    n = 32 - (uint32_t)__builtin_clz(seen) - from;
    load_tile(item, &group->key, block, place + from, n, item->k + from * item->dk);
    load_tile(item, &group->value, block, place + from, n, item->v + from * item->dv);
    score_tile(item);
    accumulate_tile(item);
}

static void clear(const struct item *item, struct sums *sums)
{
    for (uint32_t i = 0; i < item->n; i++) {
        sums->max[i] = -INFINITY;
        sums->total[i] = 0.0f;
    }
    memset(sums->out, 0, item->n * item->dv * sizeof(float));
}

/* item->part = sums over the entries of a split. */
static void sum_split(struct item *item, uint32_t split)
{
    uint64_t first = (uint64_t)split * CPU_SPLIT_TOKENS, last = first + CPU_SPLIT_TOKENS;

    clear(item, &item->part);
    for (uint32_t s = 0; s < item->seq->n_segments; s++) {
        const struct soq_step_segment *segment = &step_segments(item->step)[item->seq->first_segment + s];
        uint64_t a = segment->first_entry, b = a + segment->n_entries;

        if (!holds(item, segment))
            continue;
        a = a > first ? a : first;
        b = b < last ? b : last;
        for (uint64_t begin = a / item->tile * item->tile; begin < b; begin += item->tile)
            sum_tile(item, segment, (uint32_t)begin);
    }
}

/* whole += a part, for query i. */
static void merge(struct item *item, uint32_t i, float max, float total, const float *out)
{
    float *whole = item->whole.out + i * item->dv, top, a, b;

    if (max == -INFINITY)
        return;
    top = max <= item->whole.max[i] ? item->whole.max[i] : max;
    a = exp1(item->whole.max[i] - top);
    b = exp1(max - top);
    item->whole.max[i] = top;
    item->whole.total[i] = item->whole.total[i] * a + total * b;
    for (size_t d = 0; d < item->dv; d += 8)
        f32x8_store(whole + d, f32x8_madd(f32x8_load(whole + d), f32x8_splat(a), f32x8_load(out + d) * f32x8_splat(b)));
}

/* The sums of all splits -> the output of query i. A sink takes its share of the mass. */
static void finish(struct item *item, uint32_t i)
{
    const struct soq_attention_args *args = item->args;
    uint32_t row = item->seq->first_row + (item->first + i) / item->ratio, head = query_head(item, i);
    const float *sinks = cpu_vector(args->sink_logits), *whole = item->whole.out + i * item->dv;
    float *out = cpu_view_row(&args->out, row) + (size_t)head * args->head_dim_v;
    float max = item->whole.max[i], total = item->whole.total[i], factor = 1.0f;

    if (max == -INFINITY) {
        memset(out, 0, args->head_dim_v * sizeof *out);
        return;
    }
    if (sinks) {
        float top = sinks[head] <= max ? max : sinks[head];

        factor = exp1(max - top);
        total = total * factor + exp1(sinks[head] - top);
    }
    for (uint32_t d = 0; d < args->head_dim_v; d++)
        out[d] = whole[d] * factor / total;
}

static void prepare_item(struct item *item, struct cpu *cpu, const struct soq_attention_args *args,
                         const struct cpu_thread *thread)
{
    const struct cpu_group *group = (const struct cpu_group *)(uintptr_t)args->group;
    float *scratch = (float *)thread->scratch;

    item->args = args;
    item->group = group;
    item->step = cpu->step;
    item->ratio = args->n_heads / args->n_kv_heads;
    item->tile = group->block_tokens < TOKENS ? group->block_tokens : TOKENS;
    item->dk = padded(group->key.width);
    item->dv = padded(group->value.width);
    item->q = scratch;
    item->k = item->q + QUERIES * item->dk;
    item->v = item->k + TOKENS * item->dk;
    item->scores = item->v + TOKENS * item->dv;
    item->part.out = item->scores + QUERIES * TOKENS;
    item->whole.out = item->part.out + QUERIES * item->dv;
}

static uint64_t items_of(const struct item *item, const struct soq_step_seq *seq)
{
    return ((uint64_t)seq->n_rows * item->ratio + QUERIES - 1) / QUERIES * item->args->n_kv_heads;
}

/* Item number `number` of the step; false: there is none. */
static bool select_item(struct item *item, uint64_t number)
{
    for (uint32_t s = 0; s < item->step->n_seqs; s++) {
        const struct soq_step_seq *seq = &step_seqs(item->step)[s];
        uint64_t n = items_of(item, seq), queries = (uint64_t)seq->n_rows * item->ratio;

        if (number >= n) {
            number -= n;
            continue;
        }
        item->seq = seq;
        item->kv_head = (uint32_t)(number % item->args->n_kv_heads);
        item->first = (uint32_t)(number / item->args->n_kv_heads) * QUERIES;
        item->n = (uint32_t)(queries - item->first < QUERIES ? queries - item->first : QUERIES);
        return true;
    }
    return false;
}

/* Splits that hold anything that the item's queries may see. */
static uint32_t splits_of(const struct item *item)
{
    uint32_t last = 0;

    for (uint32_t i = 0; i < item->n; i += item->ratio)
        last = query_row(item, i)->entry > last ? query_row(item, i)->entry : last;
    last = query_row(item, item->n - 1)->entry > last ? query_row(item, item->n - 1)->entry : last;
    return last / CPU_SPLIT_TOKENS + 1;
}

static void run_whole(struct item *item)
{
    load_queries(item);
    clear(item, &item->whole);
    for (uint32_t split = 0; split < splits_of(item); split++) {
        sum_split(item, split);
        for (uint32_t i = 0; i < item->n; i++)
            merge(item, i, item->part.max[i], item->part.total[i], item->part.out + i * item->dv);
    }
    for (uint32_t i = 0; i < item->n; i++)
        finish(item, i);
}

/* A query's sums over a split, in the shared store: [2 + dv]. */
static float *partial(const struct cpu *cpu, const struct item *item, uint64_t number, uint32_t splits, uint32_t split,
                      uint32_t i)
{
    return cpu->partials + ((number * splits + split) * item->ratio + i) * (item->dv + 2);
}

/* Items of one row each, over all threads split by split. */
static void run_split(struct cpu *cpu, struct item *item, uint64_t n_items, uint32_t splits, const struct cpu_thread *thread)
{
    for (uint64_t work = thread->index; work < n_items * splits; work += thread->count) {
        uint32_t split = (uint32_t)(work % splits);

        select_item(item, work / splits);
        load_queries(item);
        sum_split(item, split);
        for (uint32_t i = 0; i < item->n; i++) {
            float *p = partial(cpu, item, work / splits, splits, split, i);

            p[0] = item->part.max[i];
            p[1] = item->part.total[i];
            memcpy(p + 2, item->part.out + i * item->dv, item->dv * sizeof *p);
        }
    }
    cpu_barrier_wait(thread->barrier, thread->count);
    for (uint64_t number = thread->index; number < n_items; number += thread->count) {
        select_item(item, number);
        clear(item, &item->whole);
        for (uint32_t i = 0; i < item->n; i++) {
            for (uint32_t split = 0; split < splits; split++) {
                const float *p = partial(cpu, item, number, splits, split, i);

                merge(item, i, p[0], p[1], p + 2);
            }
            finish(item, i);
        }
    }
}

void cpu_run_attention(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    uint64_t n_items = 0, bytes;
    uint32_t splits = 0;
    bool single = true;
    struct item item;

    prepare_item(&item, cpu, &op->args.attention, thread);
    while (select_item(&item, n_items)) {
        uint32_t n = splits_of(&item);

        splits = n > splits ? n : splits;
        single &= item.n <= item.ratio;
        n_items++;
    }
    bytes = n_items * splits * item.ratio * (item.dv + 2) * sizeof(float);
    if (single && splits > 1 && n_items < 4 * thread->count && bytes <= CPU_PARTIAL_BYTES) {
        run_split(cpu, &item, n_items, splits, thread);
        return;
    }
    for (uint64_t number = thread->index; number < n_items; number += thread->count) {
        select_item(&item, number);
        run_whole(&item);
    }
}
