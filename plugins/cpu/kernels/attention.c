/* Attention over blocks: softmax(scale q . k) v, one pass over splits of keys and values, which are merged (online softmax:
 * Milakov and Gimelshein, 2018, arXiv:1805.02867; splits as in Flash-Decoding, 2023). attention.h says how work is cut; here it
 * is given to threads and put together. Where there are few items for the threads, splits run in parallel and are merged
 * afterwards; where there are many, a thread takes the heads of a sequence at once. The arithmetic is the same. */
#include <math.h>

#include "kernels/attention.h"

/* ---- Sums of an item ----------------------------------------------------------------------------------------------------- */

static void clear(const struct item *item, struct sums *sums)
{
    for (uint32_t i = 0; i < item->n; i++) {
        sums->max[i] = -INFINITY;
        sums->total[i] = 0.0f;
    }
    memset(sums->out, 0, item->n * item->out_stride * sizeof(float));
}

/* A split of an item that a thread takes up; item NULL: none. */
struct task {
    struct item *item;
    uint64_t split;
};

/* `next` is what is taken up afterwards; NULL: it is fetched already. Returns false where the class sees nothing. */
static bool sum_class(struct item *item, uint64_t split, uint32_t segment, uint32_t class, const struct task *next)
{
    float *slot = item->mass ? cpu_item_slot(item, split, class) : NULL;
    bool seen = cpu_item_masks(item, segment);

    if (seen && next)
        cpu_ahead_begin(item, next->item, next->split);
    if (seen) {
        cpu_item_sum_split(item, cpu_item_turned(item, segment), slot ? slot + item->n : item->scores);
        cpu_ahead_end(item);
    }
    for (uint32_t i = 0; i < item->n && slot; i++)
        slot[i] = cpu_item_sees(item, i) ? item->part.max[i] : -INFINITY;
    return seen;
}

/* Its item's part = sums over the entries of the split. */
static void sum_split(struct task task, struct task next)
{
    struct item *item = task.item;
    bool fetched = false;

    clear(item, &item->part);
    cpu_item_begin_split(item, task.split);
    for (uint32_t s = item->first_segment, class; s < item->end_segment; s++)
        if (cpu_item_class(item, s, &class))
            fetched |= sum_class(item, task.split, s, class, fetched ? NULL : &next);
}

/* whole += a part, for query i. */
static void merge(struct item *item, uint32_t i, float max, float total, const float *out)
{
    float *whole = item->whole.out + i * item->out_stride, top, a, b;

    if (max == -INFINITY)
        return;
    top = max <= item->whole.max[i] ? item->whole.max[i] : max;
    a = exp2_of1(item->whole.max[i] - top);
    b = exp2_of1(max - top);
    item->whole.max[i] = top;
    item->whole.total[i] = item->whole.total[i] * a + total * b;
    for (size_t d = 0; d < item->out_stride; d += CPU_LANES)
        vf_store(whole + d, vf_madd(vf_load(whole + d), vf_splat(a), vf_load(out + d) * vf_splat(b)));
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
    cpu_item_turn_back(item, item->whole.out + i * item->out_stride);
    normalise(item->whole.out + i * item->out_stride, factor, total, args->head_dim_v, out);
}

/* ---- Work for threads ---------------------------------------------------------------------------------------------------- */

/* Items of some heads of a sequence, which a thread works on split by split: their keys and values lie next to each other in
 * the blocks, and what the machine fetches beyond the end of one is not in vain. */
struct bundle {
    struct item items[HEADS];
    uint32_t n;
    uint64_t first, end; /* splits of any of them */
};

static bool select_bundle(struct bundle *b, uint64_t number)
{
    b->first = UINT64_MAX;
    b->end = 0;
    for (uint32_t h = 0; h < b->n; h++) {
        const struct item *item = &b->items[h];

        if (!cpu_item_select(&b->items[h], number + h))
            return false;
        b->first = cpu_item_first_split(item) < b->first ? cpu_item_first_split(item) : b->first;
        b->end = cpu_item_end_split(item) > b->end ? cpu_item_end_split(item) : b->end;
    }
    return true;
}

/* What comes after item h's split of that number; splits go on when all items are through. */
static struct task task_after(struct bundle *b, uint32_t h, uint64_t split)
{
    for (h++; split < b->end; split++, h = 0)
        for (; h < b->n; h++)
            if (split >= cpu_item_first_split(&b->items[h]) && split < cpu_item_end_split(&b->items[h]))
                return (struct task){&b->items[h], split};
    return (struct task){NULL, 0};
}

static void merge_part(struct item *item)
{
    for (uint32_t i = 0; i < item->n; i++)
        merge(item, i, item->part.max[i], item->part.total[i], item->part.out + i * item->out_stride);
}

static void begin_item(struct item *item)
{
    item->store = item->room;
    cpu_item_load(item);
    clear(item, &item->whole);
}

static void end_item(struct item *item)
{
    for (uint32_t i = 0; i < item->n; i++)
        finish(item, i);
    if (item->mass)
        cpu_mass_add(item);
}

static struct task first_task(struct bundle *b)
{
    return task_after(b, UINT32_MAX, b->first);
}

