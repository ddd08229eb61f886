/* The KV cache without a model: pools, promises, copy on write, commit on the grid, windows, rollback; over a backend that only
 * keeps count of what it is told. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "kv/promise.h"

/* ---- A backend that counts ------------------------------------------------------------------------------------------- */

struct counting {
    int n_buffers;
    uint64_t bytes;
    int fail_after; /* buffer_alloc fails when it reaches 0; negative: never */
    int n_slabs;    /* group_slab with a buffer, minus without */
    int n_groups;
};

static struct counting counts;

static int buffer_alloc(void *self, uint64_t bytes, soq_buffer *out, struct soq_error *err)
{
    (void)self;
    (void)err;
    if (counts.fail_after == 0)
        return -SOQ_ENOMEM;
    counts.fail_after -= counts.fail_after > 0;
    counts.n_buffers++;
    counts.bytes += bytes;
    *out = (soq_buffer)counts.n_buffers + 1000;
    return 0;
}

static void buffer_free(void *self, soq_buffer buffer)
{
    (void)self;
    cr_assert_neq(buffer, 0);
    counts.n_buffers--;
}

static int group_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *out, struct soq_error *err)
{
    (void)self;
    (void)err;
    *out = desc->index + 1;
    counts.n_groups++;
    return 0;
}

static void group_free(void *self, soq_kv_group group)
{
    (void)self;
    (void)group;
    counts.n_groups--;
}

static int group_slab(void *self, soq_kv_group group, uint32_t class, uint32_t first, uint32_t n, soq_buffer slab,
                      struct soq_error *err)
{
    (void)self;
    (void)group;
    (void)class;
    (void)err;
    cr_assert_eq(first % n, 0);
    counts.n_slabs += slab ? 1 : -1;
    return 0;
}

static const struct soq_memory_ops memory = {
    .struct_size = sizeof memory, .buffer_alloc = buffer_alloc, .buffer_free = buffer_free};
static const struct soq_attention_ops attention = {
    .struct_size = sizeof attention, .group_create = group_create, .group_free = group_free, .group_slab = group_slab};
static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend, .domain = "test", .memory = &memory, .attention = &attention};

static int keep_all(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan, struct soq_error *err)
{
    (void)self;
    (void)shape;
    (void)plan;
    (void)err;
    return 0;
}

static const struct soq_kv_policy_ops full_policy = {.struct_size = sizeof full_policy, .describe = keep_all};

#define P 8u
#define BLOCK (uint64_t)(1 << 20) /* two blocks a slab */
#define SLAB (2 * BLOCK)

static struct soq__kv_layout layout;
static struct soq__kv_group_layout groups[2];
static struct soq__kv_cache cache;

/* One full group and, if window > 0, a windowed one. */
static void make_cache(uint32_t window, uint64_t limit, uint32_t context, uint32_t slots, uint32_t chunk)
{
    static const struct soq__kv_owner owner = {.memory = &backend, .attention = &backend};
    static const struct soq__kv_policy policy = {.ops = &full_policy, .name = "full"};
    struct soq__kv_cache_params p = {
        .limit = limit,
        .owners = &owner,
        .layout = &layout,
        .policies = &policy,
        .n_policies = 1,
        .context = context,
        .chunk = chunk,
        .max_slots = slots,
    };
    static uint32_t layer;
    struct soq_error err = SOQ_ERROR_INIT;

    counts = (struct counting){.fail_after = -1};
    layout = (struct soq__kv_layout){
        .block_tokens = P, .n_groups = window ? 2 : 1, .n_pools = window ? 2 : 1, .n_heads = 1, .n_views = 1, .groups = groups};
    groups[0] = (struct soq__kv_group_layout){
        .kind = SOQ_GROUP_FULL, .n_layers = 1, .layers = &layer, .n_heads = 1, .n_planes = 2, .block_bytes = BLOCK};
    groups[1] = groups[0];
    groups[1].kind = SOQ_GROUP_WINDOW;
    groups[1].policy = SOQ__KV_NO_POLICY;
    groups[1].pool = 1;
    groups[1].window = window;
    cr_assert_eq(soq__kv_cache_init(&cache, &p, &err), 0, "%s", err.text);
}

static void drop_cache(void)
{
    soq__kv_cache_done(&cache);
    cr_expect_eq(counts.n_buffers, 0);
    cr_expect_eq(counts.n_slabs, 0);
    cr_expect_eq(counts.n_groups, 0);
}

