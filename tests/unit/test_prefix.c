/* The prefix index over a cache without a model: what is found, what is shared, what goes and what stays. */
#include <stdio.h>

#include "kv/prefix.h"
#include "tests/unit/kv_host.h"

#define CONTEXT 512u

static struct kv_host k;
static struct soq__prefix x;
static struct soq__prefix_root *root;
static int32_t tokens[CONTEXT];

static void begin(const struct kv_host_params *params, uint64_t limit, double ttl)
{
    struct soq__prefix_params p = {.limit = limit, .ttl = ttl};
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t i = 0; i < CONTEXT; i++)
        tokens[i] = (int32_t)(i * 7 % 100);
    kv_host_init(&k, params);
    cr_assert_eq(soq__prefix_init(&x, &k.cache, &p, &err), 0, "%s", err.text);
    cr_assert_eq(soq__prefix_enter(&x, NULL, 0, &root, &err), 0, "%s", err.text);
}

static void end(void)
{
    soq__prefix_leave(&x, root);
    soq__prefix_done(&x);
    cr_expect_eq(k.cache.budget.used, 0, "%llu bytes are left", (unsigned long long)k.cache.budget.used);
    kv_host_done(&k);
}

static const struct kv_host_params roomy = {.limit = 64 * SLAB, .context = CONTEXT, .slots = 4};
static const struct kv_host_params packing = {.limit = 64 * SLAB, .context = CONTEXT, .slots = 4, .packs = true};
static const struct kv_host_params windowed = {.limit = 64 * SLAB, .context = CONTEXT, .slots = 4, .window = 3 * P};

/* A sequence that computes n tokens, publishes and commits them. */
static void run(struct soq__kv_seq *seq, const int32_t *ids, uint32_t n, double now)
{
    uint32_t step = 2 * P + 3;

    if (!seq->cache)
        cr_assert_eq(soq__kv_seq_init(seq, &k.cache, NULL), 0);
    for (uint32_t to = seq->n_committed; to < n;) {
        to = to + step < n ? to + step : n;
        compute(seq, ids, to);
        soq__prefix_publish(&x, root, seq, ids, to, now);
        commit(seq);
    }
}

static void run_and_end(const int32_t *ids, uint32_t n, double now)
{
    struct soq__kv_seq seq = {0};

    run(&seq, ids, n, now);
    soq__kv_seq_done(&seq);
}

static uint32_t match(const int32_t *ids, uint32_t n, double now)
{
    return soq__prefix_match(&x, root, ids, n, now);
}

Test(prefix, what_was_computed_is_found)
{
    int64_t live = soq__alloc_live();
    struct soq__kv_seq seq = {0};
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&roomy, SLAB, 0);
    cr_expect_eq(match(tokens, CONTEXT, 1), 0);
    run_and_end(tokens, 5 * P + 3, 1);
    cr_expect_eq(x.stats.entries, 5, "the open block is not published");
    cr_expect_eq(match(tokens, CONTEXT, 1), 5 * P);
    cr_expect_eq(match(tokens, 3 * P + 1, 1), 3 * P, "no more than was asked for");
    tokens[2 * P + 1]++;
    cr_expect_eq(match(tokens, CONTEXT, 1), 2 * P, "a block with another token");
    tokens[2 * P + 1]--;
    cr_assert_eq(soq__kv_seq_init(&seq, &k.cache, NULL), 0);
    cr_assert_eq(match(tokens, 4 * P + 1, 1), 4 * P);
    cr_assert_eq(soq__prefix_take(&x, &seq, 4 * P, &err), 0, "%s", err.text);
    expect_contents(&seq, tokens, 4 * P);
    cr_expect_eq(soq__kv_seq_bytes(&seq), 4 * BLOCK);
    cr_expect_eq(k.cache.pools[0].n_used, 5, "nothing was copied");
    run(&seq, tokens, 9 * P, 2);
    expect_contents(&seq, tokens, 9 * P);
    cr_expect_eq(x.stats.entries, 9);
    cr_expect_eq(k.cache.pools[0].n_used, 10, "block 4 was computed again, beside the index's");
    soq__kv_seq_done(&seq);
    end();
    cr_expect_eq(soq__alloc_live(), live);
}

