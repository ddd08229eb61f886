/* Blocks out of the pool and back, and a sequence's cache as bytes: over a cache without a model, with one group on the host
 * and one on a device. */
#include "base/buf.h"
#include "base/error.h"
#include "kv/image.h"
#include "tests/unit/kv_host.h"

#define CONTEXT 512u
#define N (10 * P + 3)

static struct kv_host k;
static int32_t tokens[CONTEXT];
static const struct kv_host_params params = {
    .limit = 64 * SLAB, .swap = SLAB, .context = CONTEXT, .slots = 4, .window = 3 * P, .device = true};

static const struct kv_host_params packing = {
    .limit = 64 * SLAB, .swap = SLAB, .context = CONTEXT, .slots = 4, .window = 3 * P, .device = true, .packs = true};

static void begin_with(struct soq__kv_seq *seq, const struct kv_host_params *with, uint32_t n)
{
    for (uint32_t i = 0; i < CONTEXT; i++)
        tokens[i] = (int32_t)(i * 7 % 100);
    kv_host_init(&k, with);
    cr_assert_eq(soq__kv_seq_init(seq, &k.cache, NULL), 0);
    advance(seq, tokens, n, 19);
}

static void begin(struct soq__kv_seq *seq, uint32_t n)
{
    begin_with(seq, &params, n);
}

/* ---- Swapping ----------------------------------------------------------------------------------------------------------- */

Test(kv_swap, out_and_in)
{
    int64_t live = soq__alloc_live();
    struct soq__kv_seq seq;
    struct soq_error err = SOQ_ERROR_INIT;
    uint64_t bytes;

    begin(&seq, N);
    bytes = soq__kv_seq_bytes(&seq);
    cr_assert_eq(soq__kv_swap_out(&seq, &err), 0, "%s", err.text);
    cr_expect(soq__kv_is_out(&seq));
    cr_expect_eq(k.cache.budget.used, 0, "the pool's memory is free");
    cr_expect_eq(host_memory.n_buffers, 0);
    cr_expect_eq(soq__kv_seq_bytes(&seq), 0);
    cr_expect_geq(soq__kv_swap_bytes(&seq), bytes);
    cr_expect_eq(k.cache.swap.used, soq__kv_swap_bytes(&seq));
    cr_assert_eq(soq__kv_swap_in(&seq, &err), 0, "%s", err.text);
    expect_contents(&seq, tokens, N);
    cr_expect_eq(k.cache.swap.used, 0);
    cr_expect_eq(soq__kv_seq_bytes(&seq), bytes);
    cr_expect_eq(soq__kv_swap_in(&seq, &err), 0, "nothing to do");
    compute(&seq, tokens, N + 20);
    commit(&seq);
    expect_contents(&seq, tokens, N + 20);
    soq__kv_seq_done(&seq);
    kv_host_done(&k);
    cr_expect_eq(soq__alloc_live(), live);
}

Test(kv_swap, out_twice)
{
    int64_t live = soq__alloc_live();
    struct soq__kv_seq seq;
    struct soq_error err = SOQ_ERROR_INIT;
    uint64_t used;

    begin(&seq, N);
    cr_assert_eq(soq__kv_swap_out(&seq, &err), 0, "%s", err.text);
    used = k.cache.swap.used;
    cr_assert_eq(soq__kv_swap_out(&seq, &err), 0, "%s", err.text);
    cr_expect_eq(k.cache.swap.used, used);
    cr_expect_eq(k.cache.n_swapped_out, 1);
    cr_assert_eq(soq__kv_swap_in(&seq, &err), 0, "%s", err.text);
    expect_contents(&seq, tokens, N);
    soq__kv_seq_done(&seq);
    kv_host_done(&k);
    cr_expect_eq(soq__alloc_live(), live);
}

