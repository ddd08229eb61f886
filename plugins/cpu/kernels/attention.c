/* Attention over blocks: softmax(scale q . k) v, one pass over tiles of keys and values (online softmax: Milakov and
 * Gimelshein, 2018, arXiv:1805.02867; split over entries as in Flash-Decoding, 2023). attention.h says how work is cut; here it
 * is given to threads and put together. Where there are fewer items than threads, splits run in parallel and are merged
 * afterwards, with the same arithmetic. */
#include <math.h>

#include "kernels/attention.h"

/* ---- Sums of an item ----------------------------------------------------------------------------------------------------- */

static void clear(const struct item *item, struct sums *sums)
{
    for (uint32_t i = 0; i < item->n; i++) {
        sums->max[i] = -INFINITY;
        sums->total[i] = 0.0f;
    }
    memset(sums->out, 0, item->n * item->dv * sizeof(float));
    if (sums->coded)
        memset(sums->coded, 0, item->n * item->dv * sizeof(float));
}

static void sum_class(struct item *item, uint64_t begin, uint32_t segment, uint32_t class)
{
    float *slot = item->mass ? cpu_item_slot(item, begin / TOKENS, class) : NULL;
    uint64_t seen = cpu_item_masks(item, segment, begin);

    if (seen)
        cpu_item_sum_tile(item, cpu_item_turned(item, segment), slot ? slot + item->n : item->scores, begin, seen);
    for (uint32_t i = 0; i < item->n && slot; i++)
        slot[i] = item->masks[i] ? item->part.max[i] : -INFINITY;
}

/* The first entry of the split's first tile. */
static uint64_t split_begin(const struct item *item, uint64_t split)
{
    return split * SPLIT > item->begin ? split * SPLIT : item->begin / TOKENS * TOKENS;
}

/* item->part = sums over the entries of a split. The split `next_split` of `next` is what the thread takes up afterwards. */
static void sum_split(struct item *item, uint64_t split, const struct item *next, uint64_t next_split)
{
    uint64_t end = (split + 1) * SPLIT < item->end ? (split + 1) * SPLIT : item->end;

    clear(item, &item->part);
    for (uint64_t begin = split_begin(item, split); begin < end; begin += TOKENS) {
        item->ahead = begin + TOKENS < end ? item : next;
        item->ahead_at = begin + TOKENS < end || !next ? begin + TOKENS : split_begin(next, next_split);
        for (uint32_t s = item->first_segment, class; s < item->end_segment; s++)
            if (cpu_item_class(item, s, &class))
                sum_class(item, begin, s, class);
    }
    cpu_item_turn_back(item);
}

/* whole += a part, for query i. */
static void merge(struct item *item, uint32_t i, float max, float total, const float *out)
{
    float *whole = item->whole.out + i * item->dv, top, a, b;

    if (max == -INFINITY)
        return;
    top = max <= item->whole.max[i] ? item->whole.max[i] : max;
    a = exp2_of1(item->whole.max[i] - top);
    b = exp2_of1(max - top);
    item->whole.max[i] = top;
    item->whole.total[i] = item->whole.total[i] * a + total * b;
    for (size_t d = 0; d < item->dv; d += 8)
        f32x8_store(whole + d, f32x8_madd(f32x8_load(whole + d), f32x8_splat(a), f32x8_load(out + d) * f32x8_splat(b)));
}

/* out[n] = x * factor / total; x is padded to whole vectors. */
static void normalise(const float *x, float factor, float total, uint32_t n, float *out)
{
    uint32_t d = 0;

    for (; d + 8 <= n; d += 8)
        f32x8_store(out + d, f32x8_load(x + d) * f32x8_splat(factor) / f32x8_splat(total));
    if (d < n)
        f32x8_store_n(out + d, f32x8_load(x + d) * f32x8_splat(factor) / f32x8_splat(total), n - d);
}

