/* The policies `full` and `window`. */
#include <criterion/criterion.h>

#include "plugin_open.h"

struct policy {
    const struct soq_kv_policy_ops *ops;
    _Alignas(64) char self[256];
    struct soq_kv_plan plan;
    struct soq_error err;
    int rc; /* of describe */
};

static void start(struct policy *p, const char *name, const struct override *overrides, const struct soq_kv_shape *shape)
{
    struct plugin_values values = {open_plugin(name, SOQ_ROLE_KV_POLICY), overrides};
    struct soq_config config = plugin_config(&values);

    *p = (struct policy){.ops = values.entry->ops, .plan = {.struct_size = sizeof p->plan}, .err = SOQ_ERROR_INIT};
    cr_assert_leq(p->ops->instance_size, sizeof p->self);
    cr_assert_eq(p->ops->init(p->self, NULL, &config, &p->err), 0);
    p->rc = p->ops->describe(p->self, shape, &p->plan, &p->err);
}

static struct soq_kv_shape shape_of(uint32_t context, uint32_t model_window)
{
    return (struct soq_kv_shape){
        .struct_size = sizeof(struct soq_kv_shape),
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .context = context,
        .block_tokens = 32,
        .model_window = model_window,
    };
}

static uint32_t commit(struct policy *p, uint32_t n, struct soq_kv_range ranges[2])
{
    struct soq_kv_commit c = {.struct_size = sizeof c, .n_positions = n, .max_ranges = 2};
    uint32_t n_ranges = 99;

    cr_assert_eq(p->ops->on_commit(p->self, NULL, &c, ranges, &n_ranges, &p->err), 0);
    cr_assert_leq(n_ranges, 2);
    return n_ranges;
}

Test(kvpolicy, full_keeps_everything)
{
    struct soq_kv_shape shape = shape_of(4096, 512);
    struct soq_kv_plan untouched = {.struct_size = sizeof untouched};
    struct policy p;

    start(&p, "full", NULL, &shape);
    cr_assert_eq(p.rc, 0);
    cr_assert_eq(memcmp(&p.plan, &untouched, sizeof untouched), 0);
    cr_assert_null(p.ops->on_commit);
    cr_assert_eq(p.ops->state_size, 0);
}

Test(kvpolicy, window_plan)
{
    static const struct override options[] = {{"capacity", "100"}, {"sinks", "4"}, {0}};
    struct soq_kv_shape shape = shape_of(4096, 0);
    struct policy p;

    start(&p, "window", options, &shape);
    cr_assert_eq(p.rc, 0);
    cr_assert_eq(p.plan.window, 96, "sinks and the row itself count");
    cr_assert_eq(p.plan.sinks, 4);
    cr_assert_eq(p.plan.needs, 0);
    cr_assert_eq(p.plan.grid, 0);
}

Test(kvpolicy, window_of_the_model)
{
    static const struct override zero[] = {{"capacity", "0"}, {0}}, narrower[] = {{"capacity", "64"}, {0}};
    struct soq_kv_shape shape = shape_of(4096, 512), none = shape_of(4096, 0);
    struct policy p;

    start(&p, "window", NULL, &shape);
    cr_assert_eq(p.plan.window, 512);
    cr_assert_eq(p.plan.sinks, 0);
    start(&p, "window", narrower, &shape);
    cr_assert_eq(p.plan.window, 64);
    start(&p, "window", zero, &none);
    cr_assert_eq(p.rc, -SOQ_EINVAL);
    cr_assert(strstr(p.err.text, "[kv.window] capacity = 0"));
}

Test(kvpolicy, window_refuses_a_capacity_within_the_sinks)
{
    static const struct override options[] = {{"capacity", "4"}, {"sinks", "4"}, {0}};
    struct soq_kv_shape shape = shape_of(4096, 0);
    struct policy p;

    start(&p, "window", options, &shape);
    cr_assert_eq(p.rc, -SOQ_EINVAL);
    cr_assert(strstr(p.err.text, "capacity = 4") && strstr(p.err.text, "sinks = 4") && strstr(p.err.text, "5 or more"));
}