/* Packed blocks are there at multiples of the grid, and so are hits. */
Test(prefix, packed_blocks)
{
    struct soq__kv_seq seq = {0}, hit = {0};
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&packing, SLAB, 0);
    cr_assert_eq(soq__kv_seq_init(&seq, &k.cache, NULL), 0);
    for (uint32_t to = GRID; to <= 3 * GRID; to += GRID) {
        advance(&seq, tokens, to, 5);
        soq__prefix_publish(&x, root, &seq, tokens, to, 1);
        cr_expect_eq(x.stats.entries, to / P);
    }
    cr_expect_lt(x.stats.bytes, 6 * BLOCK);
    cr_expect_eq(k.cache.pools[0].n_used, 0);
    cr_expect_eq(k.cache.pools[1].n_used, 6, "nothing was copied");
    soq__kv_seq_done(&seq);
    cr_expect_eq(match(tokens, CONTEXT, 1), 6 * P);
    cr_expect_eq(match(tokens, 5 * P + 1, 1), 4 * P, "a whole number of grids");
    cr_expect_eq(match(tokens, P + 1, 1), 0);
    cr_assert_eq(soq__kv_seq_init(&hit, &k.cache, NULL), 0);
    cr_assert_eq(match(tokens, 5 * P, 1), 4 * P);
    cr_assert_eq(soq__prefix_take(&x, &hit, 4 * P, &err), 0, "%s", err.text);
    cr_expect_eq(hit.groups[0].n_packed, 4);
    expect_contents(&hit, tokens, 4 * P);
    advance(&hit, tokens, 7 * P, 3);
    expect_contents(&hit, tokens, 7 * P);
    soq__kv_seq_done(&hit);
    end();
}

/* Two continuations of one beginning, and one that begins otherwise with the same second block. */
Test(prefix, branches)
{
    int32_t other[CONTEXT], third[CONTEXT];

    begin(&roomy, SLAB, 0);
    memcpy(other, tokens, sizeof other);
    memcpy(third, tokens, sizeof third);
    for (uint32_t i = 2 * P; i < CONTEXT; i++)
        other[i] = tokens[i] + 1;
    third[0]++;
    run_and_end(tokens, 4 * P, 1);
    run_and_end(other, 4 * P, 1);
    cr_expect_eq(x.stats.entries, 6);
    run_and_end(third, 4 * P, 1);
    cr_expect_eq(x.stats.entries, 10, "the same tokens behind others are something else");
    cr_expect_eq(match(tokens, 4 * P, 1), 4 * P);
    cr_expect_eq(match(other, 4 * P, 1), 4 * P);
    cr_expect_eq(match(third, 4 * P, 1), 4 * P);
    end();
}

Test(prefix, one_salt_never_sees_anothers)
{
    struct soq__prefix_root *first = NULL, *again = NULL, *second = NULL, *none = NULL;

    begin(&roomy, SLAB, 0);
    cr_assert_eq(soq__prefix_enter(&x, "tenant", 6, &first, NULL), 0);
    cr_assert_eq(soq__prefix_enter(&x, "tenant", 6, &again, NULL), 0);
    cr_assert_eq(soq__prefix_enter(&x, "tenant", 7, &second, NULL), 0);
    cr_assert_eq(soq__prefix_enter(&x, "", 0, &none, NULL), 0);
    cr_expect_eq(first, again);
    cr_expect_neq(first, second);
    cr_expect_eq(none, root, "no salt is the empty one");
    run_and_end(tokens, 3 * P, 1);
    cr_expect_eq(soq__prefix_match(&x, first, tokens, 3 * P, 1), 0);
    cr_expect_eq(soq__prefix_match(&x, second, tokens, 3 * P, 1), 0);
    cr_expect_eq(soq__prefix_match(&x, none, tokens, 3 * P, 1), 3 * P);
    soq__prefix_leave(&x, first);
    soq__prefix_leave(&x, again);
    soq__prefix_leave(&x, second);
    soq__prefix_leave(&x, none);
    cr_expect_eq(soq__prefix_pin(&x, root, tokens, 3 * P), 3 * P);
    soq__prefix_leave(&x, NULL);
    end();
}

