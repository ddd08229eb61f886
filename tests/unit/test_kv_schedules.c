/* The cache against a model of itself: sequences come and go, fork, go back, are swapped out and in, take part in steps that
 * succeed or fail, in random order, under policies that keep everything, that mask and that select, and codecs that pack or do
 * not, over a backend that holds one number per entry. At any time each layer and head of a sequence finds in its blocks what
 * was written at the positions that it should hold, packed where its length says so and plain elsewhere, sums of attention mass
 * are those of the rows so far, promises are kept, and every reference is accounted for. */
#include "tests/unit/kv_schedule_rules.h"

/* ---- A step -------------------------------------------------------------------------------------------------------------- */

static uint32_t next_value;

static void deliver(void)
{
    for (uint32_t i = 0; i < cache.n_edits; i++)
        tables[cache.edits[i].slot][cache.edits[i].group][cache.edits[i].index] = cache.edits[i].block;
    for (uint32_t i = 0; i < cache.n_copies; i++) {
        const struct soq_step_copy *c = &cache.copies[i];
        struct entry(*src)[P] = block_of(c->group, c->src), (*dst)[P] = block_of(c->group, c->dst);

        cr_assert_eq((c->src | c->dst) >> SOQ_BLOCK_CLASS_SHIFT, 0, "who writes to a packed block?");
        for (uint32_t line = 0; line < N_LINES; line++)
            memcpy(dst[line], src[line], c->n_tokens * sizeof(struct entry));
    }
}

static void write_row(struct actor *a, uint32_t e, uint32_t value)
{
    a->values[e] = value;
    for (uint32_t g = 0; g < cache.n_groups; g++) {
        soq_block_ref block = tables[a->seq.slot][g][e / P];

        cr_assert_eq(block >> SOQ_BLOCK_CLASS_SHIFT, 0, "a row goes to a packed block");
        for (uint32_t line = 0; line < layout.groups[g].n_layers * layout.groups[g].n_heads; line++)
            block_of(g, block)[line][e % P] = (struct entry){value, e, false};
    }
}

/* Adds what a row gives to each entry of its segment to the line. */
static void weigh_row(const struct actor *a, uint32_t row, uint32_t line)
{
    for (uint32_t g = 0; g < cache.n_groups; g++) {
        const struct soq__kv_group_layout *gl = &layout.groups[g];
        uint32_t heads = gl->n_heads;

        for (uint32_t i = 0; cache.groups[g].weighs && i < gl->n_layers * heads; i++) {
            uint64_t *mass = (uint64_t *)(uintptr_t)cache.groups[g].mass.buffer +
                             soq__kv_mass_offset(&cache, g, i / heads) / sizeof *mass +
                             (size_t)((line - 1) * heads + i % heads) * cache.mass_stride;

            for (uint32_t e = a->seq.groups[g].base; e < a->seq.n_committed + a->rows; e++)
                mass[e] += given(row, e <= row ? block_of(g, tables[a->seq.slot][g][e / P])[i][e % P].position : CONTEXT);
        }
    }
}

/* Lines begin with garbage, which the backend overwrites for the entries of the line's sequence. */
static void clear_lines(void)
{
    for (uint32_t g = 0; g < cache.n_groups; g++)
        if (cache.groups[g].weighs && cache.groups[g].mass.buffer)
            memset((void *)(uintptr_t)cache.groups[g].mass.buffer, 0, cache.groups[g].mass.bytes);
}

static void compute(bool right)
{
    uint32_t lines[N_SEQS][CHUNK], n_lines = 0;
    struct soq_error err = SOQ_ERROR_INIT;

    for (int i = 0; i < N_SEQS; i++)
        for (uint32_t r = 0; r < actors[i].rows; r++)
            lines[i][r] = soq__kv_mass_line(&actors[i].seq, r, &n_lines);
    cr_assert_eq(soq__kv_mass_begin(&cache, n_lines, CONTEXT, &err), 0, "%s", err.text);
    clear_lines();
    for (int i = 0; i < N_SEQS; i++) {
        uint32_t first = actors[i].seq.n_committed;

        if (actors[i].rows && layout.grid) /* so what a row sees packed depends on its position alone */
            cr_assert_eq(first / GRID, (first + actors[i].rows - 1) / GRID);
        for (uint32_t r = 0; r < actors[i].rows; r++)
            write_row(&actors[i], first + r, right ? ++next_value : 0xdead);
        for (uint32_t r = 0; r < actors[i].rows; r++)
            if (lines[i][r])
                weigh_row(&actors[i], first + r, lines[i][r]);
    }
}