Test(kvpolicy, window_that_holds_the_context_is_the_identity)
{
    static const struct override options[] = {{"capacity", "64"}, {"sinks", "4"}, {0}};
    struct soq_kv_shape shape = shape_of(64, 0);
    struct soq_kv_plan untouched = {.struct_size = sizeof untouched};
    struct soq_kv_range r[2];
    struct policy p;

    start(&p, "window", options, &shape);
    cr_assert_eq(p.rc, 0);
    cr_assert_eq(memcmp(&p.plan, &untouched, sizeof untouched), 0);
    for (uint32_t n = 1; n <= 64; n++) {
        cr_assert_eq(commit(&p, n, r), 1);
        cr_assert(r[0].first == 0 && r[0].last == n);
    }
}

Test(kvpolicy, window_ranges_by_hand)
{
    static const struct override plain[] = {{"capacity", "8"}, {0}}, sinks[] = {{"capacity", "8"}, {"sinks", "2"}, {0}};
    struct soq_kv_shape shape = shape_of(4096, 0);
    struct soq_kv_range r[2];
    struct policy p;

    start(&p, "window", plain, &shape); /* the row at 8 sees 1 .. 8 */
    cr_assert_eq(commit(&p, 7, r), 1);
    cr_assert(r[0].first == 0 && r[0].last == 7);
    cr_assert_eq(commit(&p, 8, r), 1);
    cr_assert(r[0].first == 1 && r[0].last == 8);

    start(&p, "window", sinks, &shape); /* the row at 10 sees 0, 1 and 5 .. 10 */
    cr_assert_eq(commit(&p, 7, r), 1);
    cr_assert(r[0].first == 0 && r[0].last == 7);
    cr_assert_eq(commit(&p, 8, r), 2);
    cr_assert(r[0].first == 0 && r[0].last == 2 && r[1].first == 3 && r[1].last == 8);
    cr_assert_eq(commit(&p, 10, r), 2);
    cr_assert(r[0].first == 0 && r[0].last == 2 && r[1].first == 5 && r[1].last == 10);
}

/* Exactly the positions that some later row sees stay; a row sees `capacity` entries and no more. */
Test(kvpolicy, window_keeps_what_later_rows_see)
{
    for (uint32_t capacity = 1; capacity <= 40; capacity += 3) {
        for (uint32_t sinks = 0; sinks < capacity && sinks < 7; sinks++) {
            char texts[2][16];
            struct override options[] = {{"capacity", texts[0]}, {"sinks", texts[1]}, {0}};
            struct soq_kv_shape shape = shape_of(400, 0);
            struct policy p;

            snprintf(texts[0], sizeof texts[0], "%u", capacity);
            snprintf(texts[1], sizeof texts[1], "%u", sinks);
            shape.block_tokens = 4;
            start(&p, "window", options, &shape);
            for (uint32_t n = 0; n <= 100; n++) {
                uint32_t window = p.plan.window, seen = 1;
                struct soq_kv_range r[2] = {{0}};
                uint32_t n_ranges = commit(&p, n, r);

                for (uint32_t pos = 0; pos < n; pos++) {
                    bool visible = pos < sinks || pos + window > n; /* to the row at n, and to no later one if not to it */
                    bool kept = false;

                    for (uint32_t i = 0; i < n_ranges; i++)
                        kept |= pos >= r[i].first && pos < r[i].last;
                    cr_assert_eq(kept, visible, "capacity %u sinks %u n %u position %u", capacity, sinks, n, pos);
                    seen += visible;
                }
                cr_assert_eq(seen, n + 1 < capacity ? n + 1 : capacity);
            }
        }
    }
}

Test(kvpolicy, window_needs_room_for_two_ranges)
{
    static const struct override options[] = {{"capacity", "8"}, {0}};
    struct soq_kv_shape shape = shape_of(4096, 0);
    struct soq_kv_commit c = {.struct_size = sizeof c, .n_positions = 100, .max_ranges = 1};
    struct soq_kv_range r;
    uint32_t n_ranges = 77;
    struct policy p;

    start(&p, "window", options, &shape);
    cr_assert_eq(p.ops->on_commit(p.self, NULL, &c, &r, &n_ranges, &p.err), -SOQ_EINVAL);
    cr_assert_eq(n_ranges, 77, "outputs are written on success only");
}