/* Another domain (model, codec, policy) hashes otherwise, the same one alike: in every process, on every machine. */
Test(prefix, hashes_are_stable)
{
    struct soq__hash h = soq__hash("soquete", 7), piecewise;
    struct soq__hasher hasher;
    char text[33];

    cr_assert(soq__hasher_init(&hasher));
    soq__hasher_add(&hasher, "soq", 3);
    soq__hasher_add(&hasher, "uete", 4);
    piecewise = soq__hasher_sum(&hasher);
    soq__hasher_done(&hasher);
    cr_expect(soq__hash_equal(&h, &piecewise));
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", h.bytes[i]);
    cr_expect_str_eq(text, "efc68909f1d2476f53bccb6f52dde43f");
}

/* Whoever takes a prefix over gets what the window still sees, and no more. */
Test(prefix, windows)
{
    struct soq__kv_seq a = {0}, b = {0};
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&windowed, SLAB, 0);
    run(&a, tokens, 10 * P, 1);
    cr_expect_eq(a.groups[1].n_held, 3, "%u", a.groups[1].n_held);
    cr_expect_eq(k.cache.pools[1].n_used, 10, "the index has what the window has left");
    cr_assert_eq(soq__kv_seq_init(&b, &k.cache, NULL), 0);
    cr_assert_eq(match(tokens, 7 * P, 2), 7 * P);
    cr_assert_eq(soq__prefix_take(&x, &b, 7 * P, &err), 0, "%s", err.text);
    expect_contents(&b, tokens, 7 * P);
    cr_expect_eq(b.groups[0].n_held, 7);
    cr_expect_eq(b.groups[1].n_held, 3);
    cr_expect_eq(b.groups[1].freed_to, 4 * P);
    run(&b, tokens, 12 * P, 2);
    expect_contents(&b, tokens, 12 * P);
    soq__kv_seq_done(&a);
    soq__kv_seq_done(&b);
    end();
}

/* The index has lost its entries; a running sequence brings back what it still holds. That serves where the window sees no more
 * than that, and is completed by the next one that has it all. */
Test(prefix, windows_that_were_left)
{
    struct soq__kv_seq a = {0}, b = {0};

    begin(&windowed, SLAB, 0);
    run(&a, tokens, 10 * P, 1);
    while (soq__prefix_give_way(&x))
        ;
    cr_expect_eq(k.cache.pools[1].n_used, 3);
    run(&a, tokens, 11 * P, 2);
    cr_expect_eq(x.stats.entries, 11);
    cr_expect_eq(match(tokens, 11 * P, 2), 11 * P);
    cr_expect_eq(match(tokens, 7 * P, 2), 0, "nobody holds what a row there sees");
    run(&b, tokens, 8 * P, 3);
    cr_expect_eq(match(tokens, 7 * P, 3), 7 * P);
    cr_expect_eq(x.stats.entries, 11);
    soq__kv_seq_done(&a);
    soq__kv_seq_done(&b);
    end();
}

/* ---- What goes ---------------------------------------------------------------------------------------------------------- */