/* The sums of all splits -> the output of query i. A sink takes its share of the mass. */
static void finish(struct item *item, uint32_t i)
{
    const struct soq_attention_args *args = item->args;
    uint32_t row = item->seq->first_row + (item->first + i) / item->ratio, head = cpu_item_head(item, i);
    const float *sinks = cpu_vector(args->sink_logits);
    float *out = cpu_view_row(&args->out, row) + (size_t)head * args->head_dim_v;
    float max = item->whole.max[i], total = item->whole.total[i], factor = 1.0f;

    if (max == -INFINITY) {
        memset(out, 0, args->head_dim_v * sizeof *out);
        item->shares[i] = 0.0f;
        return;
    }
    if (sinks) {
        float sink = (float)(sinks[head] * LOG2E), top = sink <= max ? max : sink;

        factor = exp2_of1(max - top);
        total = total * factor + exp2_of1(sink - top);
    }
    item->shares[i] = factor / total;
    normalise(item->whole.out + i * item->dv, factor, total, args->head_dim_v, out);
}

/* ---- Work for threads ---------------------------------------------------------------------------------------------------- */

static uint64_t first_split(const struct item *item)
{
    return item->begin / SPLIT;
}

static uint64_t end_split(const struct item *item)
{
    return (item->end + SPLIT - 1) / SPLIT;
}

/* `next` is what the thread takes up afterwards; NULL: nothing. */
static void run_whole(struct item *item, const struct item *next)
{
    item->store = item->room;
    cpu_item_load(item);
    if (next)
        cpu_item_fetch(next, next->begin / TOKENS * TOKENS);
    clear(item, &item->whole);
    for (uint64_t split = first_split(item); split < end_split(item); split++) {
        sum_split(item, split, split + 1 < end_split(item) ? item : NULL, split + 1);
        for (uint32_t i = 0; i < item->n; i++)
            merge(item, i, item->part.max[i], item->part.total[i], item->part.out + i * item->dv);
    }
    for (uint32_t i = 0; i < item->n; i++)
        finish(item, i);
    if (item->mass)
        cpu_mass_add(item);
}

/* Every thread knows its next item when it begins one. */
static void run_items(struct item *item, _Atomic uint32_t *taken)
{
    struct item other = *item, *now = item, *next = &other;
    bool more = cpu_item_select(now, atomic_fetch_add(taken, 1));

    while (more) {
        struct item *swap = now;

        more = cpu_item_select(next, atomic_fetch_add(taken, 1));
        run_whole(now, more ? next : NULL);
        now = next;
        next = swap;
    }
}

/* What splits in parallel leave in the shared room: an item's store, then for each of its splits and queries largest score,
 * denominator and sums. */
static uint64_t partial_floats(const struct item *item)
{
    return cpu_item_store_floats(item) + (end_split(item) - first_split(item)) * item->n * (item->dv + 2);
}

static float *partial(const struct item *item, uint64_t split, uint32_t i)
{
    return item->store + cpu_item_store_floats(item) + ((split - first_split(item)) * item->n + i) * (item->dv + 2);
}

/* Split number `number` of all items; there is one. */
static uint64_t select_split(struct item *item, float *room, uint64_t number)
{
    for (uint64_t n = 0; cpu_item_select(item, n); n++) {
        uint64_t splits = end_split(item) - first_split(item);

        item->store = room;
        if (number < splits)
            break;
        number -= splits;
        room += partial_floats(item);
    }
    return first_split(item) + number;
}

/* The splits [number, end) of all items are a thread's. */
struct piece {
    _Atomic uint32_t *taken;
    float *room;
    uint32_t number, end, total, threads;
};

/* Takes half of a thread's share of what is left: a piece costs its items' queries anew, and small ones at the end keep threads
 * from waiting for each other. */
static bool take_piece(struct piece *piece)
{
    uint32_t from = atomic_load(piece->taken), n;

    do {
        n = (piece->total - from) / (2 * piece->threads);
        n = n ? n : piece->total - from ? 1 : 0;
    } while (!atomic_compare_exchange_weak(piece->taken, &from, from + n));
    piece->number = from;
    piece->end = from + n;
    return n;
}