/* A cache of one full group, and two empty sequences in it. */
static void make_two(struct soq__kv_seq *a, struct soq__kv_seq *b, uint64_t limit)
{
    make_cache(0, limit, 128, 2, 64);
    cr_assert_eq(soq__kv_seq_init(a, &cache, NULL), 0);
    cr_assert_eq(soq__kv_seq_init(b, &cache, NULL), 0);
}

static void drop_two(struct soq__kv_seq *a, struct soq__kv_seq *b)
{
    soq__kv_seq_done(a);
    soq__kv_seq_done(b);
    drop_cache();
}

static void extend(struct soq__kv_seq *seq, uint32_t n)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(soq__kv_prepare(seq, n, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_commit(seq, n, &err), 0, "%s", err.text);
}

/* ---- Tests ----------------------------------------------------------------------------------------------------------- */

Test(kv, memory_is_really_freed)
{
    int64_t live = soq__alloc_live();
    struct soq__kv_seq a, b;

    make_two(&a, &b, 8 * SLAB);
    extend(&a, 3 * P);
    extend(&b, P);
    cr_expect_eq(cache.budget.used, 2 * SLAB);
    cr_expect_eq(soq__kv_seq_bytes(&a), 3 * BLOCK);
    cr_expect_eq(soq__kv_rollback(&a, P, NULL), 0);
    cr_expect_eq(soq__kv_seq_bytes(&a), BLOCK);
    soq__kv_seq_done(&a);
    cr_expect_eq(cache.budget.used, SLAB);
    cr_expect_eq(counts.n_buffers, 1);
    soq__kv_seq_done(&b);
    cr_expect_eq(cache.budget.used, 0);
    cr_expect_eq(cache.budget.peak, 2 * SLAB);
    drop_cache();
    cr_expect_eq(soq__alloc_live(), live);
}

Test(kv, lowest_slab_first)
{
    struct soq__kv_seq a, b;

    make_two(&a, &b, 8 * SLAB);
    extend(&a, 4 * P); /* blocks 0 .. 3 */
    extend(&b, 2 * P); /* blocks 4, 5 */
    soq__kv_rollback(&a, 0, NULL);
    extend(&b, P);
    cr_expect_eq(b.groups[0].table[2], 0, "block %u", b.groups[0].table[2]);
    drop_two(&a, &b);
}

Test(kv, promises_are_kept)
{
    struct soq__kv_seq a, b;
    struct soq_error err = SOQ_ERROR_INIT;

    make_two(&a, &b, 4 * SLAB);
    cr_expect_eq(soq__kv_reserve(&a, 0, 9 * P, &err), -SOQ_ELIMIT);
    cr_expect(strstr(err.text, "10.0 MiB") && strstr(err.text, "8.0 MiB") && strstr(err.text, "[kv] memory"), "%s", err.text);
    cr_expect_eq(soq__kv_reserve(&a, 0, 200, &err), -SOQ_ELIMIT);
    cr_expect(strstr(err.text, "[model] context"), "%s", err.text);
    cr_expect_eq(soq__kv_reserve(&a, 0, 6 * P, &err), 0);
    cr_expect_eq(soq__kv_reserve(&b, 0, 3 * P, &err), -SOQ_EBUSY);
    cr_expect_eq(soq__kv_reserve(&b, 0, 2 * P, &err), 0);
    extend(&b, 2 * P);
    extend(&a, 6 * P);
    soq__kv_unreserve(&a);
    cr_expect_eq(soq__kv_rollback(&a, 2 * P, NULL), 0);
    cr_expect_eq(soq__kv_reserve(&b, 0, 6 * P, &err), 0, "%s", err.text);
    drop_two(&a, &b);
}

