/* KV policy `streaming60`: the first `sinks` and the last `recent` positions stay, at their original positions. */
#include <soquete/plugin.h>

struct streaming {
    uint32_t sinks, recent, everything; /* everything: nonzero where the budget holds the whole context */
};

static int streaming_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct streaming *s = self;

    (void)host, (void)err;
    s->sinks = (uint32_t)config->get_int(config->ctx, "sinks");
    s->recent = (uint32_t)config->get_int(config->ctx, "recent");
    return 0;
}

static int streaming_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan, struct soq_error *err)
{
    struct streaming *s = self;

    (void)err;
    s->everything = s->sinks >= shape->context || s->recent >= shape->context - s->sinks;
    if (s->everything)
        return 0;
    plan->sinks = s->sinks;
    plan->window = s->recent;
    return 0;
}

static int streaming_on_commit(void *self, void *state, const struct soq_kv_commit *commit, struct soq_kv_range *ranges,
                               uint32_t *n_ranges_out, struct soq_error *err)
{
    const struct streaming *s = self;
    uint32_t n = commit->n_positions, first = n + 1 > s->recent ? n + 1 - s->recent : 0;
    uint32_t all = s->everything || first <= s->sinks;

    (void)state;
    if (commit->max_ranges < 2) {
        if (err) /* who asks why */
            *err = (struct soq_error){sizeof *err, -SOQ_ELIMIT, "streaming60: there is no room for 2 ranges"};
        return -SOQ_ELIMIT;
    }
    ranges[0] = (struct soq_kv_range){0, all ? n : s->sinks};
    ranges[1] = (struct soq_kv_range){first, n};
    *n_ranges_out = all ? 1 : 2;
    return 0;
}

/* clang-format off */
static const struct soq_option options[] = {
    {.struct_size = sizeof options[0], .type = SOQ_OPT_INT, .key = "sinks", .default_value = "4",
     .min = 1, .max = INT32_MAX, .help = "First positions that stay."},
    {.struct_size = sizeof options[0], .type = SOQ_OPT_INT, .key = "recent", .default_value = "2000",
     .min = 2, .max = INT32_MAX, .help = "Last positions that stay, the row's own included."},
};

static const struct soq_kv_policy_ops ops = {
    .struct_size = sizeof ops, .instance_size = sizeof(struct streaming), .init = streaming_init,
    .describe = streaming_describe, .on_commit = streaming_on_commit,
};

static const struct soq_role_entry role = {
    .struct_size = sizeof role, .role = SOQ_ROLE_KV_POLICY, .minor = SOQ_KV_POLICY_MINOR, .min_minor = SOQ_KV_POLICY_MINOR,
    .ops = &ops, .options = options, .n_options = 2, .option_stride = sizeof options[0],
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0, .abi_major = SOQ_ABI_MAJOR,
    .name = "streaming60", .variant = "", .version = "1.0", .licence = "Apache-2.0", .summary = "KV policy: sinks and recent",
    .n_roles = 1, .role_stride = sizeof role, .roles = &role,
};
