/* The cache against a model of itself: sequences come and go, fork, go back, take part in steps that succeed or fail, in random
 * order, over a backend that holds one number per entry. At any time each sequence finds in its blocks what it wrote, promises
 * are kept, and every reference is accounted for. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "kv/cache.h"

#define P 4u
#define CONTEXT 48u
#define N_SEQS 5
#define N_GROUPS 2
#define N_BLOCKS 512
#define WINDOW 9u
#define CHUNK 11u
#define BLOCK ((uint64_t)1 << 20) /* two to a slab */

/* ---- The backend
 * --------------------------------------------------------------------------------------------------------------- */

static uint32_t stored[N_GROUPS][N_BLOCKS][P];
static bool present[N_GROUPS][N_BLOCKS];
static soq_block_ref tables[N_SEQS][N_GROUPS][CONTEXT / P];
static soq_buffer next_buffer;

static int buffer_alloc(void *self, uint64_t bytes, soq_buffer *out, struct soq_error *err)
{
    (void)self;
    (void)err;
    cr_assert_eq(bytes, 2 * BLOCK);
    *out = ++next_buffer;
    return 0;
}

static void buffer_free(void *self, soq_buffer buffer)
{
    (void)self;
    (void)buffer;
}

static int group_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *out, struct soq_error *err)
{
    (void)self;
    (void)err;
    *out = desc->index + 1;
    return 0;
}

static void group_free(void *self, soq_kv_group group)
{
    (void)self;
    (void)group;
}

static int group_slab(void *self, soq_kv_group group, uint32_t class, uint32_t first, uint32_t n, soq_buffer slab,
                      struct soq_error *err)
{
    (void)self;
    (void)class;
    (void)err;
    cr_assert_leq(first + n, N_BLOCKS);
    for (uint32_t i = first; i < first + n; i++)
        present[group - 1][i] = slab != 0;
    return 0;
}

static const struct soq_memory_ops memory = {
    .struct_size = sizeof memory, .buffer_alloc = buffer_alloc, .buffer_free = buffer_free};
static const struct soq_attention_ops attention = {
    .struct_size = sizeof attention, .group_create = group_create, .group_free = group_free, .group_slab = group_slab};
static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend, .domain = "test", .memory = &memory, .attention = &attention};
static const struct soq_kv_policy_ops policy = {.struct_size = sizeof policy};

/* ---- The sequences
 * --------------------------------------------------------------------------------------------------------------- */

static struct soq__kv_layout layout;
static struct soq__kv_cache cache;
static struct actor {
    struct soq__kv_seq seq;
    bool there;
    uint32_t promised; /* entries; 0: nothing */
    uint32_t rows;     /* in the step in hand */
    uint32_t values[CONTEXT];
} actors[N_SEQS];

static uint32_t state, next_value;