Test(kv, copy_on_write)
{
    struct soq__kv_seq a, b, c;
    soq_block_ref shared;

    make_cache(0, 8 * SLAB, 64, 3, 64);
    soq__kv_seq_init(&a, &cache, NULL);
    soq__kv_seq_init(&b, &cache, NULL);
    extend(&a, 2 * P + 3);
    soq__kv_delivered(&cache);
    shared = a.groups[0].table[2];
    cr_assert_eq(soq__kv_fork(&b, &a, NULL), 0);
    cr_expect_eq(cache.n_edits, 3);
    cr_expect_eq(cache.groups[0].pools[0]->n_used, 3, "a fork takes no block");
    soq__kv_delivered(&cache);
    cr_assert_eq(soq__kv_prepare(&b, 1, NULL), 0);
    cr_assert_eq(cache.n_copies, 1);
    cr_expect_eq(cache.copies[0].src, shared);
    cr_expect_eq(cache.copies[0].dst, b.groups[0].table[2]);
    cr_expect_eq(cache.copies[0].n_tokens, 3);
    soq__kv_seq_done(&a); /* the source of the pending copy must survive */
    cr_assert_eq(soq__kv_seq_init(&c, &cache, NULL), 0);
    extend(&c, P);
    cr_expect_neq(c.groups[0].table[0], shared);
    soq__kv_delivered(&cache);
    soq__kv_commit(&b, 1, NULL);
    extend(&c, P);
    cr_expect_eq(c.groups[0].table[1], shared, "free again after the copy");
    soq__kv_seq_done(&b);
    soq__kv_seq_done(&c);
    drop_cache();
}

Test(kv, original_of_a_fork_copies_too)
{
    struct soq__kv_seq a, b;

    make_two(&a, &b, 2 * SLAB);
    cr_assert_eq(soq__kv_reserve(&a, 0, 4 * P, NULL), 0);
    extend(&a, 2 * P + 3);
    /* Four blocks are promised and there are four: the copy of a shared tail would be the fifth. */
    cr_expect_eq(soq__kv_fork(&b, &a, NULL), -SOQ_EBUSY);
    cr_expect_eq(b.n_committed, 0);
    cr_expect_eq(soq__kv_seq_bytes(&b), 0);
    cr_assert_eq(soq__kv_reserve(&a, 0, 3 * P, NULL), 0);
    cr_expect_eq(soq__kv_fork(&b, &a, NULL), 0);
    cr_assert_eq(soq__kv_prepare(&a, 1, NULL), 0);
    cr_expect_eq(cache.n_copies, 1);
    soq__kv_abandon(&a);
    drop_two(&a, &b);
}

/* A step fails, the copy is still pending, and the block it goes to is given back with its slab: nothing may refer to it. */
Test(kv, no_copy_to_what_is_gone)
{
    struct soq__kv_seq a, b;

    make_two(&a, &b, 8 * SLAB);
    extend(&a, P + 3); /* the only slab is full */
    soq__kv_delivered(&cache);
    cr_assert_eq(soq__kv_fork(&b, &a, NULL), 0);
    cr_assert_eq(soq__kv_prepare(&b, 1, NULL), 0);
    cr_assert_eq(cache.n_copies, 1);
    soq__kv_abandon(&b);
    cr_expect_eq(cache.n_copies, 1, "the block is still the fork's own");
    soq__kv_seq_done(&b);
    cr_expect_eq(cache.n_copies, 0);
    cr_expect_eq(cache.budget.used, SLAB);
    cr_expect(!soq__kv_block_is_shared(cache.groups[0].pools[0], a.groups[0].table[1]), "nobody else holds the source");
    soq__kv_seq_done(&a);
    cr_expect_eq(cache.budget.used, 0);
    drop_cache();
}

/* The source of a pending copy may itself be waiting for one. */
Test(kv, chain_of_copies)
{
    struct soq__kv_seq a, b, c;

    make_cache(0, 8 * SLAB, 64, 3, 64);
    soq__kv_seq_init(&a, &cache, NULL);
    soq__kv_seq_init(&b, &cache, NULL);
    soq__kv_seq_init(&c, &cache, NULL);
    extend(&a, P + 3);
    soq__kv_delivered(&cache);
    cr_assert_eq(soq__kv_fork(&b, &a, NULL), 0);
    cr_assert_eq(soq__kv_prepare(&b, 1, NULL), 0);
    soq__kv_abandon(&b);
    cr_assert_eq(soq__kv_fork(&c, &b, NULL), 0);
    cr_assert_eq(soq__kv_prepare(&c, 1, NULL), 0);
    soq__kv_abandon(&c);
    cr_assert_eq(cache.n_copies, 2);
    cr_expect_eq(cache.copies[0].dst, cache.copies[1].src);
    soq__kv_seq_done(&b);
    cr_expect_eq(cache.n_copies, 2, "the last one needs both");
    soq__kv_seq_done(&c);
    cr_expect_eq(cache.n_copies, 0);
    cr_expect_eq(cache.budget.used, SLAB);
    soq__kv_seq_done(&a);
    drop_cache();
}