Test(prefix, the_cap_counts_everything)
{
    uint64_t limit = 10 * BLOCK;
    int32_t other[CONTEXT];

    begin(&roomy, limit, 0);
    for (uint32_t i = 0; i < CONTEXT; i++)
        other[i] = tokens[i] + 1;
    run_and_end(tokens, 20 * P, 1);
    cr_expect_leq(x.stats.bytes, limit);
    cr_expect_eq(x.stats.entries, 9, "nine blocks and their entries, not ten: %llu", (unsigned long long)x.stats.entries);
    cr_expect_eq(k.cache.pools[0].n_used, 9);
    cr_expect_eq(match(tokens, 20 * P, 2), 9 * P, "the beginning is what stays of a chain that is too long");
    run_and_end(other, 4 * P, 3);
    cr_expect_leq(x.stats.bytes, limit);
    cr_expect_eq(match(other, 4 * P, 4), 4 * P);
    cr_expect_eq(match(tokens, 20 * P, 4), 5 * P, "what was used less recently made room, from its tail");
    cr_expect_eq(x.stats.evictions, 4);
    end();
}

Test(prefix, least_recently_used_first)
{
    int32_t other[CONTEXT];

    begin(&roomy, SLAB, 0);
    for (uint32_t i = 0; i < CONTEXT; i++)
        other[i] = tokens[i] + 1;
    run_and_end(tokens, 3 * P, 1);
    run_and_end(other, 3 * P, 2);
    cr_expect_eq(match(tokens, 2 * P, 3), 2 * P);
    cr_expect(soq__prefix_give_way(&x)); /* the third block of the first */
    cr_expect_eq(x.stats.entries, 5);
    cr_expect(soq__prefix_give_way(&x));
    cr_expect(soq__prefix_give_way(&x));
    cr_expect(soq__prefix_give_way(&x));
    cr_expect_eq(match(other, 3 * P, 3), 0);
    cr_expect_eq(match(tokens, 3 * P, 3), 2 * P);
    cr_expect(soq__prefix_give_way(&x));
    cr_expect(soq__prefix_give_way(&x));
    cr_expect(!soq__prefix_give_way(&x));
    cr_expect_eq(k.cache.budget.used, 0, "and the memory is free");
    end();
}

Test(prefix, time)
{
    begin(&roomy, SLAB, 10);
    run_and_end(tokens, 3 * P, 100);
    cr_expect_eq(match(tokens, P, 108), P, "refreshed by the hit");
    soq__prefix_expire(&x, 110);
    cr_expect_eq(x.stats.entries, 3);
    soq__prefix_expire(&x, 111);
    cr_expect_eq(x.stats.entries, 1);
    cr_expect_eq(match(tokens, 3 * P, 119), 0, "too late");
    end();
}

Test(prefix, pins)
{
    int32_t other[CONTEXT];

    begin(&roomy, SLAB, 10);
    for (uint32_t i = 0; i < CONTEXT; i++)
        other[i] = tokens[i] + 1;
    run_and_end(tokens, 4 * P, 1);
    run_and_end(other, 2 * P, 2);
    cr_expect_eq(soq__prefix_pin(&x, root, tokens, 2 * P + 1), 2 * P);
    cr_expect_eq(soq__prefix_pin(&x, root, tokens, P), P);
    cr_expect_eq(x.stats.pinned_bytes / BLOCK, 2);
    while (soq__prefix_give_way(&x))
        ;
    cr_expect_eq(x.stats.entries, 2);
    soq__prefix_expire(&x, 1000);
    cr_expect_eq(match(tokens, 4 * P, 1000), 2 * P);
    soq__prefix_unpin(&x, root, tokens, 2 * P);
    while (soq__prefix_give_way(&x))
        ;
    cr_expect_eq(x.stats.entries, 1, "the first block was pinned twice");
    soq__prefix_unpin(&x, root, tokens, P);
    cr_expect_eq(x.stats.pinned_bytes, 0);
    cr_expect(soq__prefix_give_way(&x));
    end();
}

/* ---- Promises ----------------------------------------------------------------------------------------------------------- */

