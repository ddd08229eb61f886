/* The rules of the selecting policies that the golden cases do not reach, each against a plain implementation or by hand: the
 * selection of the best, pooling, budgets per layer and per head, scores made of keys, and entries with gaps between them. */
#include <math.h>

#include "kvpolicy_support.h"
#include "plugins/kvpolicy/evict/top.h"

static void start(struct policy *p, const char *plugin, const struct override *options, uint32_t n_layers, uint32_t n_heads)
{
    struct soq_kv_shape shape = shape_of(n_layers, n_heads, 1 << 20);

    policy_start(p, plugin, options, &shape);
    cr_assert_eq(p->rc, 0, "%s", p->err.text);
}

/* Entries of scores [n] that are better than entry i: larger, or equal and before it. */
static uint32_t rank_of(const double *scores, uint32_t n, uint32_t i)
{
    uint32_t rank = 0;

    for (uint32_t j = 0; j < n; j++)
        rank += scores[j] > scores[i] || (scores[j] == scores[i] && j < i);
    return rank;
}

/* The k best of scores [n - tail] and the tail are what the head keeps. */
static void expect_best(const struct soq_kv_head *head, const double *scores, uint32_t k, uint32_t tail)
{
    cr_assert_eq(head->n_keep, k + tail);
    for (uint32_t i = 0; i < head->n; i++) {
        bool stays = i >= head->n - tail || rank_of(scores, head->n - tail, i) < k;

        cr_assert_eq(keeps(head, i), stays, "entry %u of %u", i, head->n);
    }
}

/* ---- The best by score ------------------------------------------------------------------------------------------- */

Test(kvpolicy_oracles, top_of_awkward_numbers)
{
    static const double scores[] = {0.0,     -0.0, 1e-320, -1e-320, 3, 3, INFINITY, -INFINITY, 1e300, -1e300,
                                    0x1p-36, 3,    -3,     -3,      0, 1, INFINITY, 1e300,     -2.5,  0x1p-36};
    enum { N = sizeof scores / sizeof scores[0] };

    for (uint32_t k = 0; k <= N + 1; k++) {
        struct top cut = top_cut(scores, N, k);

        for (uint32_t i = 0; i < N; i++)
            cr_assert_eq(top_takes(&cut, scores[i]), rank_of(scores, N, i) < k, "k = %u, entry %u", k, i);
    }
}

Test(kvpolicy_oracles, top_of_random_numbers)
{
    uint32_t seed = 1;

    for (uint32_t n = 1; n < 130; n++) {
        double scores[130];

        for (uint32_t i = 0; i < n; i++)
            scores[i] = n % 3 ? next_random(&seed) * 0x1p-20 - 8 : next_random(&seed) % 5;
        for (uint32_t k = 0; k <= n; k += 1 + k / 4) {
            struct top cut = top_cut(scores, n, k);

            for (uint32_t i = 0; i < n; i++)
                cr_assert_eq(top_takes(&cut, scores[i]), rank_of(scores, n, i) < k, "n = %u, k = %u, entry %u", n, k, i);
        }
    }
}

/* ---- snapkv: pooling --------------------------------------------------------------------------------------------- */

/* As published: padding of kernel / 2, stride 1, over the entries before the window only. */
static void pool(const double *mass, uint32_t n, int kernel, bool max, double *out)
{
    for (int i = 0; i < (int)n; i++) {
        double sum = 0, most = -INFINITY;

        for (int j = i - kernel / 2; j <= i + kernel / 2; j++) {
            bool inside = j >= 0 && j < (int)n;

            sum += inside ? mass[j] : 0;
            most = inside && mass[j] > most ? mass[j] : most;
        }
        out[i] = max ? most : sum / kernel;
    }
}