/* `next` is what the thread takes up afterwards. */
static void run_bundle(struct bundle *b, struct task next)
{
    struct task task, then;

    for (uint32_t h = 0; h < b->n; h++)
        begin_item(&b->items[h]);
    for (task = first_task(b); task.item; task = then) {
        then = task_after(b, (uint32_t)(task.item - b->items), task.split);
        sum_split(task, then.item ? then : next);
        merge_part(task.item);
    }
    for (uint32_t h = 0; h < b->n; h++)
        end_item(&b->items[h]);
}

static void prepare_bundle(struct bundle *b, uint32_t n, struct cpu *cpu, const struct soq_attention_args *args,
                           const struct cpu_thread *thread)
{
    b->n = n;
    for (uint32_t h = 0; h < n; h++)
        cpu_item_prepare(&b->items[h], cpu, args, thread, h);
}

/* n items are a bundle. Every thread knows its next one when it begins one. */
static void run_bundles(struct cpu *cpu, const struct soq_attention_args *args, const struct cpu_thread *thread,
                        _Atomic uint32_t *taken, uint32_t n)
{
    struct bundle one, other, *now = &one, *next = &other;
    bool more;

    prepare_bundle(now, n, cpu, args, thread);
    prepare_bundle(next, n, cpu, args, thread);
    more = select_bundle(now, atomic_fetch_add(taken, n));
    while (more) {
        struct bundle *swap = now;

        more = select_bundle(next, atomic_fetch_add(taken, n));
        run_bundle(now, more ? first_task(next) : (struct task){NULL, 0});
        now = next;
        next = swap;
    }
}

/* What splits in parallel leave in the shared room: an item's store, then for each of its splits and queries largest score,
 * denominator and sums. */
static uint64_t partial_floats(const struct item *item)
{
    return cpu_item_store_floats(item) +
           (cpu_item_end_split(item) - cpu_item_first_split(item)) * item->n * (item->out_stride + 2);
}

static float *partial(const struct item *item, uint64_t split, uint32_t i)
{
    return item->store + cpu_item_store_floats(item) +
           ((split - cpu_item_first_split(item)) * item->n + i) * (item->out_stride + 2);
}

/* Split number `number` of all items; there is one. */
static uint64_t select_split(struct item *item, float *room, uint64_t number)
{
    for (uint64_t n = 0; cpu_item_select(item, n); n++) {
        uint64_t splits = cpu_item_end_split(item) - cpu_item_first_split(item);

        item->store = room;
        if (number < splits)
            break;
        number -= splits;
        room += partial_floats(item);
    }
    return cpu_item_first_split(item) + number;
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
    left = cpu_item_end_split(run->item) - run->split;
    run->end = run->split + (left < piece->end - piece->number ? left : piece->end - piece->number);
    piece->number += (uint32_t)(run->end - run->split);
    return true;
}

/* `next` is what the thread takes up afterwards. */
static void run_splits_of(const struct run *run, struct task next)
{
    struct item *item = run->item;

    cpu_item_load(item);
    for (uint64_t split = run->split; split < run->end; split++) {
        sum_split((struct task){item, split}, split + 1 < run->end ? (struct task){item, split + 1} : next);
        for (uint32_t i = 0; i < item->n; i++) {
            float *p = partial(item, split, i);

            p[0] = item->part.max[i];
            p[1] = item->part.total[i];
            memcpy(p + 2, item->part.out + i * item->out_stride, item->out_stride * sizeof *p);
        }
    }
}

static void merge_splits(struct item *item)
{
    clear(item, &item->whole);
    for (uint32_t i = 0; i < item->n; i++) {
        for (uint64_t split = cpu_item_first_split(item); split < cpu_item_end_split(item); split++) {
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
        run_splits_of(&now, more ? (struct task){next.item, next.split} : (struct task){NULL, 0});
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
        splits += cpu_item_end_split(item) - cpu_item_first_split(item);
        floats += partial_floats(item);
    }
    return splits > n && threads > 1 && n < 4 * threads && floats * sizeof(float) <= CPU_PARTIAL_BYTES ? (uint32_t)splits : 0;
}

/* Items of a bundle: those of one row each, where the longest bundle is at most a third of a thread's work. */
static uint32_t bundle_of(const struct item *item, uint32_t threads)
{
    uint32_t heads = item->args->n_kv_heads, n = HEADS;
    uint64_t longest = 0, all = 0;

    while (heads % n)
        n--;
    for (uint32_t s = 0; s < item->step->n_seqs; s++) {
        uint64_t entries = step_seqs(item->step)[s].n_cached;

        longest = entries > longest ? entries : longest;
        all += entries;
    }
    if (item->step->n_rows > item->step->n_seqs || item->args->mass || longest * n * 3 * threads > all * heads)
        return 1;
    return n;
}

void cpu_run_attention(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_attention_args *args = &op->args.attention;
    _Atomic uint32_t *taken = &cpu->taken[op - cpu->ops];
    uint32_t splits;
    struct item item;

    cpu_item_prepare(&item, cpu, args, thread, 0);
    if (args->mass) {
        cpu_mass_clear(cpu, args, thread);
        cpu_barrier_wait(thread->barrier, thread->count);
    }
    splits = count_splits(&item, thread->count);
    if (splits)
        run_splits(&item, cpu->partials + (*thread->splits)++ % 2 * (CPU_PARTIAL_BYTES / sizeof(float)), taken, splits, thread);
    else
        run_bundles(cpu, args, thread, taken, bundle_of(&item, thread->count));
}