/* The model of what a commit does before policies are asked. */
static void extend_model(struct actor *a, uint32_t n)
{
    uint32_t first = a->seq.n_committed;

    for (uint32_t l = 1; l < N_LAYERS; l += 2)
        for (uint32_t h = 0; h < N_HEADS; h++)
            for (uint32_t e = first; e < first + n; e++)
                a->held[l][h].positions[a->held[l][h].n++] = e;
    for (uint32_t e = first; e < first + n; e++) {
        uint32_t left = e < a->seq.n_prompt ? a->seq.n_prompt - e : EVERY - e % EVERY;

        if (left <= QUERIES && a->sums_from == CONTEXT)
            a->sums_from = e;
    }
}

static void clear_model(struct actor *a)
{
    memset(a->held, 0, sizeof a->held);
    a->sums_from = CONTEXT;
}

static void commit(struct actor *a)
{
    bool decodes = a->seq.n_committed >= a->seq.n_prompt;
    uint32_t n = decodes && !roll(8) ? a->rows - 1 : a->rows, before = a->seq.n_committed, now = before + n;
    bool due = n && (now == a->seq.n_prompt || (now > a->seq.n_prompt && now % EVERY == 0));
    struct actor saved = *a;
    struct soq_error err = SOQ_ERROR_INIT;
    int rc;

    extend_model(a, n);
    committing = a;
    select_fails = !roll(16);
    gather_fails = !roll(32);
    pack_fails = !roll(32);
    rc = soq__kv_commit(&a->seq, n, &err);
    if (!rc && due)
        a->sums_from = CONTEXT;
    if (rc && strstr(err.text, "no selection today")) { /* nothing has happened */
        cr_assert(select_fails);
        cr_assert_eq(a->seq.n_committed, before);
        memcpy(a->held, saved.held, sizeof a->held);
        a->sums_from = saved.sums_from;
        soq__kv_abandon(&a->seq);
    } else if (rc) {
        cr_assert((gather_fails && strstr(err.text, "no gather today")) || (pack_fails && strstr(err.text, "no packing today")),
                  "%s", err.text);
        cr_assert_eq(a->seq.n_committed, 0);
        clear_model(a);
    }
    select_fails = gather_fails = pack_fails = false;
    if (rc) {
        soq__kv_unreserve(&a->seq);
        a->promised = 0;
    }
}

static void take_step(void)
{
    uint32_t outcome = roll(4); /* 0: it fails before anything arrives, 1: after everything did */
    struct soq_error err = SOQ_ERROR_INIT;

    for (int i = 0; i < N_SEQS; i++) {
        struct actor *a = &actors[i];
        uint32_t left = a->there && a->promised > a->seq.n_committed ? a->promised - a->seq.n_committed : 0;

        if (left && left > soq__kv_max_rows(&a->seq))
            left = soq__kv_max_rows(&a->seq);
        a->rows = left && roll(3) ? 1 + roll(left < CHUNK ? left : CHUNK) : 0;
        if (a->rows) /* what was promised is there */
            cr_assert_eq(soq__kv_prepare(&a->seq, a->rows, &err), 0, "%s", err.text);
    }
    check_counts();
    if (outcome) {
        deliver();
        compute(outcome > 1);
    }
    if (outcome > 1)
        soq__kv_delivered(&cache);
    for (int i = 0; i < N_SEQS; i++)
        if (outcome < 2 && actors[i].rows)
            soq__kv_abandon(&actors[i].seq);
        else if (actors[i].rows)
            commit(&actors[i]);
    if (outcome > 1) /* what selections moved the backend learns with the next step */
        deliver();
    for (int i = 0; outcome > 1 && i < N_SEQS; i++)
        if (actors[i].rows)
            check_contents(&actors[i]);
}