Test(kvpolicy_oracles, snapkv_pools_over_neighbours)
{
    static const char *const kernels[] = {"1", "3", "5", "7", "255"};

    for (size_t c = 0; c < 10; c++) {
        struct override options[] = {
            {"capacity", "40"}, {"window", "10"}, {"kernel", kernels[c / 2]}, {"pool", c % 2 ? "max" : "avg"}, {0}};
        double pooled[200];
        struct policy p;
        struct layer layer;

        start(&p, "snapkv", options, 2, 2);
        select_random(&layer, &p, 0, 200, (uint32_t)c, c % 3 == 0);
        for (uint32_t h = 0; h < 2; h++) {
            pool(layer.mass[h], 190, atoi(kernels[c / 2]), c % 2, pooled);
            expect_best(&layer.heads[h], pooled, 30, 10);
        }
        layer_done(&layer);
    }
}

/* A peak takes its neighbours along; the window's own attention plays no part. */
Test(kvpolicy_oracles, snapkv_by_hand)
{
    static const struct override options[] = {{"capacity", "5"}, {"window", "2"}, {"kernel", "3"}, {0}};
    static const double mass[] = {0, 0, 1, 0, 0, 0, 0, 5, 9, 9};
    static const uint32_t kept[] = {1, 6, 7, 8, 9}; /* sums of three: 0 1 1 1 0 0 5 5 */
    struct policy p;
    struct layer layer;

    start(&p, "snapkv", options, 1, 1);
    layer_new(&layer, &p, 0, 10);
    memcpy(layer.mass[0], mass, sizeof mass);
    layer_select(&layer, &p);
    cr_assert_eq(layer.heads[0].n_keep, 5);
    cr_expect_eq(memcmp(layer.heads[0].keep, kept, sizeof kept), 0);
    layer_done(&layer);
}

/* ---- pyramidkv: budgets per layer -------------------------------------------------------------------------------- */

Test(kvpolicy_oracles, pyramidkv_budgets)
{
    static const struct {
        const char *formula, *capacity, *window, *beta;
        uint32_t n, budgets[4];
    } cases[] = {
        {"paper", "123", "8", "20", 600, {233, 160, 87, 14}},   /* B = 115, 225 ... 5 in steps of 73 */
        {"paper", "108", "8", "10", 200, {198, 138, 78, 18}},   /* B = 100: 190 ... 10 in steps of 60 */
        {"paper", "108", "8", "20", 200, {200, 139, 78, 17}},   /* 195 do not fit: 192 ... 8 in steps of 61 */
        {"paper", "108", "8", "10", 190, {108, 108, 108, 108}}, /* n < 2 B */
        {"paper", "108", "8", "1", 600, {108, 108, 108, 108}},    {"paper", "8", "8", "20", 600, {8, 8, 8, 8}},
        {"paper", "108", "8", "20", 108, {108, 108, 108, 108}}, /* holds all */
        {"kvpress", "165", "8", "20", 600, {322, 217, 113, 8}},   {"kvpress", "64", "8", "4", 200, {112, 80, 48, 16}},
        {"kvpress", "66", "8", "4", 200, {116, 82, 50, 16}},      /* 115.5 and 16.5 go to the even numbers */
        {"kvpress", "165", "9", "20", 600, {165, 165, 165, 165}}, /* low = 8.25 is less than the window */
    };

    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct override options[] = {{"formula", cases[c].formula},
                                     {"capacity", cases[c].capacity},
                                     {"window", cases[c].window},
                                     {"beta", cases[c].beta},
                                     {"kernel", "1"},
                                     {0}};
        struct policy p;

        start(&p, "pyramidkv", options, 4, 2);
        for (uint32_t l = 0; l < 4; l++) {
            struct layer layer;

            select_random(&layer, &p, l, cases[c].n, l, false);
            cr_expect_eq(layer.heads[1].n_keep, cases[c].budgets[l], "case %zu, layer %u: %u", c, l, layer.heads[1].n_keep);
            cr_expect_eq(p.ops->budget(p.self, l, cases[c].n, cases[c].n), 2 * cases[c].budgets[l]);
            layer_done(&layer);
        }
    }
}