/* Letting go of a shared block behind the window gives the pool nothing back: the promise has to count it. */
Test(kv, promise_beside_a_fork_behind_the_window)
{
    struct soq__kv_seq a, b;
    struct soq_error err = SOQ_ERROR_INIT;

    make_cache(8 * P, 15 * SLAB, 128, 2, P);
    soq__kv_seq_init(&a, &cache, NULL);
    soq__kv_seq_init(&b, &cache, NULL);
    for (int i = 0; i < 9; i++)
        extend(&a, P);
    soq__kv_delivered(&cache);
    cr_assert_eq(soq__kv_fork(&b, &a, NULL), 0);
    if (soq__kv_reserve(&a, 0, 16 * P, &err) == 0)
        for (int i = 9; i < 16; i++) {
            cr_assert_eq(soq__kv_prepare(&a, P, &err), 0, "a promise was broken: %s", err.text);
            cr_assert_eq(soq__kv_commit(&a, P, NULL), 0);
        }
    soq__kv_seq_done(&b);
    cr_expect_eq(soq__kv_reserve(&a, 0, 16 * P, &err), 0, "%s", err.text);
    soq__kv_seq_done(&a);
    drop_cache();
}

Test(kv, abandoned_rows_give_their_blocks_back)
{
    struct soq__kv_seq a;

    make_cache(12, 8 * SLAB, 64, 1, 64);
    soq__kv_seq_init(&a, &cache, NULL);
    extend(&a, 5);
    cr_assert_eq(soq__kv_prepare(&a, 30, NULL), 0);
    soq__kv_abandon(&a);
    cr_expect_eq(a.groups[0].n_held, 1);
    cr_expect_eq(a.groups[1].n_held, 1);
    counts.fail_after = 1;
    cr_expect_eq(soq__kv_prepare(&a, 30, NULL), -SOQ_ENOMEM);
    counts.fail_after = -1;
    soq__kv_abandon(&a);
    cr_expect_eq(a.groups[0].n_held, 1, "what a failed prepare had taken");
    extend(&a, 30);
    cr_expect_eq(a.n_committed, 35);
    soq__kv_seq_done(&a);
    drop_cache();
}

/* Blocks of a pool that a sequence of n entries may hold, one row a step. */
static uint32_t most_blocks(uint32_t pool, uint32_t n)
{
    const struct soq__kv_need_params params = {.layout = &layout, .policies = cache.policies, .chunk = 1, .n_entries = n};
    struct soq__kv_need need;

    soq__kv_need(&params, pool, &need);
    return soq__kv_need_peak(&need);
}

Test(kv, window_frees_behind_on_the_grid)
{
    const uint32_t window = 10;
    struct soq__kv_seq a;
    struct soq_step_segment segments[4];

    make_cache(window, 64 * SLAB, 256, 1, 1);
    soq__kv_seq_init(&a, &cache, NULL);
    for (uint32_t n = 1; n <= 100; n++) {
        uint32_t grid = n / P * P, first_seen = grid + 1 > window ? grid + 1 - window : 0;

        extend(&a, 1);
        cr_expect_eq(a.groups[1].freed_to, first_seen / P * P, "at %u: freed to %u", n, a.groups[1].freed_to);
        cr_expect_eq(a.groups[1].n_held, (n + P - 1) / P - first_seen / P);
        cr_expect_leq(a.groups[1].n_held, most_blocks(1, n));
        cr_expect_eq(a.groups[0].n_held, (n + P - 1) / P);
    }
    cr_assert_eq(soq__kv_segments(&a, a.n_committed + a.n_tentative, segments, 4), 2);
    cr_expect_eq(segments[0].first_entry, 0);
    cr_expect_eq(segments[0].n_entries, 100);
    cr_expect_eq(segments[1].first_entry, a.groups[1].freed_to);
    cr_expect_eq(segments[1].first_entry + segments[1].n_entries, 100);
    /* A row at 98 sees from 89 on, which is there; one at 60 would see what is gone. */
    cr_expect_eq(soq__kv_rollback(&a, 98, NULL), 0);
    cr_expect_eq(soq__kv_rollback(&a, 60, NULL), -SOQ_EINVAL);
    cr_expect_eq(soq__kv_rollback(&a, 0, NULL), 0);
    cr_expect_eq(cache.budget.used, 0);
    soq__kv_seq_done(&a);
    drop_cache();
}