/* Blocks of the window that the index keeps must not take what a running sequence was promised: random schedules in a pool that
 * is nearly full, with groups in pools of their own. */
Test(prefix, promises_are_kept)
{
    const struct kv_host_params tight = {.limit = 3 * SLAB, .context = 1u << 15, .slots = 3, .window = 3 * P};
    int32_t *ids = soq__alloc_array(1u << 15, sizeof *ids);
    uint32_t seed = 1, n_full = 0, n_hits = 0;

    begin(&tight, 2 * SLAB, 0);
    for (int round = 0; round < 60; round++) {
        struct soq__kv_seq seqs[3] = {{0}};
        uint32_t wanted[3] = {0};

        for (int i = 0; i < 3; i++) {
            seed = seed * 1664525u + 1013904223u;
            cr_assert_eq(soq__kv_seq_init(&seqs[i], &k.cache, NULL), 0);
            wanted[i] = 100 + seed / 7 % 2500;
        }
        for (uint32_t e = 0; e < 1u << 15; e++)
            ids[e] = e < 640 ? (int32_t)e : (int32_t)(e ^ (seed >> 20));
        for (int i = 0; i < 3; i++) {
            uint32_t hit = soq__prefix_match(&x, root, ids, wanted[i] - 1, round);
            int rc = 0;

            if (hit)
                cr_assert_eq(soq__prefix_take(&x, &seqs[i], hit, NULL), 0);
            n_hits += hit > 0;
            do {
                rc = soq__kv_reserve(&seqs[i], wanted[i], wanted[i], NULL);
            } while (rc == -SOQ_EBUSY && soq__prefix_give_way(&x));
            n_full += rc != 0;
            if (rc)
                wanted[i] = 0;
        }
        for (bool more = true; more;) {
            more = false;
            for (int i = 0; i < 3; i++) {
                uint32_t to = seqs[i].n_committed + 1 + seed % 90;

                if (seqs[i].n_committed >= wanted[i])
                    continue;
                seqs[i].n_tentative = 0;
                to = to < wanted[i] ? to : wanted[i];
                cr_assert_eq(soq__kv_prepare(&seqs[i], to - seqs[i].n_committed, NULL), 0, "a promise was broken");
                deliver(&k.cache);
                write_rows(&seqs[i], ids, seqs[i].n_committed, to);
                soq__prefix_publish(&x, root, &seqs[i], ids, to, round);
                commit(&seqs[i]);
                more = true;
            }
        }
        for (int i = 0; i < 3; i++) {
            if (wanted[i])
                expect_contents(&seqs[i], ids, wanted[i]);
            soq__kv_seq_done(&seqs[i]);
        }
        cr_assert_leq(x.stats.bytes, 2 * SLAB);
        cr_assert_leq(k.cache.budget.used, 3 * SLAB);
    }
    cr_expect_gt(n_hits, 50, "%u hits", n_hits);
    cr_expect_gt(x.stats.evictions, 100);
    cr_expect_lt(n_full, 120, "%u refusals", n_full);
    soq__free(ids);
    end();
}

/* Without memory the index is smaller, and nothing else happens. */
Test(prefix, allocations_fail)
{
    uint32_t n_short = 0;

    for (uint64_t at = 1; at < 20; at++) {
        struct soq__kv_seq seq = {0};

        begin(&windowed, SLAB, 0);
        cr_assert_eq(soq__kv_seq_init(&seq, &k.cache, NULL), 0);
        compute(&seq, tokens, 12 * P);
        soq__alloc_fail_at(at, true);
        soq__prefix_publish(&x, root, &seq, tokens, 12 * P, 1);
        soq__alloc_fail_at(0, false);
        commit(&seq);
        n_short += x.stats.entries < 12;
        cr_expect_eq(match(tokens, 12 * P, 1), x.stats.entries * P);
        soq__kv_seq_done(&seq);
        end();
    }
    cr_expect_eq(n_short, 12, "%u", n_short);
}