Test(kvpolicy_oracles, pyramidkv_of_one_layer_is_snapkv)
{
    static const struct override paper[] = {{"capacity", "80"}, {0}},
                                 kvpress[] = {{"capacity", "80"}, {"formula", "kvpress"}, {0}};
    struct policy snapkv, pyramid;
    struct layer a, b;

    start(&snapkv, "snapkv", paper, 1, 2);
    select_random(&a, &snapkv, 0, 400, 1, false);
    for (int i = 0; i < 2; i++) {
        start(&pyramid, "pyramidkv", i ? kvpress : paper, 1, 2);
        select_random(&b, &pyramid, 0, 400, 1, false);
        cr_expect(same_kept(&a.heads[0], &b.heads[0]) && same_kept(&a.heads[1], &b.heads[1]));
        layer_done(&b);
    }
    layer_done(&a);
}

/* ---- adakv: budgets per head ------------------------------------------------------------------------------------- */

/* Four heads of n entries, of which the first has all the best. */
static void one_greedy_head(struct layer *layer, struct policy *p, uint32_t n)
{
    layer_new(layer, p, 0, n);
    fill_random(layer, 3, false);
    for (uint32_t i = 0; i < n; i++)
        layer->mass[0][i] += 10;
    layer_select(layer, p);
}

Test(kvpolicy_oracles, adakv_floors)
{
    static const struct {
        const char *formula, *floor;
        uint32_t kept[4]; /* of head 0; the least of another; 0: any */
    } cases[] = {
        {"paper", "0", {8 + 192, 8}},    /* all that it has; 4 x 62 - 192 are for the others */
        {"paper", "0.5", {8 + 127, 39}}, /* 192 / 2 + 62 / 2; 62 / 2 and a little */
        {"paper", "1", {70, 70}},        /* alike */
        {"kvpress", "0", {200, 8}},      {"kvpress", "0.5", {70 * 4 - 35 * 3, 35}}, {"kvpress", "1", {70, 70}},
    };

    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct override options[] = {{"formula", cases[c].formula}, {"capacity", "70"}, {"window", "8"},
                                     {"floor", cases[c].floor},     {"kernel", "1"},    {0}};
        struct policy p;
        struct layer layer;
        uint32_t together = 0;

        start(&p, "adakv", options, 1, 4);
        one_greedy_head(&layer, &p, 200);
        cr_expect_eq(layer.heads[0].n_keep, cases[c].kept[0], "case %zu: %u", c, layer.heads[0].n_keep);
        for (uint32_t h = 0; h < 4; h++) {
            cr_expect_geq(layer.heads[h].n_keep, cases[c].kept[1], "case %zu, head %u: %u", c, h, layer.heads[h].n_keep);
            together += layer.heads[h].n_keep;
        }
        cr_expect(together <= 282 && together >= 278, "case %zu: %u", c, together);
        cr_expect(strcmp(cases[c].formula, "kvpress") != 0 || together == 280, "case %zu: %u", c, together);
        layer_done(&layer);
    }
}

/* After a first selection heads hold different numbers of entries; what they keep is still the best of each. */
Test(kvpolicy_oracles, adakv_of_uneven_heads)
{
    static const struct override options[] = {{"formula", "kvpress"}, {"capacity", "50"}, {"window", "8"}, {"kernel", "1"},
                                              {"floor", "0"},         {"when", "always"}, {"every", "8"},  {0}};
    static const uint32_t held[] = {108, 8, 40, 60};
    struct policy p;
    struct layer layer;
    uint32_t together = 0;

    start(&p, "adakv", options, 1, 4);
    layer_new(&layer, &p, 0, 108);
    fill_random(&layer, 8, false);
    for (uint32_t h = 0; h < 4; h++)
        layer.heads[h].n = held[h];
    layer_select(&layer, &p);
    for (uint32_t h = 0; h < 4; h++) {
        cr_assert_geq(layer.heads[h].n_keep, 8);
        expect_best(&layer.heads[h], layer.mass[h], layer.heads[h].n_keep - 8, 8);
        together += layer.heads[h].n_keep;
    }
    cr_expect_eq(together, 200);
    layer_done(&layer);
}