/* What is held never depends on how rows were batched. */
Test(kv, commit_does_not_depend_on_chunks)
{
    static const uint32_t chunks[] = {1, 3, 8, 13, 50};

    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        struct soq__kv_seq a;

        make_cache(12, 64 * SLAB, 256, 1, 64);
        soq__kv_seq_init(&a, &cache, NULL);
        for (uint32_t n = 0; n < 150;) {
            uint32_t step = chunks[i] < 150 - n ? chunks[i] : 150 - n;

            extend(&a, step);
            n += step;
        }
        cr_expect_eq(a.groups[1].freed_to, (144u + 1 - 12) / P * P);
        cr_expect_eq(a.groups[1].n_held, 19 - (144u + 1 - 12) / P);
        soq__kv_seq_done(&a);
        drop_cache();
    }
}

Test(kv, rejected_rows_leave_no_trace)
{
    struct soq__kv_seq a;

    make_cache(0, 8 * SLAB, 64, 1, 64);
    soq__kv_seq_init(&a, &cache, NULL);
    extend(&a, 5);
    cr_assert_eq(soq__kv_prepare(&a, 20, NULL), 0);
    cr_expect_eq(a.groups[0].n_held, 4);
    cr_assert_eq(soq__kv_commit(&a, 2, NULL), 0);
    cr_expect_eq(a.n_committed, 7);
    cr_expect_eq(a.groups[0].n_held, 1);
    cr_expect_eq(soq__kv_commit(&a, 1, NULL), -SOQ_EINTERNAL, "nothing is tentative");
    soq__kv_seq_done(&a);
    drop_cache();
}

/* Memory runs out between the edit and the copy: the edit must not name a block that was given back. */
Test(kv, no_edit_to_what_is_gone)
{
    uint32_t n_failed = 0;

    for (uint64_t at = 1;; at++) {
        struct soq__kv_seq a, b;
        int rc;

        make_two(&a, &b, 8 * SLAB);
        extend(&a, P + 3);
        cr_assert_eq(soq__kv_fork(&b, &a, NULL), 0);
        soq__kv_delivered(&cache);
        soq__alloc_fail_at(at, false);
        rc = soq__kv_prepare(&b, 1, NULL);
        soq__alloc_fail_at(0, false);
        soq__kv_abandon(&b);
        n_failed += rc != 0;
        if (rc)
            cr_expect_eq(cache.n_edits, 0, "allocation %llu: an edit is left", (unsigned long long)at);
        drop_two(&a, &b);
        if (!rc)
            break;
    }
    cr_expect_gt(n_failed, 0);
}

/* Sequences that come and go without a step leave nothing to tell the backend. */
Test(kv, edits_of_who_is_gone)
{
    struct soq__kv_seq a, b, c;
    uint32_t n;

    make_cache(0, 8 * SLAB, 64, 3, 64);
    soq__kv_seq_init(&a, &cache, NULL);
    soq__kv_seq_init(&c, &cache, NULL);
    extend(&a, 3 * P);
    extend(&c, 2 * P);
    n = cache.n_edits;
    cr_expect_eq(n, 5);
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(soq__kv_seq_init(&b, &cache, NULL), 0);
        cr_assert_eq(soq__kv_fork(&b, &a, NULL), 0);
        soq__kv_seq_done(&b);
    }
    cr_expect_eq(cache.n_edits, n, "%u edits", cache.n_edits);
    soq__kv_rollback(&a, 0, NULL);
    cr_assert_eq(cache.n_edits, 2);
    for (uint32_t i = 0; i < 2; i++) {
        cr_expect_eq(cache.edits[i].slot, c.slot);
        cr_expect_eq(cache.edits[i].index, i);
        cr_expect_eq(cache.edits[i].block, c.groups[0].table[i]);
    }
    soq__kv_seq_done(&a);
    soq__kv_seq_done(&c);
    drop_cache();
}

