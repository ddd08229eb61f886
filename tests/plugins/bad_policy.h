/* A policy with one thing wrong: the tree's window behind a wrapper. */
#define soquete_plugin_v0 real_plugin
#define window_roles real_roles
#define window_ops real_ops
#include "kvpolicy/evict/window.c"
#undef soquete_plugin_v0
#undef window_roles
#undef window_ops

static int bad_on_commit(void *self, void *state, const struct soq_kv_commit *commit, struct soq_kv_range *ranges,
                         uint32_t *n_ranges_out, struct soq_error *err)
{
    int rc = window_on_commit(self, state, commit, ranges, n_ranges_out, err);

    if (!rc) {
        BAD_COMMIT;
    }
    return rc;
}

static const struct soq_kv_policy_ops bad_ops = {
    .struct_size = sizeof bad_ops,
    .instance_size = sizeof(struct window),
    .init = window_init,
    .describe = window_describe,
    .on_commit = bad_on_commit,
};

static const struct soq_role_entry bad_roles[] = {
    {
        .struct_size = sizeof bad_roles[0],
        .role = SOQ_ROLE_KV_POLICY,
        .minor = SOQ_KV_POLICY_MINOR,
        .min_minor = SOQ_KV_POLICY_MINOR,
        .ops = &bad_ops,
        .options = window_options,
        .n_options = sizeof window_options / sizeof window_options[0],
        .option_stride = sizeof window_options[0],
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "bad",
    .variant = "",
    .version = "1",
    .summary = "A policy with one thing wrong",
    .licence = "Apache-2.0",
    .n_roles = sizeof bad_roles / sizeof bad_roles[0],
    .role_stride = sizeof bad_roles[0],
    .roles = bad_roles,
};