static uint32_t roll(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static void make_cache(uint64_t slabs)
{
    static const struct soq__kv_owner owner = {.memory = &backend, .attention = &backend};
    static const struct soq__kv_policy rule = {.ops = &policy};
    static struct soq__kv_group_layout groups[N_GROUPS];
    static uint32_t layer;
    struct soq__kv_cache_params p = {
        .limit = slabs * 2 * BLOCK,
        .owners = &owner,
        .layout = &layout,
        .policies = &rule,
        .n_policies = 1,
        .context = CONTEXT,
        .chunk = CHUNK,
        .max_slots = N_SEQS,
    };
    struct soq_error err = SOQ_ERROR_INIT;

    layout =
        (struct soq__kv_layout){.block_tokens = P, .n_groups = N_GROUPS, .n_pools = N_GROUPS, .n_heads = 1, .groups = groups};
    groups[0] = (struct soq__kv_group_layout){
        .kind = SOQ_GROUP_FULL, .n_layers = 1, .layers = &layer, .n_heads = 1, .n_planes = 2, .block_bytes = BLOCK};
    groups[1] = groups[0];
    groups[1].kind = SOQ_GROUP_WINDOW;
    groups[1].policy = SOQ__KV_NO_POLICY;
    groups[1].pool = 1;
    groups[1].window = WINDOW;
    memset(actors, 0, sizeof actors);
    memset(present, 0, sizeof present);
    memset(tables, 0xff, sizeof tables);
    cr_assert_eq(soq__kv_cache_init(&cache, &p, &err), 0, "%s", err.text);
}

/* ---- What must always hold
 * ---------------------------------------------------------------------------------------------------------- */

static uint32_t references(uint32_t g, soq_block_ref block)
{
    uint32_t n = 0;

    for (int a = 0; a < N_SEQS; a++)
        for (uint32_t i = 0; actors[a].there && i < CONTEXT / P; i++)
            n += actors[a].seq.groups[g].table[i] == block;
    for (uint32_t i = 0; i < cache.n_copies; i++)
        n += cache.copies[i].group == g && cache.copies[i].src == block;
    return n;
}

static void check_counts(void)
{
    uint64_t used = 0;

    for (uint32_t g = 0; g < N_GROUPS; g++) {
        const struct soq__kv_pool *pool = cache.groups[g].pool;
        uint32_t n_used = 0;

        for (uint32_t b = 0; b < pool->max_slabs * pool->blocks_per_slab; b++) {
            cr_assert_eq(pool->refs[b], references(g, b), "group %u, block %u: %u references, %u are known", g, b,
                         pool->refs[b], references(g, b));
            cr_assert(!pool->refs[b] || present[g][b], "group %u, block %u is used, but its slab is gone", g, b);
            n_used += pool->refs[b] > 0;
        }
        cr_assert_eq(pool->n_used, n_used);
        used += pool->n_slabs * pool->slab_bytes;
        for (int a = 0; a < N_SEQS; a++) {
            uint32_t held = 0;

            for (uint32_t i = 0; actors[a].there && i < CONTEXT / P; i++)
                held += actors[a].seq.groups[g].table[i] != SOQ_BLOCK_NONE;
            cr_assert(!actors[a].there || actors[a].seq.groups[g].n_held == held);
        }
    }
    cr_assert_eq(cache.budget.used, used);
    cr_assert_leq(used, cache.budget.limit);
}

/* Entries that the next row sees, as the backend finds them. */
static void check_contents(const struct actor *a)
{
    struct soq_step_segment segments[2 * N_GROUPS];
    uint32_t n = soq__kv_segments(&a->seq, segments, 2 * N_GROUPS), len = a->seq.n_committed;

    for (uint32_t g = 0; g < N_GROUPS; g++)
        for (uint32_t e = g && len + 1 > WINDOW ? len + 1 - WINDOW : 0; e < len; e++) {
            soq_block_ref block = tables[a->seq.slot][g][e / P];
            bool listed = false;

            for (uint32_t s = 0; s < n; s++)
                listed |= segments[s].group == g && e - segments[s].first_entry < segments[s].n_entries;
            cr_assert(listed, "group %u: entry %u of %u is in no segment", g, e, len);
            cr_assert_eq(block, a->seq.groups[g].table[e / P], "group %u, entry %u: the backend has not heard of the block", g,
                         e);
            cr_assert_eq(stored[g][block][e % P], a->values[e], "group %u, entry %u of %u: %u, but %u was written", g, e, len,
                         stored[g][block][e % P], a->values[e]);
        }
}

/* ---- A step
 * -------------------------------------------------------------------------------------------------------------------------- */

static void deliver(void)
{
    for (uint32_t i = 0; i < cache.n_edits; i++)
        tables[cache.edits[i].slot][cache.edits[i].group][cache.edits[i].index] = cache.edits[i].block;
    for (uint32_t i = 0; i < cache.n_copies; i++) {
        const struct soq_step_copy *c = &cache.copies[i];

        cr_assert(present[c->group][c->src] && present[c->group][c->dst], "copy of block %u to %u: no such slab", c->src,
                  c->dst);
        memcpy(stored[c->group][c->dst], stored[c->group][c->src], c->n_tokens * sizeof stored[0][0][0]);
    }
}

static void write_rows(struct actor *a, bool right)
{
    for (uint32_t e = a->seq.n_committed; e < a->seq.n_committed + a->rows; e++) {
        uint32_t value = right ? ++next_value : 0xdead;

        a->values[e] = value;
        for (uint32_t g = 0; g < N_GROUPS; g++)
            stored[g][tables[a->seq.slot][g][e / P]][e % P] = value;
    }
}

static void take_step(void)
{
    uint32_t outcome = roll(4); /* 0: it fails before anything arrives, 1: after everything did */
    struct soq_error err = SOQ_ERROR_INIT;

    for (int i = 0; i < N_SEQS; i++) {
        struct actor *a = &actors[i];
        uint32_t left = a->there && a->promised > a->seq.n_committed ? a->promised - a->seq.n_committed : 0;

        a->rows = left && roll(3) ? 1 + roll(left < CHUNK ? left : CHUNK) : 0;
        if (a->rows) /* what was promised is there */
            cr_assert_eq(soq__kv_prepare(&a->seq, a->rows, &err), 0, "%s", err.text);
    }
    check_counts();
    if (outcome)
        deliver();
    for (int i = 0; outcome && i < N_SEQS; i++)
        write_rows(&actors[i], outcome > 1);
    if (outcome > 1)
        soq__kv_delivered(&cache);
    for (int i = 0; i < N_SEQS; i++)
        if (outcome < 2 && actors[i].rows)
            soq__kv_abandon(&actors[i].seq);
        else if (actors[i].rows)
            cr_assert_eq(soq__kv_commit(&actors[i].seq, roll(8) ? actors[i].rows : actors[i].rows - 1, &err), 0, "%s",
                         err.text);
    for (int i = 0; outcome > 1 && i < N_SEQS; i++)
        if (actors[i].rows)
            check_contents(&actors[i]);
}

/* ---- Everything else
 * ------------------------------------------------------------------------------------------------------------------ */

static void finish(struct actor *a)
{
    soq__kv_unreserve(&a->seq);
    a->promised = 0;
}

static void fork_to(struct actor *to, const struct actor *from)
{
    struct soq_error err = SOQ_ERROR_INIT;
    int rc;

    cr_assert_eq(soq__kv_seq_init(&to->seq, &cache, &err), 0, "%s", err.text);
    rc = soq__kv_fork(&to->seq, &from->seq, &err);
    cr_assert(rc == 0 || rc == -SOQ_EBUSY, "%s", err.text);
    to->there = true;
    to->promised = 0;
    memcpy(to->values, from->values, sizeof to->values);
}

static void act(struct actor *a, struct actor *other)
{
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t n;

    switch (roll(6)) {
    case 0:
        if (a->there)
            soq__kv_seq_done(&a->seq);
        else
            cr_assert_eq(soq__kv_seq_init(&a->seq, &cache, &err), 0, "%s", err.text);
        a->there = !a->there;
        a->promised = 0;
        break;
    case 1: /* a request ends, its session goes back somewhere, the next request begins */
    case 2:
        if (!a->there)
            break;
        finish(a);
        if (roll(2) && soq__kv_rollback(&a->seq, roll(a->seq.n_committed + 1), &err))
            cr_assert_eq(soq__kv_rollback(&a->seq, 0, &err), 0, "%s", err.text);
        n = a->seq.n_committed + roll(CONTEXT - a->seq.n_committed + 1);
        if (n && soq__kv_reserve(&a->seq, 0, n, &err) == 0)
            a->promised = n;
        break;
    case 3:
        if (a->there && !other->there)
            fork_to(other, a);
        break;
    default:
        take_step();
    }
}

static void run(uint32_t seed, uint64_t slabs)
{
    int64_t live = soq__alloc_live();

    state = seed;
    make_cache(slabs);
    for (int i = 0; i < 3000; i++) {
        uint32_t a = roll(N_SEQS);

        act(&actors[a], &actors[(a + 1 + roll(N_SEQS - 1)) % N_SEQS]);
        check_counts();
    }
    for (int i = 0; i < N_SEQS; i++)
        if (actors[i].there)
            soq__kv_seq_done(&actors[i].seq);
    soq__kv_delivered(&cache);
    cr_expect_eq(cache.budget.used, 0);
    soq__kv_cache_done(&cache);
    cr_expect_eq(soq__alloc_live(), live);
}

Test(kv_model, enough_memory)
{
    for (uint32_t seed = 1; seed <= 20; seed++)
        run(seed, 100);
}

Test(kv_model, little_memory)
{
    for (uint32_t seed = 1; seed <= 20; seed++)
        for (uint64_t slabs = 5; slabs < 22; slabs += 2)
            run(seed, slabs);
}