/* ---- h2o, observed, tova ----------------------------------------------------------------------------------------- */

/* The reference's slice [-0:] is everything; here no recent entries are none. */
Test(kvpolicy_oracles, h2o_without_recent_entries)
{
    static const struct override options[] = {{"capacity", "30"}, {"recent", "0"}, {0}};
    struct policy p;
    struct layer layer;

    start(&p, "h2o", options, 1, 2);
    layer_new(&layer, &p, 0, 100);
    for (uint32_t i = 0; i < 100; i++) {
        layer.mass[0][i] = 100 - i;
        layer.mass[1][i] = i;
    }
    layer_select(&layer, &p);
    expect_best(&layer.heads[0], layer.mass[0], 30, 0);
    expect_best(&layer.heads[1], layer.mass[1], 30, 0);
    cr_expect(!keeps(&layer.heads[0], 99) && keeps(&layer.heads[1], 99));
    layer_done(&layer);
}

/* Half of the fifth of the prompt that stays is recent, whatever `capacity` and `recent` say. */
Test(kvpolicy_oracles, h2o_by_shares)
{
    static const struct override options[] = {{"ratio", "0.2"}, {"recent_ratio", "0.1"}, {"capacity", "7"}, {0}};
    struct policy p;
    struct layer layer;

    start(&p, "h2o", options, 1, 2);
    select_random(&layer, &p, 0, 150, 9, false);
    expect_best(&layer.heads[0], layer.mass[0], 15, 15);
    expect_best(&layer.heads[1], layer.mass[1], 15, 15);
    layer_done(&layer);
}

/* One entry more than stays: the weakest before the recent ones goes. */
Test(kvpolicy_oracles, h2o_step_by_step)
{
    static const struct override options[] = {{"capacity", "20"}, {"recent", "5"}, {"every", "1"}, {0}};
    struct policy p;

    start(&p, "h2o", options, 1, 1);
    for (uint32_t seed = 0; seed < 20; seed++) {
        struct layer layer;
        uint32_t weakest = 0;

        select_random(&layer, &p, 0, 21, seed, true);
        for (uint32_t i = 0; i < 16; i++)
            weakest = layer.mass[0][i] <= layer.mass[0][weakest] ? i : weakest; /* of equals the later goes */
        for (uint32_t i = 0; i < 21; i++)
            cr_assert_eq(keeps(&layer.heads[0], i), i != weakest, "entry %u, weakest %u", i, weakest);
        layer_done(&layer);
    }
}

/* Entries that are left of a longer text: what counts is their position, not their place. */
Test(kvpolicy_oracles, observed_counts_rows_by_position)
{
    static const struct override options[] = {{"capacity", "3"}, {"when", "always"}, {0}};
    static const uint32_t positions[] = {0, 50, 90, 98, 99}, kept[] = {1, 3, 4};
    static const double mass[] = {99, 51, 9, 2, 2}; /* of 100, 50, 10, 2 and 1 rows: .99 1.02 .9 1 2 */
    struct policy p;
    struct layer layer;

    start(&p, "observed", options, 1, 1);
    layer_new(&layer, &p, 0, 5);
    memcpy(layer.positions[0], positions, sizeof positions);
    memcpy(layer.mass[0], mass, sizeof mass);
    layer.selection.n_positions = 100;
    layer_select(&layer, &p);
    cr_assert_eq(layer.heads[0].n_keep, 3);
    cr_expect_eq(memcmp(layer.heads[0].keep, kept, sizeof kept), 0);
    layer_done(&layer);
}

