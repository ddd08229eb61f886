/* What holds for selecting policies whatever the scores are: sizes, identities, windows, ties, plans, and
 * what their options refuse. */
#include "kvpolicy_support.h"

/* ---- Every policy ------------------------------------------------------------------------------------------------ */

/* One that selects, with a capacity of 24 and the last `tail` entries safe. */
static const struct variant {
    const char *plugin;
    uint32_t tail;
    struct override options[7];
} variants[] = {
    {"streaming", 20, {{"capacity", "24"}, {"when", "prompt"}, {0}}},
    {"h2o", 8, {{"capacity", "24"}, {"recent", "8"}, {0}}},
    {"h2o", 0, {{"capacity", "24"}, {"recent", "0"}, {0}}},
    {"h2o", 24, {{"capacity", "24"}, {"recent", "24"}, {0}}},
    {"snapkv", 8, {{"capacity", "24"}, {"window", "8"}, {0}}},
    {"snapkv", 24, {{"capacity", "24"}, {"window", "24"}, {"pool", "max"}, {0}}},
    {"snapkv", 8, {{"capacity", "24"}, {"window", "8"}, {"when", "always"}, {"every", "8"}, {0}}},
    {"pyramidkv", 8, {{"capacity", "24"}, {"window", "8"}, {"beta", "4"}, {0}}},
    {"pyramidkv", 4, {{"capacity", "24"}, {"window", "4"}, {"beta", "4"}, {"formula", "kvpress"}, {0}}},
    {"adakv", 8, {{"capacity", "24"}, {"window", "8"}, {0}}},
    {"adakv", 8, {{"capacity", "24"}, {"window", "8"}, {"floor", "0"}, {0}}},
    {"adakv", 8, {{"capacity", "24"}, {"window", "8"}, {"floor", "0.5"}, {"formula", "kvpress"}, {0}}},
    {"tova", 1, {{"capacity", "24"}, {0}}},
    {"keydiff", 0, {{"capacity", "24"}, {0}}},
    {"l2norm", 0, {{"capacity", "24"}, {0}}},
    {"observed", 0, {{"capacity", "24"}, {0}}},
    {"random", 0, {{"capacity", "24"}, {"seed", "7"}, {0}}},
};
enum { N_VARIANTS = sizeof variants / sizeof variants[0], CAPACITY = 24, LAYERS = 3, HEADS = 4 };

static void start_variant(struct policy *p, const struct variant *v)
{
    struct soq_kv_shape shape = shape_of(LAYERS, HEADS, 4096);

    policy_start(p, v->plugin, v->options, &shape);
    cr_assert_eq(p->rc, 0, "%s: %s", v->plugin, p->err.text);
    cr_assert(p->plan.needs & SOQ_NEED_SELECTION);
}

/* n entries, as far as the capacity goes: all stay, whatever the scores are. */
Test(kvpolicy_rules, a_capacity_that_holds_all_is_the_identity)
{
    for (size_t v = 0; v < N_VARIANTS; v++) {
        struct policy p;

        start_variant(&p, &variants[v]);
        for (uint32_t n = 1; n <= CAPACITY; n++) {
            for (uint32_t l = 0; l < LAYERS; l++) {
                struct layer layer;

                select_random(&layer, &p, l, n, n, n % 2);
                for (uint32_t h = 0; h < HEADS; h++)
                    cr_assert_eq(layer.heads[h].n_keep, n, "%s (%zu): %u of %u entries stay", variants[v].plugin, v,
                                 layer.heads[h].n_keep, n);
                cr_assert_eq(p.ops->budget(p.self, l, n, n), HEADS * n);
                layer_done(&layer);
            }
        }
    }
}

/* Then the plan says so, too, and nothing is measured or copied for it. */
Test(kvpolicy_rules, a_capacity_that_holds_the_context_asks_for_nothing)
{
    struct soq_kv_plan untouched = {.struct_size = sizeof untouched};

    for (size_t v = 0; v < N_VARIANTS; v++) {
        struct soq_kv_shape shape = shape_of(LAYERS, HEADS, CAPACITY);
        struct policy p;

        policy_start(&p, variants[v].plugin, variants[v].options, &shape);
        cr_assert_eq(p.rc, 0, "%s: %s", variants[v].plugin, p.err.text);
        cr_assert_eq(memcmp(&p.plan, &untouched, sizeof untouched), 0, "%s (%zu)", variants[v].plugin, v);
    }
}

