/* Packing over a cache without a model: when blocks are packed, what that costs, how far back a sequence can go afterwards, and
 * what happens when something fails. Contents under policies: test_kv_schedules. */
#include "base/error.h"
#include "kv/promise.h"
#include "tests/unit/kv_host.h"

#define CONTEXT 256u

static struct kv_host k;
static int32_t tokens[CONTEXT];

static const struct kv_host_params roomy = {.limit = 64 * SLAB, .context = CONTEXT, .slots = 4, .packs = true};
static const struct kv_host_params holding_back = {
    .limit = 64 * SLAB, .context = CONTEXT, .slots = 4, .packs = true, .residual = 3 * P};
static const struct kv_host_params windowed = {
    .limit = 64 * SLAB, .context = CONTEXT, .slots = 4, .packs = true, .window = 3 * P, .residual = P};

static void begin(struct soq__kv_seq *seq, const struct kv_host_params *params)
{
    for (uint32_t i = 0; i < CONTEXT; i++)
        tokens[i] = (int32_t)(i * 7 % 100);
    kv_host_init(&k, params);
    cr_assert_eq(soq__kv_seq_init(seq, &k.cache, NULL), 0);
}

static void end(struct soq__kv_seq *seq)
{
    soq__kv_seq_done(seq);
    kv_host_done(&k);
}

/* What the forecast says of a prompt of n tokens is what is held behind it, and nothing on the way is beyond the peak. */
static void expect_forecast(const struct kv_host_params *params, uint32_t n, uint32_t step)
{
    struct soq__kv_need need[4];
    struct soq__kv_seq seq;
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&seq, params);
    cr_assert_eq(soq__kv_reserve(&seq, n, n, &err), 0, "%s", err.text);
    for (uint32_t i = 0; i < k.cache.n_pools; i++) {
        const struct soq__kv_need_params p = {
            .layout = &k.layout, .policies = &k.policy, .chunk = CONTEXT, .n_prompt = n, .n_entries = n};

        soq__kv_need(&p, i, &need[i]);
    }
    while (seq.n_committed < n) {
        uint32_t to = seq.n_committed + step < n ? seq.n_committed + step : n;

        advance(&seq, tokens, to, step);
        for (uint32_t i = 0; i < k.cache.n_pools; i++)
            cr_assert_leq(seq.pools[i].held, soq__kv_need_peak(&need[i]), "pool %u at %u", i, to);
    }
    expect_contents(&seq, tokens, n);
    for (uint32_t i = 0; i < k.cache.n_pools; i++)
        if (params->window)
            cr_assert_leq(seq.pools[i].held, need[i].prompt, "pool %u at %u", i, n);
        else
            cr_assert_eq(seq.pools[i].held, need[i].prompt, "pool %u at %u: %u, not %u", i, n, seq.pools[i].held,
                         need[i].prompt);
    end(&seq);
}

Test(kv_pack, forecasts_are_exact)
{
    for (uint32_t n = 1; n <= 100; n++) {
        expect_forecast(&roomy, n, 1 + n % 23);
        expect_forecast(&holding_back, n, 1 + n % 23);
        expect_forecast(&windowed, n, 1 + n % 23);
    }
}

Test(kv_pack, at_multiples_of_the_grid)
{
    struct soq__kv_seq seq;

    begin(&seq, &roomy);
    seq.n_prompt = CONTEXT;
    cr_expect_eq(soq__kv_max_rows(&seq), GRID, "in a prompt, too");
    for (uint32_t n = 1; n < 6 * GRID; n++) {
        advance(&seq, tokens, n, 1);
        cr_assert_eq(seq.groups[0].n_packed, n / GRID * 2);
        cr_assert_eq(soq__kv_seq_bytes(&seq), n / GRID * 2 * PACKED + (n % GRID + P - 1) / P * BLOCK);
        cr_assert_eq(soq__kv_max_rows(&seq), GRID - n % GRID);
    }
    cr_expect_eq(host_memory.n_packed, 10, "each once");
    expect_contents(&seq, tokens, 6 * GRID - 1);
    end(&seq);
    begin(&seq, &holding_back);
    for (uint32_t n = 1; n < 6 * GRID; n++) {
        advance(&seq, tokens, n, 3);
        cr_assert_eq(seq.groups[0].n_packed, n < 2 * GRID ? 0 : n / GRID * 2 - 3);
    }
    end(&seq);
}