/* ---- Everything else ----------------------------------------------------------------------------------------------------- */

static void fork_to(struct actor *to, const struct actor *from)
{
    struct soq_error err = SOQ_ERROR_INIT;
    int rc;

    cr_assert_eq(soq__kv_seq_init(&to->seq, &cache, &err), 0, "%s", err.text);
    rc = soq__kv_fork(&to->seq, &from->seq, &err);
    cr_assert(rc == 0 || rc == -SOQ_EBUSY, "%s", err.text);
    to->there = true;
    to->promised = to->rows = 0;
    memcpy(to->values, from->values, sizeof to->values);
    memcpy(to->held, from->held, sizeof to->held);
    to->sums_from = from->sums_from;
    if (rc)
        clear_model(to);
}

/* Back to some length, or to what is possible below it. */
static void go_back(struct actor *a)
{
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t wanted = roll(a->seq.n_committed + 1), point = soq__kv_rollback_point(&a->seq, wanted);

    cr_assert_leq(point, wanted);
    if (wanted && point != wanted)
        cr_assert_eq(soq__kv_rollback(&a->seq, wanted, &err), -SOQ_EINVAL);
    if (point == a->seq.n_committed)
        return;
    cr_assert_eq(soq__kv_rollback(&a->seq, point, &err), 0, "%s", err.text);
    for (uint32_t l = 1; l < N_LAYERS; l += 2)
        for (uint32_t h = 0; h < N_HEADS; h++)
            while (a->held[l][h].n && (!point || a->held[l][h].positions[a->held[l][h].n - 1] >= point))
                a->held[l][h].n--;
    a->sums_from = CONTEXT;
}

/* As for a job that is preempted, and its return between requests. */
static void swap(struct actor *a)
{
    struct soq_error err = SOQ_ERROR_INIT;
    int rc;

    if (!soq__kv_is_out(&a->seq)) {
        rc = soq__kv_swap_out(&a->seq, &err);
        cr_assert(rc == 0 || rc == -SOQ_ELIMIT, "%s", err.text);
        if (rc)
            return;
        soq__kv_unreserve(&a->seq);
        a->promised = 0;
    } else if (soq__kv_reserve(&a->seq, a->seq.n_prompt, a->seq.n_committed, NULL) == 0) {
        cr_assert_eq(soq__kv_swap_in(&a->seq, &err), 0, "%s", err.text);
        soq__kv_unreserve(&a->seq);
        deliver();
        check_contents(a);
    }
}

/* A request ends, its session goes back somewhere, the next request begins. */
static void next_request(struct actor *a)
{
    uint32_t left, n_prompt, n;

    soq__kv_unreserve(&a->seq);
    a->promised = 0;
    if (roll(2))
        go_back(a);
    left = CONTEXT - a->seq.n_committed;
    if (!left)
        return;
    n_prompt = a->seq.n_committed + 1 + roll(left);
    n = n_prompt + roll(CONTEXT - n_prompt + 1);
    if (soq__kv_reserve(&a->seq, n_prompt, n, NULL))
        return;
    cr_assert_eq(soq__kv_swap_in(&a->seq, NULL), 0, "what was promised is there");
    a->promised = n;
    if (a->sums_from + QUERIES < n_prompt)
        a->sums_from = CONTEXT;
}

static void act(struct actor *a, struct actor *other)
{
    struct soq_error err = SOQ_ERROR_INIT;

    switch (roll(10)) {
    case 0:
        if (a->there)
            soq__kv_seq_done(&a->seq);
        else
            cr_assert_eq(soq__kv_seq_init(&a->seq, &cache, &err), 0, "%s", err.text);
        a->there = !a->there;
        a->promised = a->rows = 0;
        clear_model(a);
        break;
    case 1:
    case 2:
        if (a->there)
            next_request(a);
        break;
    case 3:
        if (a->there && !other->there && !soq__kv_is_out(&a->seq))
            fork_to(other, a);
        break;
    case 4:
    case 5:
        if (a->there)
            swap(a);
        break;
    default:
        take_step();
    }
}