Test(kv, device_out_of_memory)
{
    struct soq__kv_seq a;
    struct soq_error err = SOQ_ERROR_INIT;

    make_cache(0, 8 * SLAB, 64, 1, 64);
    soq__kv_seq_init(&a, &cache, NULL);
    counts.fail_after = 1;
    cr_expect_eq(soq__kv_prepare(&a, 4 * P, &err), -SOQ_ENOMEM);
    cr_expect_eq(a.n_tentative, 0);
    counts.fail_after = -1;
    extend(&a, 4 * P);
    cr_expect_eq(a.n_committed, 4 * P);
    soq__kv_seq_done(&a);
    drop_cache();
}

Test(kv, slots_run_out)
{
    struct soq__kv_seq a, b;
    struct soq_error err = SOQ_ERROR_INIT;

    make_cache(0, 8 * SLAB, 64, 1, 64);
    cr_assert_eq(soq__kv_seq_init(&a, &cache, NULL), 0);
    cr_expect_eq(soq__kv_seq_init(&b, &cache, &err), -SOQ_EBUSY);
    cr_expect(strstr(err.text, "max_sequences"), "%s", err.text);
    soq__kv_seq_done(&a);
    cr_expect_eq(soq__kv_seq_init(&b, &cache, NULL), 0);
    soq__kv_seq_done(&b);
    drop_cache();
}

/* ---- Policies -------------------------------------------------------------------------------------------------------- */

static struct soq_kv_range answer[4];
static uint32_t n_answer;

static int scripted(void *self, void *state, const struct soq_kv_commit *commit, struct soq_kv_range *ranges, uint32_t *n_out,
                    struct soq_error *err)
{
    (void)self;
    (void)state;
    (void)err;
    (void)commit;
    memcpy(ranges, answer, sizeof answer);
    *n_out = n_answer;
    return 0;
}

static const struct soq_kv_policy_ops scripted_policy = {
    .struct_size = sizeof scripted_policy, .describe = keep_all, .on_commit = scripted};

Test(kv, policy_may_drop_only_what_nobody_sees)
{
    static const struct {
        struct soq_kv_range ranges[3];
        uint32_t n;
        const char *says; /* NULL: fine */
    } cases[] = {
        {{{0, 40}}, 1, NULL},
        {{{0, 4}, {24, 40}}, 2, NULL},
        {{{0, 4}, {25, 40}}, 2, NULL}, /* a row at 40 sees 25 .. 40 and the sinks */
        {{{0, 4}, {26, 40}}, 2, "[4, 26)"},
        {{{0, 3}, {24, 40}}, 2, "[3, 24)"},
        {{{24, 40}}, 1, "[0, 24)"},
        {{{0, 4}, {24, 39}}, 2, "[39, 40)"},
        {{{0, 4}, {5, 7}, {24, 40}}, 3, NULL}, /* keeping more than need be is fine */
        {{{0, 4}, {2, 40}}, 2, "ascending"},
        {{{0, 41}}, 1, "beyond"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct soq__kv_seq a;
        struct soq_error err = SOQ_ERROR_INIT;
        int rc;

        make_cache(0, 8 * SLAB, 64, 1, 64);
        cache.policies[0] = (struct soq__kv_policy){
            .ops = &scripted_policy, .name = "scripted", .view = i % 2, .plan = {.window = 16, .sinks = 4, .grid = 40}};
        groups[0].window = 16;
        groups[0].sinks = 4;
        memcpy(answer, cases[i].ranges, sizeof cases[i].ranges);
        n_answer = cases[i].n;
        soq__kv_seq_init(&a, &cache, NULL);
        soq__kv_prepare(&a, 40, NULL);
        rc = soq__kv_commit(&a, 40, &err);
        cr_expect_eq(rc, cases[i].says ? -SOQ_EINVAL : 0, "case %zu: %s", i, err.text);
        if (cases[i].says)
            cr_expect(strstr(err.text, cases[i].says) && strstr(err.text, i % 2 ? "[draft] policy" : "[kv] policy"),
                      "case %zu: %s", i, err.text);
        else if (cases[i].n >= 2) {
            struct soq_step_segment s[2];

            cr_expect_eq(a.groups[0].n_held, 3, "blocks 0, 3 and 4 stay");
            cr_assert_eq(soq__kv_segments(&a, a.n_committed + a.n_tentative, s, 2), 2);
            cr_expect_eq(s[0].first_entry, 0);
            cr_expect_eq(s[0].n_entries, 8);
            cr_expect_eq(s[1].first_entry, 24);
            cr_expect_eq(s[1].n_entries, 16);
        }
        soq__kv_seq_done(&a);
        drop_cache();
    }
}