/* The heads of a layer together keep what budget() says; only the paper's rule of adakv rounds. */
Test(kvpolicy_rules, sizes_are_the_budget)
{
    for (size_t v = 0; v < N_VARIANTS; v++) {
        struct policy p;
        uint32_t slack = 0;

        start_variant(&p, &variants[v]);
        if (strcmp(variants[v].plugin, "adakv") == 0 &&
            strcmp(variants[v].options[2].key ? variants[v].options[2].key : "", "formula"))
            slack = HEADS;
        for (uint32_t n = CAPACITY + 1; n < 300; n += 17) {
            for (uint32_t l = 0; l < LAYERS; l++) {
                uint64_t budget = p.ops->budget(p.self, l, n, n), together = 0;
                struct layer layer;

                select_random(&layer, &p, l, n, n, n % 2);
                for (uint32_t h = 0; h < HEADS; h++)
                    together += layer.heads[h].n_keep;
                cr_assert(together <= budget && together + slack >= budget, "%s (%zu), n = %u, layer %u: %zu of %zu",
                          variants[v].plugin, v, n, l, (size_t)together, (size_t)budget);
                layer_done(&layer);
            }
        }
    }
}

Test(kvpolicy_rules, the_window_stays)
{
    for (size_t v = 0; v < N_VARIANTS; v++) {
        struct policy p;

        start_variant(&p, &variants[v]);
        for (uint32_t n = 25; n < 200; n += 25) {
            struct layer layer;

            select_random(&layer, &p, n % LAYERS, n, n, false);
            for (uint32_t h = 0; h < HEADS; h++)
                for (uint32_t i = n - variants[v].tail; i < n; i++)
                    cr_assert(keeps(&layer.heads[h], i), "%s (%zu): entry %u of %u", variants[v].plugin, v, i, n);
            layer_done(&layer);
        }
    }
}

/* The same entries, the same answer, whatever is left in the scratch memory and whatever was selected in between. */
Test(kvpolicy_rules, answers_repeat)
{
    for (size_t v = 0; v < N_VARIANTS; v++) {
        struct policy p;
        struct layer first, other, again;

        start_variant(&p, &variants[v]);
        select_random(&first, &p, 1, 150, 5, true);
        select_random(&other, &p, 2, 90, 6, false);
        layer_new(&again, &p, 1, 150);
        memset(again.selection.scratch, 0xff, p.ops->scratch.fixed + p.ops->scratch.per_entry * HEADS * again.heads[0].n);
        fill_random(&again, 5, true);
        layer_select(&again, &p);
        for (uint32_t h = 0; h < HEADS; h++)
            cr_assert(same_kept(&first.heads[h], &again.heads[h]), "%s (%zu)", variants[v].plugin, v);
        layer_done(&first);
        layer_done(&other);
        layer_done(&again);
    }
}

/* Where all scores are equal, the lowest positions stay, and the window. */
Test(kvpolicy_rules, ties_go_to_lower_positions)
{
    for (size_t v = 0; v < N_VARIANTS; v++) {
        struct policy p;
        struct layer layer;

        if (strcmp(variants[v].plugin, "random") == 0 || strcmp(variants[v].plugin, "streaming") == 0)
            continue;
        start_variant(&p, &variants[v]);
        layer_new(&layer, &p, 0, 100); /* all mass and keys are 0 */
        layer_select(&layer, &p);
        for (uint32_t h = 0; h < HEADS; h++) {
            const struct soq_kv_head *head = &layer.heads[h];
            uint32_t best = head->n_keep - variants[v].tail;

            for (uint32_t i = 0; i < head->n_keep; i++)
                cr_assert_eq(head->keep[i], i < best ? i : 100 - head->n_keep + i, "%s (%zu): head %u", variants[v].plugin, v,
                             h);
        }
        layer_done(&layer);
    }
}