/* Splits [split, end) of an item. */
struct run {
    struct item *item;
    uint64_t split, end;
};

/* The next run of the thread's pieces; false: there is none. */
static bool next_run(struct piece *piece, struct run *run)
{
    uint64_t left;

    if (piece->number == piece->end && !take_piece(piece))
        return false;
    run->split = select_split(run->item, piece->room, piece->number);
    left = end_split(run->item) - run->split;
    run->end = run->split + (left < piece->end - piece->number ? left : piece->end - piece->number);
    piece->number += (uint32_t)(run->end - run->split);
    return true;
}

/* `next` is what the thread takes up afterwards; NULL: nothing. */
static void run_splits_of(const struct run *run, const struct run *next)
{
    struct item *item = run->item;

    cpu_item_load(item);
    for (uint64_t split = run->split; split < run->end; split++) {
        if (split + 1 < run->end)
            sum_split(item, split, item, split + 1);
        else
            sum_split(item, split, next ? next->item : NULL, next ? next->split : 0);
        for (uint32_t i = 0; i < item->n; i++) {
            float *p = partial(item, split, i);

            p[0] = item->part.max[i];
            p[1] = item->part.total[i];
            memcpy(p + 2, item->part.out + i * item->dv, item->dv * sizeof *p);
        }
    }
}

static void merge_splits(struct item *item)
{
    clear(item, &item->whole);
    for (uint32_t i = 0; i < item->n; i++) {
        for (uint64_t split = first_split(item); split < end_split(item); split++) {
            const float *p = partial(item, split, i);

            merge(item, i, p[0], p[1], p + 2);
        }
        finish(item, i);
    }
    if (item->mass)
        cpu_mass_add(item);
}

/* Every thread knows its next run when it begins one. A thread that is two such ops ahead has met the others at the barrier
 * in between: so two rooms are enough. */
static void run_splits(struct item *item, float *room, _Atomic uint32_t *taken, uint32_t total, const struct cpu_thread *thread)
{
    struct item other = *item;
    struct run now = {.item = item}, next = {.item = &other};
    struct piece piece = {taken, room, 0, 0, total, thread->count};
    bool more = next_run(&piece, &now);

    while (more) {
        struct run swap = now;

        more = next_run(&piece, &next);
        run_splits_of(&now, more ? &next : NULL);
        now = next;
        next = swap;
    }
    cpu_barrier_wait(thread->barrier, thread->count);
    for (uint64_t n = 0; cpu_item_select(item, n); n++) {
        item->store = room;
        room += partial_floats(item);
        if (n % thread->count == thread->index)
            merge_splits(item);
    }
}

/* The splits of all items, where these are few, some have several, and there is room for partial sums; or else 0. */
static uint32_t count_splits(struct item *item, uint32_t threads)
{
    uint64_t n = 0, splits = 0, floats = 0;

    if ((uint64_t)item->step->n_seqs * item->args->n_kv_heads >= 4 * threads) /* at least so many items */
        return 0;
    for (; n < 4 * threads && cpu_item_select(item, n); n++) {
        splits += end_split(item) - first_split(item);
        floats += partial_floats(item);
    }
    return splits > n && threads > 1 && n < 4 * threads && floats * sizeof(float) <= CPU_PARTIAL_BYTES ? (uint32_t)splits : 0;
}

void cpu_run_attention(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_attention_args *args = &op->args.attention;
    _Atomic uint32_t *taken = &cpu->taken[op - cpu->ops];
    uint32_t splits;
    struct item item;

    cpu_item_prepare(&item, cpu, args, thread);
    if (args->mass) {
        cpu_mass_clear(cpu, args, thread);
        cpu_barrier_wait(thread->barrier, thread->count);
    }
    splits = count_splits(&item, thread->count);
    if (splits)
        run_splits(&item, cpu->partials + (*thread->splits)++ % 2 * (CPU_PARTIAL_BYTES / sizeof(float)), taken, splits, thread);
    else
        run_items(&item, taken);
}