Test(kv_pack, going_back)
{
    static const struct {
        const struct kv_host_params *params;
        uint32_t from, wanted, point;
    } cases[] = {
        {&roomy, 5 * GRID + 3, 5 * GRID + 1, 5 * GRID + 1}, /* nothing packed since */
        {&roomy, 5 * GRID + 3, 5 * GRID, 5 * GRID},
        {&roomy, 5 * GRID + 3, 5 * GRID - 1, 4 * GRID}, /* its block is packed: all of its grid goes */
        {&roomy, 5 * GRID + 3, GRID + P, GRID},
        {&roomy, 5 * GRID + 3, GRID - 1, 0},
        {&roomy, GRID - 1, 3, 3},
        {&holding_back, 5 * GRID + 3, 5 * GRID, 5 * GRID},
        {&holding_back, 5 * GRID + 3, 5 * GRID - 1, 0},    /* a row there sees plain what is packed now */
        {&holding_back, 2 * GRID - 1, GRID - 3, GRID - 3}, /* nothing is packed yet */
        {&holding_back, 2 * GRID, GRID, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct soq__kv_seq seq;
        struct soq_error err = SOQ_ERROR_INIT;

        begin(&seq, cases[i].params);
        advance(&seq, tokens, cases[i].from, 9);
        cr_expect_eq(soq__kv_rollback_point(&seq, cases[i].wanted), cases[i].point, "case %zu", i);
        if (cases[i].point != cases[i].wanted) {
            cr_expect_eq(soq__kv_rollback(&seq, cases[i].wanted, &err), -SOQ_EINVAL);
            cr_expect(strstr(err.text, "packed"), "%s", err.text);
        }
        cr_assert_eq(soq__kv_rollback(&seq, cases[i].point, &err), 0, "%s", err.text);
        expect_contents(&seq, tokens, cases[i].point);
        for (uint32_t t = cases[i].point; t < CONTEXT; t++)
            tokens[t] += 1000;
        advance(&seq, tokens, 6 * GRID, 9);
        expect_contents(&seq, tokens, 6 * GRID);
        end(&seq);
    }
}

/* What two share plain each packs for itself. */
Test(kv_pack, forks)
{
    struct soq__kv_seq a, b;
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&a, &roomy);
    advance(&a, tokens, 2 * GRID + P + 3, 9);
    cr_assert_eq(soq__kv_seq_init(&b, &k.cache, NULL), 0);
    cr_assert_eq(soq__kv_fork(&b, &a, &err), 0, "%s", err.text);
    cr_expect_eq(k.cache.pools[0].n_used, 2);
    cr_expect_eq(k.cache.pools[1].n_used, 4);
    advance(&b, tokens, 3 * GRID, 2);
    cr_expect_eq(k.cache.pools[0].n_used, 2, "a's");
    cr_expect_eq(k.cache.pools[1].n_used, 6);
    advance(&a, tokens, 3 * GRID + 1, 2);
    cr_expect_eq(k.cache.pools[0].n_used, 1);
    cr_expect_eq(k.cache.pools[1].n_used, 8);
    expect_contents(&a, tokens, 3 * GRID + 1);
    expect_contents(&b, tokens, 3 * GRID);
    soq__kv_seq_done(&b);
    end(&a);
}

Test(kv_pack, the_backend_fails)
{
    struct soq__kv_seq seq;
    struct soq_error err = SOQ_ERROR_INIT;

    begin(&seq, &windowed);
    advance(&seq, tokens, 3 * GRID - 1, 9);
    compute(&seq, tokens, 3 * GRID);
    host_memory.fail_pack = true;
    cr_expect_eq(soq__kv_commit(&seq, 1, &err), -SOQ_EDEVICE);
    cr_expect(strstr(err.text, "packing blocks was broken off, and the sequence is empty now"), "%s", err.text);
    host_memory.fail_pack = false;
    cr_expect_eq(seq.n_committed, 0);
    cr_expect_eq(k.cache.budget.used, 0);
    advance(&seq, tokens, 4 * GRID, 9);
    expect_contents(&seq, tokens, 4 * GRID);
    end(&seq);
}

Test(kv_pack, allocations_fail)
{
    uint32_t n_failed = 0;

    for (uint64_t at = 1; at < 12; at++) {
        int64_t live = soq__alloc_live();
        struct soq__kv_seq seq;
        int rc;

        begin(&seq, &roomy);
        advance(&seq, tokens, GRID - 1, 9);
        compute(&seq, tokens, GRID);
        soq__alloc_fail_at(at, true);
        rc = soq__kv_commit(&seq, 1, NULL);
        soq__alloc_fail_at(0, false);
        n_failed += rc != 0;
        cr_expect(rc == 0 || rc == -SOQ_ENOMEM, "%d", rc);
        advance(&seq, tokens, 3 * GRID, 9);
        expect_contents(&seq, tokens, 3 * GRID);
        end(&seq);
        cr_expect_eq(soq__alloc_live(), live);
    }
    cr_expect_leq(n_failed, 3);
}