Test(kv_swap, rolled_back_while_out)
{
    struct soq__kv_seq seq;
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&seq, N);
    cr_assert_eq(soq__kv_swap_out(&seq, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_rollback(&seq, 10 * P - 1, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_swap_in(&seq, &err), 0, "%s", err.text);
    expect_contents(&seq, tokens, 10 * P - 1);
    cr_expect_eq(seq.groups[0].n_held, 10);
    cr_assert_eq(soq__kv_swap_out(&seq, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_rollback(&seq, 0, &err), 0, "%s", err.text);
    cr_expect(!soq__kv_is_out(&seq));
    cr_expect_eq(k.cache.swap.used, 0);
    cr_assert_eq(soq__kv_swap_out(&seq, &err), 0, "nothing is little");
    soq__kv_seq_done(&seq);
    cr_expect_eq(k.cache.swap.used, 0);
    kv_host_done(&k);
}

Test(kv_swap, packed_blocks)
{
    struct soq__kv_seq seq;
    struct soq_error err = SOQ_ERROR_INIT;
    uint64_t bytes;

    begin_with(&seq, &packing, N);
    cr_expect_eq(seq.groups[0].n_packed, 10);
    bytes = soq__kv_seq_bytes(&seq);
    cr_expect_eq(bytes, (10 + seq.groups[1].n_packed) * PACKED + 2 * BLOCK);
    cr_assert_eq(soq__kv_swap_out(&seq, &err), 0, "%s", err.text);
    cr_expect_eq(k.cache.budget.used, 0);
    cr_expect_leq(soq__kv_swap_bytes(&seq), bytes + 1024, "packed blocks stay packed");
    cr_assert_eq(soq__kv_swap_in(&seq, &err), 0, "%s", err.text);
    expect_contents(&seq, tokens, N);
    cr_expect_eq(soq__kv_seq_bytes(&seq), bytes);
    cr_assert_eq(soq__kv_swap_out(&seq, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_rollback(&seq, N - 1, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_swap_in(&seq, &err), 0, "%s", err.text);
    advance(&seq, tokens, N + 40, 7);
    expect_contents(&seq, tokens, N + 40);
    soq__kv_seq_done(&seq);
    kv_host_done(&k);
}

/* A block whose copy from the one it was split from has not been delivered yet. */
Test(kv_swap, contents_that_are_still_to_be_copied)
{
    struct soq__kv_seq a, b;
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&a, N);
    cr_assert_eq(soq__kv_seq_init(&b, &k.cache, NULL), 0);
    cr_assert_eq(soq__kv_fork(&b, &a, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_prepare(&b, 1, &err), 0, "%s", err.text);
    cr_assert_eq(k.cache.n_copies, 2);
    soq__kv_abandon(&b);
    cr_assert_eq(soq__kv_swap_out(&b, &err), 0, "%s", err.text);
    cr_expect_eq(k.cache.n_copies, 0, "nobody wants them any more");
    deliver(&k.cache);
    cr_assert_eq(soq__kv_swap_in(&b, &err), 0, "%s", err.text);
    expect_contents(&b, tokens, N);
    expect_contents(&a, tokens, N);
    soq__kv_seq_done(&a);
    soq__kv_seq_done(&b);
    kv_host_done(&k);
}

Test(kv_swap, limits_are_hard)
{
    struct soq__kv_seq seq;
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&seq, N);
    k.cache.swap.limit = 12 * BLOCK;
    cr_expect_eq(soq__kv_swap_out(&seq, &err), -SOQ_ELIMIT);
    cr_expect(strstr(err.text, "[kv] swap_memory"), "%s", err.text);
    expect_contents(&seq, tokens, N);
    k.cache.swap.limit = 16 * BLOCK;
    cr_expect_eq(soq__kv_swap_out(&seq, &err), 0, "%s", err.text);
    cr_expect_leq(k.cache.swap.peak, k.cache.swap.limit);
    soq__kv_seq_done(&seq);
    kv_host_done(&k);
}

Test(kv_swap, devices_fail)
{
    struct soq__kv_seq seq;
    uint32_t n_failed = 0;

    begin(&seq, N);
    for (int at = 0; at < 4; at++) {
        host_memory.fail_read = at;
        n_failed += soq__kv_swap_out(&seq, NULL) != 0;
        host_memory.fail_read = -1;
        if (!soq__kv_is_out(&seq)) {
            expect_contents(&seq, tokens, N);
            cr_assert_eq(soq__kv_swap_out(&seq, NULL), 0);
        }
        for (int write = 0; write < 16; write++) {
            host_memory.fail_write = write;
            if (!soq__kv_swap_in(&seq, NULL))
                break;
            n_failed++;
            cr_assert(soq__kv_is_out(&seq));
            cr_assert_eq(k.cache.budget.used, 0);
        }
        host_memory.fail_write = -1;
        cr_assert_eq(soq__kv_swap_in(&seq, NULL), 0);
        expect_contents(&seq, tokens, N);
    }
    cr_expect_eq(n_failed, 4 + 4 * 15, "%u", n_failed);
    soq__kv_seq_done(&seq);
    kv_host_done(&k);
}

Test(kv_swap, allocations_fail)
{
    struct soq__kv_seq seq;
    uint32_t n_failed = 0;

    begin(&seq, N);
    for (uint64_t at = 1; at < 8; at++) {
        soq__alloc_fail_at(at, true);
        n_failed += soq__kv_swap_out(&seq, NULL) != 0;
        soq__alloc_fail_at(0, false);
        if (!soq__kv_is_out(&seq)) {
            expect_contents(&seq, tokens, N);
            cr_assert_eq(soq__kv_swap_out(&seq, NULL), 0);
        }
        soq__alloc_fail_at(at, true);
        n_failed += soq__kv_swap_in(&seq, NULL) != 0;
        soq__alloc_fail_at(0, false);
        cr_assert_eq(soq__kv_swap_in(&seq, NULL), 0);
        expect_contents(&seq, tokens, N);
    }
    cr_expect_geq(n_failed, 1);
    soq__kv_seq_done(&seq);
    kv_host_done(&k);
}

/* ---- Images ------------------------------------------------------------------------------------------------------------- */

static int put(void *arg, const void *data, size_t n, struct soq_error *err)
{
    soq__buf_append(arg, data, n);
    return soq__buf_ok(arg) ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory");
}

static int load(struct soq__kv_seq *seq, const void *data, size_t n, struct soq_error *err)
{
    int rc = soq__kv_image_load(seq, data, n, err);

    return rc ? rc : soq__kv_swap_in(seq, err);
}

/* As after a selection that left 17 entries of the first group, with sums of mass. */
static void pretend_selection(struct soq__kv_seq *seq)
{
    struct soq__kv_seq_group *sg = &seq->groups[0];

    k.cache.groups[0].selects = k.cache.groups[0].weighs = true;
    sg->base = N - 17;
    sg->n_selected = N;
    soq__kv_drop_blocks(seq, 0, 0, sg->base / P);
    sg->positions = soq__alloc_array(17, sizeof *sg->positions);
    sg->mass_cap = CONTEXT;
    sg->mass_from = 5;
    sg->mass = soq__alloc_zero(CONTEXT, sizeof *sg->mass);
    for (uint32_t i = 0; i < 17; i++) {
        sg->positions[i] = 3 * i;
        sg->mass[sg->base + i] = 1000 + i;
    }
}

Test(kv_image, there_and_back)
{
    int64_t live = soq__alloc_live();
    struct soq_buf image = SOQ_BUF_INIT;
    struct soq__kv_seq a, b;
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&a, N);
    for (int selected = 0; selected < 2; selected++) {
        for (int out = 0; out < 2; out++) {
            soq__buf_clear(&image);
            if (out)
                cr_assert_eq(soq__kv_swap_out(&a, &err), 0);
            cr_assert_eq(soq__kv_image_save(&a, put, &image, &err), 0, "%s", err.text);
            cr_assert_eq(soq__kv_swap_in(&a, &err), 0);
            cr_assert_eq(soq__kv_seq_init(&b, &k.cache, NULL), 0);
            cr_assert_eq(load(&b, image.data, image.len, &err), 0, "%s", err.text);
            cr_expect_eq(b.n_prompt, N);
            cr_expect_eq(b.groups[0].n_held, a.groups[0].n_held);
            cr_expect_eq(b.groups[1].n_held, a.groups[1].n_held);
            cr_expect_eq(b.groups[1].freed_to, a.groups[1].freed_to);
            if (selected) {
                cr_expect_eq(b.groups[0].base, N - 17);
                cr_expect_eq(b.groups[0].n_selected, N);
                cr_expect_eq(b.groups[0].mass_from, 5);
                for (uint32_t i = 0; i < 17; i++) {
                    cr_expect_eq(soq__kv_position(&b, 0, 0, 0, N - 17 + i), 3 * i);
                    cr_expect_eq(b.groups[0].mass[N - 17 + i], 1000 + i);
                }
            } else {
                expect_contents(&b, tokens, N);
            }
            cr_expect_eq(k.cache.swap.used, 0);
            soq__kv_seq_done(&b);
        }
        if (!selected)
            pretend_selection(&a);
    }
    soq__kv_seq_done(&a);
    soq__buf_done(&image);
    kv_host_done(&k);
    cr_expect_eq(soq__alloc_live(), live);
}

Test(kv_image, packed_blocks)
{
    struct soq_buf image = SOQ_BUF_INIT;
    struct soq__kv_seq a, b;
    struct soq_error err = SOQ_ERROR_INIT;

    begin_with(&a, &packing, N);
    cr_assert_eq(soq__kv_image_save(&a, put, &image, &err), 0, "%s", err.text);
    cr_expect_lt(image.len, soq__kv_seq_bytes(&a) + 1024);
    cr_assert_eq(soq__kv_seq_init(&b, &k.cache, NULL), 0);
    cr_assert_eq(load(&b, image.data, image.len, &err), 0, "%s", err.text);
    expect_contents(&b, tokens, N);
    cr_expect_eq(b.groups[0].n_packed, 10);
    cr_expect_eq(soq__kv_seq_bytes(&b), soq__kv_seq_bytes(&a));
    advance(&b, tokens, N + 40, 7);
    expect_contents(&b, tokens, N + 40);
    for (size_t n = image.len - 64; n < image.len; n++) {
        soq__kv_empty(&b);
        cr_assert_eq(load(&b, image.data, n, &err), -SOQ_ECORRUPT);
    }
    soq__kv_seq_done(&a);
    soq__kv_seq_done(&b);
    soq__buf_done(&image);
    kv_host_done(&k);
}

/* Cut anywhere, and with any number of it changed, an image is refused or is one of a sequence that can be used; a refused one
 * changes nothing. */
Test(kv_image, broken_ones)
{
    struct soq_buf image = SOQ_BUF_INIT;
    struct soq__kv_seq a, b;
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t n_refused = 0;
    uint64_t used;
    int64_t live;

    begin(&a, N);
    pretend_selection(&a);
    cr_assert_eq(soq__kv_image_save(&a, put, &image, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_seq_init(&b, &k.cache, NULL), 0);
    used = k.cache.budget.used;
    live = soq__alloc_live();
    for (size_t n = 0; n < image.len; n += n < 2000 ? 1 : 997) {
        err = (struct soq_error)SOQ_ERROR_INIT;
        cr_assert_eq(load(&b, image.data, n, &err), -SOQ_ECORRUPT, "%zu bytes: %s", n, err.text);
        cr_assert_eq(b.n_committed, 0);
        cr_assert_eq(k.cache.budget.used, used);
        cr_assert_eq(soq__alloc_live(), live);
    }
    for (size_t at = 0; at < 200; at++)
        for (int bit = 0; bit < 8; bit++) {
            image.data[at] = (char)(image.data[at] ^ 1 << bit);
            if (load(&b, image.data, image.len, &err)) {
                n_refused++;
                cr_assert_eq(b.n_committed, 0);
                cr_assert_eq(soq__alloc_live(), live);
            } else {
                struct soq_step_segment segments[8];

                cr_assert_gt(soq__kv_segments(&b, b.n_committed + b.n_tentative, segments, 8), 0);
                soq__kv_empty(&b);
            }
            image.data[at] = (char)(image.data[at] ^ 1 << bit);
            cr_assert_eq(k.cache.budget.used, used);
        }
    cr_expect_gt(n_refused, 500, "%u", n_refused);
    cr_expect_eq(load(&b, image.data, image.len, &err), 0, "%s", err.text);
    soq__kv_seq_done(&a);
    soq__kv_seq_done(&b);
    soq__buf_done(&image);
    kv_host_done(&k);
}

Test(kv_image, allocations_fail)
{
    struct soq_buf image = SOQ_BUF_INIT;
    struct soq__kv_seq a, b;
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t n_failed = 0;

    begin(&a, N);
    pretend_selection(&a);
    cr_assert_eq(soq__kv_image_save(&a, put, &image, &err), 0, "%s", err.text);
    cr_assert_eq(soq__kv_seq_init(&b, &k.cache, NULL), 0);
    for (uint64_t at = 1; at < 12; at++) {
        int64_t live = soq__alloc_live();
        int rc;

        soq__alloc_fail_at(at, true);
        rc = load(&b, image.data, image.len, NULL);
        soq__alloc_fail_at(0, false);
        n_failed += rc != 0;
        cr_expect(rc == 0 || rc == -SOQ_ENOMEM, "%d", rc);
        soq__kv_empty(&b);
        cr_expect_eq(soq__alloc_live(), live);
    }
    cr_expect_geq(n_failed, 3);
    soq__alloc_fail_at(1, false);
    cr_expect_eq(soq__kv_image_save(&a, put, &image, &err), -SOQ_ENOMEM);
    soq__alloc_fail_at(0, false);
    soq__kv_seq_done(&a);
    soq__kv_seq_done(&b);
    soq__buf_done(&image);
    kv_host_done(&k);
}
