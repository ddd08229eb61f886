/* A selecting policy with one thing wrong: the one that `soquete new` writes, behind a wrapper. */
#define soquete_plugin_v0 real_plugin
#include "heaviest.c"
#undef soquete_plugin_v0

static int bad_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    int rc = policy_select(self, state, selection, err);

    for (uint32_t h = 0; h < selection->n_heads && !rc; h++) {
        struct soq_kv_head *head = (struct soq_kv_head *)((char *)selection->heads + (size_t)h * selection->head_stride);

        BAD_SELECT
    }
    return rc;
}

static const struct soq_kv_policy_ops bad_ops = {
    .struct_size = sizeof bad_ops,
    .instance_size = sizeof(struct policy),
    .init = policy_init,
    .describe = policy_describe,
    .select = bad_select,
    .scratch = {.per_entry = sizeof(struct ranked)},
    .budget = policy_budget,
};

static const struct soq_role_entry bad_roles[] = {
    {
        .struct_size = sizeof bad_roles[0],
        .role = SOQ_ROLE_KV_POLICY,
        .minor = SOQ_KV_POLICY_MINOR,
        .min_minor = SOQ_KV_POLICY_MINOR,
        .ops = &bad_ops,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .option_stride = sizeof options[0],
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