/* A prompt of one token; a single entry that stays. */
Test(kvpolicy_rules, the_smallest)
{
    static const struct variant smallest[] = {
        {"streaming", 1, {{"capacity", "1"}, {"sinks", "0"}, {"when", "decode"}, {0}}},
        {"h2o", 0, {{"capacity", "1"}, {"recent", "0"}, {0}}},
        {"snapkv", 1, {{"capacity", "1"}, {"window", "1"}, {0}}},
        {"pyramidkv", 1, {{"capacity", "1"}, {"window", "1"}, {0}}},
        {"adakv", 1, {{"capacity", "1"}, {"window", "1"}, {0}}},
        {"tova", 1, {{"capacity", "1"}, {0}}},
        {"keydiff", 0, {{"capacity", "1"}, {0}}},
        {"l2norm", 0, {{"capacity", "1"}, {0}}},
        {"observed", 0, {{"capacity", "1"}, {0}}},
        {"random", 0, {{"capacity", "1"}, {0}}},
    };

    for (size_t v = 0; v < sizeof smallest / sizeof smallest[0]; v++) {
        struct policy p;

        start_variant(&p, &smallest[v]);
        for (uint32_t n = 1; n <= 3; n++) {
            struct layer layer;

            select_random(&layer, &p, 0, n, n, false);
            for (uint32_t h = 0; h < HEADS; h++) {
                cr_assert_eq(layer.heads[h].n_keep, 1, "%s: %u of %u", smallest[v].plugin, layer.heads[h].n_keep, n);
                cr_assert(!smallest[v].tail || layer.heads[h].keep[0] == n - 1, "%s", smallest[v].plugin);
            }
            layer_done(&layer);
        }
    }
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

Test(kvpolicy_rules, what_cannot_work_is_refused)
{
    static const struct {
        const char *plugin, *message;
        struct override options[4];
    } wrong[] = {
        {"streaming",
         "[kv.streaming] capacity = 4 does not hold sinks = 4 and one position more: set capacity to 5 or more",
         {{"capacity", "4"}, {0}}},
        {"h2o",
         "[kv.h2o] capacity = 100 does not hold recent = 2000: set capacity to 2000 or more, or recent to 100 or less",
         {{"capacity", "100"}, {0}}},
        {"h2o",
         "[kv.h2o] ratio = 0.1 does not hold recent_ratio = 0.2: set ratio to 0.2 or more, or recent_ratio to 0.1 or less",
         {{"ratio", "0.1"}, {"recent_ratio", "0.2"}, {0}}},
        {"snapkv",
         "[kv.snapkv] capacity = 63 does not hold window = 64: set capacity to 64 or more, or window to 63 or less",
         {{"capacity", "63"}, {0}}},
        {"snapkv", "[kv.snapkv] kernel = 4 has no middle: set an odd number, 3 or 5", {{"kernel", "4"}, {0}}},
        {"snapkv",
         "[kv.snapkv] every = 32 is less than window = 64, so that windows overlap: set every to 64 or more, or window to 32 "
         "or "
         "less",
         {{"when", "always"}, {"every", "32"}, {0}}},
        {"pyramidkv", "[kv.pyramidkv] capacity = 10 does not hold window = 64", {{"capacity", "10"}, {0}}},
        {"pyramidkv", "[kv.pyramidkv] kernel = 2 has no middle", {{"kernel", "2"}, {0}}},
        {"adakv", "[kv.adakv] capacity = 31 does not hold window = 32", {{"capacity", "31"}, {0}}},
        {"adakv", "[kv.adakv] every = 1 is less than window = 32", {{"when", "always"}, {"every", "1"}, {0}}},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct soq_kv_shape shape = shape_of(LAYERS, HEADS, 4096);
        struct policy p;

        policy_start(&p, wrong[i].plugin, wrong[i].options, &shape);
        cr_expect_eq(p.rc, -SOQ_EINVAL, "%s: %zu is taken", wrong[i].plugin, i);
        cr_expect(strncmp(p.err.text, wrong[i].message, strlen(wrong[i].message)) == 0, "%s", p.err.text);
    }
}

/* Where the windows are not used, or only once, they may be as large as they like. */
Test(kvpolicy_rules, what_does_not_matter_is_taken)
{
    static const struct override once[] = {{"every", "1"}, {0}}, share[] = {{"capacity", "1"}, {"ratio", "0.5"}, {0}};
    struct soq_kv_shape shape = shape_of(LAYERS, HEADS, 4096);
    struct policy p;

    policy_start(&p, "snapkv", once, &shape);
    cr_expect_eq(p.rc, 0, "%s", p.err.text);
    cr_expect_eq(p.plan.every, 0);
    policy_start(&p, "adakv", share, &shape);
    cr_expect_eq(p.rc, 0, "%s", p.err.text);
    policy_start(&p, "h2o", share, &shape);
    cr_expect_eq(p.rc, 0, "%s", p.err.text);
}

Test(kvpolicy_rules, keydiff_refuses_giant_heads)
{
    struct soq_kv_shape shape = shape_of(LAYERS, HEADS, 4096);
    struct policy p;

    shape.head_dim = 1025;
    policy_start(&p, "keydiff", NULL, &shape);
    cr_expect_eq(p.rc, -SOQ_EUNSUPPORTED);
    cr_expect(strstr(p.err.text, "heads of 1025 numbers, 1024 at most"), "%s", p.err.text);
}

/* Of n tokens floor(ratio n), and never fewer than the window. */
Test(kvpolicy_rules, ratio_is_the_share_that_stays)
{
    static const struct {
        const char *plugin, *ratio;
        uint32_t n, kept;
    } cases[] = {{"l2norm", "0.2", 200, 40},  {"l2norm", "0.29", 100, 29}, {"l2norm", "0.29", 99, 28},
                 {"l2norm", "0.001", 200, 1}, {"l2norm", "1", 200, 200},   {"snapkv", "0.5", 200, 100},
                 {"snapkv", "0.1", 200, 64},  {"adakv", "0.25", 200, 50},  {"observed", "0.7", 10, 7},
                 {"tova", "0.001", 50, 1},    {"h2o", "0.2", 200, 40},     {"random", "0.33", 100, 33},
                 {"keydiff", "0.57", 100, 57}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct override options[] = {{"ratio", cases[i].ratio}, {0}};
        struct soq_kv_shape shape = shape_of(1, 1, 4096);
        struct policy p;
        struct layer layer;

        policy_start(&p, cases[i].plugin, options, &shape);
        cr_assert_eq(p.rc, 0, "%s", p.err.text);
        select_random(&layer, &p, 0, cases[i].n, 3, false);
        cr_expect_eq(layer.heads[0].n_keep, cases[i].kept, "%s: %s of %u: %u", cases[i].plugin, cases[i].ratio, cases[i].n,
                     layer.heads[0].n_keep);
        layer_done(&layer);
    }
}

Test(kvpolicy_rules, plans)
{
    static const struct {
        const char *plugin;
        struct override options[4];
        struct soq_kv_plan plan;
        uint32_t traits;
    } cases[] = {
        {"snapkv", {{0}}, {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS, .queries = 64}, 0},
        {"snapkv",
         {{"when", "always"}, {"window", "16"}, {"every", "48"}, {0}},
         {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS, .queries = 16, .every = 48},
         0},
        {"pyramidkv", {{0}}, {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS | SOQ_NEED_LAYER_BUDGETS, .queries = 64}, 0},
        {"adakv",
         {{0}},
         {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS | SOQ_NEED_LAYER_BUDGETS | SOQ_NEED_HEAD_BUDGETS, .queries = 32},
         0},
        {"h2o",
         {{0}},
         {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS, .every = 32, .no_prefix_hits = 1},
         SOQ_POLICY_NO_PREFIX_HITS},
        {"observed", {{0}}, {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS, .no_prefix_hits = 1}, SOQ_POLICY_NO_PREFIX_HITS},
        {"tova", {{"every", "1"}, {0}}, {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS, .queries = 1, .every = 1}, 0},
        {"keydiff", {{0}}, {.needs = SOQ_NEED_SELECTION | SOQ_NEED_KEYS}, 0},
        {"l2norm", {{"when", "always"}, {0}}, {.needs = SOQ_NEED_SELECTION | SOQ_NEED_KEYS, .every = 32}, 0},
        {"random", {{0}}, {.needs = SOQ_NEED_SELECTION}, 0},
        {"streaming", {{0}}, {.window = 2000, .sinks = 4, .slot_positions = 1}, 0},
        {"streaming", {{"positions", "original"}, {0}}, {.window = 2000, .sinks = 4}, 0},
        {"streaming", {{"sinks", "0"}, {0}}, {.window = 2004}, 0},
        {"streaming", {{"when", "prompt"}, {0}}, {.needs = SOQ_NEED_SELECTION, .sinks = 4, .slot_positions = 1}, 0},
        {"streaming", {{"when", "prompt"}, {"positions", "original"}, {0}}, {.needs = SOQ_NEED_SELECTION}, 0},
        {"streaming",
         {{"when", "decode"}, {"every", "1"}, {0}},
         {.needs = SOQ_NEED_SELECTION, .every = 1, .sinks = 4, .slot_positions = 1},
         0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct soq_kv_shape shape = shape_of(LAYERS, HEADS, 32768);
        struct soq_kv_plan expected = cases[i].plan;
        struct policy p;

        expected.struct_size = sizeof expected;
        policy_start(&p, cases[i].plugin, cases[i].options, &shape);
        cr_expect_eq(p.rc, 0, "%s", p.err.text);
        cr_expect_eq(memcmp(&p.plan, &expected, sizeof expected), 0, "%s (%zu)", cases[i].plugin, i);
        cr_expect_eq(p.ops->traits, cases[i].traits, "%s", cases[i].plugin);
    }
}