Test(kvpolicy_oracles, tova_adds_the_heads)
{
    static const struct override options[] = {{"capacity", "12"}, {0}};
    double sums[60];
    struct policy p;
    struct layer layer;

    start(&p, "tova", options, 1, 4);
    select_random(&layer, &p, 0, 60, 4, true);
    for (uint32_t i = 0; i < 60; i++)
        sums[i] = layer.mass[0][i] + layer.mass[1][i] + layer.mass[2][i] + layer.mass[3][i];
    for (uint32_t h = 0; h < 4; h++)
        expect_best(&layer.heads[h], sums, 11, 1);
    layer_done(&layer);
}

/* ---- keydiff, l2norm --------------------------------------------------------------------------------------------- */

static double length_of(const float *key)
{
    double sum = 0;

    for (uint32_t d = 0; d < 16; d++)
        sum += (double)key[d] * (double)key[d];
    return sqrt(sum);
}

Test(kvpolicy_oracles, keydiff_keeps_keys_unlike_the_others)
{
    static const struct override options[] = {{"capacity", "12"}, {0}};
    struct policy p;
    struct layer layer;

    start(&p, "keydiff", options, 1, 3);
    layer_new(&layer, &p, 0, 80);
    fill_random(&layer, 2, false);
    for (uint32_t i = 0; i < 3 * 80 * 16; i++)
        layer.keys[i / (80 * 16)][i % (80 * 16)] *= 1 + (float)(i / 16 % 7); /* lengths are not to matter */
    layer_select(&layer, &p);
    for (uint32_t h = 0; h < 3; h++) {
        double anchor[16] = {0}, scores[80];

        for (uint32_t i = 0; i < 80; i++)
            for (uint32_t d = 0; d < 16; d++)
                anchor[d] += layer.keys[h][i * 16 + d] / length_of(&layer.keys[h][i * 16]) / 80;
        for (uint32_t i = 0; i < 80; i++) {
            double dot = 0, length = 0;

            for (uint32_t d = 0; d < 16; d++) {
                dot += layer.keys[h][i * 16 + d] * anchor[d];
                length += anchor[d] * anchor[d];
            }
            scores[i] = -dot / length_of(&layer.keys[h][i * 16]) / sqrt(length);
        }
        expect_best(&layer.heads[h], scores, 12, 0);
    }
    layer_done(&layer);
}

/* Keys of no length have no direction; they stand apart from a crowd, and nothing is divided by 0. */
Test(kvpolicy_oracles, keydiff_of_empty_keys)
{
    static const struct override options[] = {{"capacity", "2"}, {0}};
    struct policy p;
    struct layer layer;

    start(&p, "keydiff", options, 1, 1);
    layer_new(&layer, &p, 0, 6);
    for (uint32_t i = 0; i < 6; i++)
        layer.keys[0][i * 16] = i == 2 || i == 4 ? 0 : 1 + (float)i;
    layer_select(&layer, &p);
    cr_assert_eq(layer.heads[0].n_keep, 2);
    cr_expect(keeps(&layer.heads[0], 2) && keeps(&layer.heads[0], 4));
    layer_done(&layer);
}

Test(kvpolicy_oracles, l2norm_keeps_short_keys)
{
    static const struct override options[] = {{"capacity", "25"}, {0}};
    double scores[80];
    struct policy p;
    struct layer layer;

    start(&p, "l2norm", options, 1, 3);
    select_random(&layer, &p, 0, 80, 2, false);
    for (uint32_t h = 0; h < 3; h++) {
        for (uint32_t i = 0; i < 80; i++)
            scores[i] = -length_of(&layer.keys[h][i * 16]);
        expect_best(&layer.heads[h], scores, 25, 0);
    }
    layer_done(&layer);
}

/* ---- random ------------------------------------------------------------------------------------------------------ */

