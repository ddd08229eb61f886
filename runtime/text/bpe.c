/* Byte pair encoding's inner loop: see bpe.h. A merge leaves the pairs that it made impossible in the heap; they are told by
 * their length when they surface, so nothing has to be searched. */
#include "text/bpe.h"

#include "base/alloc.h"

static bool before(const struct soq__bpe_pair *a, const struct soq__bpe_pair *b)
{
    return a->cost < b->cost || (a->cost == b->cost && a->left < b->left);
}

static void heap_push(struct soq__bpe *b, struct soq__bpe_pair pair)
{
    size_t i = b->heap_n++;

    while (i && before(&pair, &b->heap[(i - 1) / 2])) {
        b->heap[i] = b->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    b->heap[i] = pair;
}

static struct soq__bpe_pair heap_pop(struct soq__bpe *b)
{
    struct soq__bpe_pair top = b->heap[0], last = b->heap[--b->heap_n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < b->heap_n) {
        if (child + 1 < b->heap_n && before(&b->heap[child + 1], &b->heap[child]))
            child++;
        if (!before(&b->heap[child], &last))
            break;
        b->heap[i] = b->heap[child];
        i = child;
    }
    b->heap[i] = last;
    return top;
}

static void offer(struct soq__bpe *b, uint32_t left, soq__bpe_rule *rule, const void *ctx)
{
    const struct soq__bpe_sym *l = &b->syms[left], *r;
    struct soq__bpe_pair pair = {.left = left};

    if (l->next == SOQ__BPE_END)
        return;
    r = &b->syms[l->next];
    pair.len = l->len + r->len;
    if (rule(ctx, l, r, &pair.cost, &pair.id))
        heap_push(b, pair);
}

void soq__bpe_merge(struct soq__bpe *b, soq__bpe_rule *rule, const void *ctx)
{
    for (size_t i = 0; i < b->n; i++)
        offer(b, (uint32_t)i, rule, ctx);
    while (b->heap_n) {
        struct soq__bpe_pair pair = heap_pop(b);
        struct soq__bpe_sym *left = &b->syms[pair.left], *right;

        if (!left->len || left->next == SOQ__BPE_END)
            continue;
        right = &b->syms[left->next];
        if (left->len + right->len != pair.len)
            continue;
        left->len = pair.len;
        left->id = pair.id;
        left->next = right->next;
        right->len = 0;
        if (left->next != SOQ__BPE_END)
            b->syms[left->next].prev = pair.left;
        if (left->prev != SOQ__BPE_END)
            offer(b, left->prev, rule, ctx);
        offer(b, pair.left, rule, ctx);
    }
}

static bool grow(void **data, size_t *cap, size_t need, size_t size)
{
    size_t to = *cap > need / 2 ? *cap * 2 : need;
    void *p;

    if (need <= *cap)
        return true;
    p = soq__realloc_array(*data, to, size);
    if (!p)
        return false;
    *data = p;
    *cap = to;
    return true;
}

int soq__bpe_begin(struct soq__bpe *b, size_t n, struct soq_error *err)
{
    void *syms = b->syms, *heap = b->heap;
    /* n - 1 pairs at first; each merge takes one out and puts at most two in: never more than 2n. */
    bool ok = grow(&syms, &b->cap, n, sizeof *b->syms) && grow(&heap, &b->heap_cap, 2 * n, sizeof *b->heap);

    b->syms = syms;
    b->heap = heap;
    b->n = b->heap_n = 0;
    return ok ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory while encoding a word of %zu symbols", n);
}

void soq__bpe_add(struct soq__bpe *b, uint32_t start, uint32_t len, int32_t id)
{
    uint32_t i = (uint32_t)b->n++;

    b->syms[i] =
        (struct soq__bpe_sym){.start = start, .len = len, .prev = i ? i - 1 : SOQ__BPE_END, .next = SOQ__BPE_END, .id = id};
    if (i)
        b->syms[i - 1].next = i;
}

void soq__bpe_done(struct soq__bpe *b)
{
    soq__free(b->syms);
    soq__free(b->heap);
    *b = (struct soq__bpe){0};
}