static void run(uint32_t how, uint32_t seed, uint64_t n_slabs)
{
    int64_t live = soq__alloc_live();

    stored_as = layer_codecs[how];
    n_coded = n_coded_again = 0;
    state = seed;
    make_cache(n_slabs);
    for (int i = 0; i < 2000; i++) {
        uint32_t a = roll(N_SEQS);

        act(&actors[a], &actors[(a + 1 + roll(N_SEQS - 1)) % N_SEQS]);
        check_counts();
    }
    cr_expect_gt(cache.stats.evicted, 0);
    cr_expect_gt(cache.n_swapped_in, 0);
    cr_expect_eq(n_coded > 0, how > 0);
    cr_expect_leq(n_coded_again, cache.stats.recoded);
    cr_expect(n_coded_again > 0 || how == 0 || how == HOLDING_BACK);
    for (int i = 0; i < N_SEQS; i++)
        if (actors[i].there)
            soq__kv_seq_done(&actors[i].seq);
    soq__kv_delivered(&cache);
    cr_expect_eq(cache.budget.used, 0);
    cr_expect_eq(cache.swap.used, 0);
    soq__kv_cache_done(&cache);
    soq__kv_layout_done(&layout);
    cr_expect_eq(soq__alloc_live(), live);
}

enum { N_HOW = sizeof layer_codecs / sizeof layer_codecs[0] };

/* Sanitizers take up to fifty times as long, so CI asks for one of each there. */
static uint32_t seeds(uint32_t all)
{
    return getenv("SOQ_TEST_SHORT") ? 1 : all;
}

Test(kv_schedules, enough_memory)
{
    for (uint32_t seed = 1; seed <= seeds(8); seed++)
        run(0, seed, 1000);
}

static void take_rows(struct actor *a, uint32_t n)
{
    struct soq_error err = SOQ_ERROR_INIT;

    a->rows = n;
    cr_assert_eq(soq__kv_prepare(&a->seq, n, &err), 0, "%s", err.text);
    deliver();
    compute(true);
    soq__kv_delivered(&cache);
    extend_model(a, n);
    committing = a;
    cr_assert_eq(soq__kv_commit(&a->seq, n, &err), 0, "%s", err.text);
    a->rows = 0;
    deliver();
    check_contents(a);
}

/* Rows that were to be summed up do not come, and the next prompt has others: its sums begin with these. */
Test(kv_schedules, sums_of_rows_that_did_not_come)
{
    struct actor *a = &actors[0];

    stored_as = layer_codecs[0];
    make_cache(1000);
    clear_model(a);
    a->there = true;
    cr_assert_eq(soq__kv_seq_init(&a->seq, &cache, NULL), 0);
    cr_assert_eq(soq__kv_reserve(&a->seq, 13, 30, NULL), 0);
    cr_assert_eq(soq__kv_prepare(&a->seq, 13, NULL), 0); /* of row 10 on */
    soq__kv_abandon(&a->seq);
    cr_assert_eq(soq__kv_reserve(&a->seq, 11, 30, NULL), 0);
    take_rows(a, 9); /* of row 8 on */
    cr_assert_eq(a->sums_from, 8);
    cr_assert_eq(soq__kv_reserve(&a->seq, 13, 30, NULL), 0);
    a->sums_from = CONTEXT; /* too far from the end */
    take_rows(a, 4);
    cr_expect_gt(cache.stats.evicted, 0);
    soq__kv_seq_done(&a->seq);
    soq__kv_cache_done(&cache);
    soq__kv_layout_done(&layout);
}

Test(kv_schedules, little_memory)
{
    for (uint32_t seed = 1; seed <= seeds(4); seed++)
        for (uint64_t n_slabs = 20; n_slabs < 120; n_slabs += 20)
            run(0, seed, n_slabs);
}

Test(kv_schedules, packing)
{
    for (uint32_t how = 1; how < N_HOW; how++)
        for (uint32_t seed = 1; seed <= seeds(5); seed++)
            run(how, seed, 1000);
}

Test(kv_schedules, packing_in_little_memory)
{
    for (uint32_t how = 1; how < N_HOW; how++)
        for (uint32_t seed = 1; seed <= seeds(4); seed++)
            run(how, seed, 5 + 25 * seed);
}