/* Selecting twice gives what selecting once would have given; another seed, layer or head gives something else. */
Test(kvpolicy_oracles, random_is_a_sample_whenever_it_is_taken)
{
    static const struct override options[] = {{"capacity", "30"}, {"seed", "1"}, {0}},
                                 other[] = {{"capacity", "30"}, {"seed", "2"}, {0}};
    struct policy p, q;
    struct layer once, early, late, elsewhere;

    start(&p, "random", options, 2, 2);
    start(&q, "random", other, 2, 2);
    select_random(&once, &p, 1, 200, 0, false);
    select_random(&early, &p, 1, 100, 0, false);
    layer_new(&late, &p, 1, 130); /* the 30 that are left of 100, and 100 more */
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t i = 0; i < 130; i++)
            late.positions[h][i] = i < 30 ? early.heads[h].keep[i] : 70 + i;
    late.selection.n_positions = 200;
    layer_select(&late, &p);
    for (uint32_t h = 0; h < 2; h++) {
        cr_assert_eq(late.heads[h].n_keep, 30);
        for (uint32_t i = 0; i < 30; i++)
            cr_assert_eq(late.positions[h][late.heads[h].keep[i]], once.heads[h].keep[i]);
    }
    cr_expect(!same_kept(&once.heads[0], &once.heads[1]));
    select_random(&elsewhere, &p, 0, 200, 0, false);
    cr_expect(!same_kept(&once.heads[0], &elsewhere.heads[0]));
    layer_done(&elsewhere);
    select_random(&elsewhere, &q, 1, 200, 0, false);
    cr_expect(!same_kept(&once.heads[0], &elsewhere.heads[0]));
    layer_done(&elsewhere);
    layer_done(&once);
    layer_done(&early);
    layer_done(&late);
}

/* Each of ten tenths of a long text keeps a tenth, give or take five standard deviations. */
Test(kvpolicy_oracles, random_is_fair)
{
    static const struct override options[] = {{"capacity", "2000"}, {0}};
    uint32_t tenths[10] = {0};
    struct policy p;
    struct layer layer;

    start(&p, "random", options, 1, 1);
    select_random(&layer, &p, 0, 20000, 0, false);
    for (uint32_t i = 0; i < layer.heads[0].n_keep; i++)
        tenths[layer.heads[0].keep[i] / 2000]++;
    for (int i = 0; i < 10; i++)
        cr_expect(tenths[i] > 132 && tenths[i] < 268, "%u", tenths[i]);
    layer_done(&layer);
}

/* ---- streaming --------------------------------------------------------------------------------------------------- */

/* The mask is that of `window` with sinks. */
Test(kvpolicy_oracles, streaming_frees_what_window_frees)
{
    static const struct override options[] = {{"capacity", "50"}, {"sinks", "6"}, {0}};
    struct policy streaming, window;

    start(&streaming, "streaming", options, 1, 1);
    start(&window, "window", options, 1, 1);
    cr_assert_eq(streaming.plan.window, window.plan.window);
    for (uint32_t n = 0; n < 200; n++) {
        struct soq_kv_commit commit = {.struct_size = sizeof commit, .n_positions = n, .max_ranges = 2};
        struct soq_kv_range a[2] = {{0}}, b[2] = {{0}};
        uint32_t n_a = 9, n_b = 9;

        cr_assert_eq(streaming.ops->on_commit(streaming.self, NULL, &commit, a, &n_a, NULL), 0);
        cr_assert_eq(window.ops->on_commit(window.self, NULL, &commit, b, &n_b, NULL), 0);
        cr_assert(n_a == n_b && memcmp(a, b, sizeof a) == 0, "at %u", n);
    }
}

/* Where nothing is masked, nothing is freed but by selections. */
Test(kvpolicy_oracles, streaming_that_selects_masks_nothing)
{
    static const struct override options[] = {{"capacity", "50"}, {"when", "decode"}, {0}};
    struct soq_kv_commit commit = {.struct_size = sizeof commit, .n_positions = 500, .max_ranges = 2};
    struct soq_kv_range ranges[2];
    struct policy p;
    uint32_t n = 0;

    start(&p, "streaming", options, 1, 1);
    cr_assert_eq(p.ops->on_commit(p.self, NULL, &commit, ranges, &n, NULL), 0);
    cr_expect(n == 1 && ranges[0].first == 0 && ranges[0].last == 500);
}
