/* A plugin from another time: built from the frozen header beside it, never from today's. */
#include "soquete_v0.h"

static int old_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    (void)self;
    (void)host;
    (void)config;
    (void)err;
    return 0;
}

static int old_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    (void)self;
    (void)shape;
    (void)plan_out;
    (void)err;
    return 0;
}

static const struct soq_kv_policy_ops old_ops = {
    .struct_size = sizeof old_ops,
    .init = old_init,
    .describe = old_describe,
};

static const struct soq_role_entry old_roles[] = {
    {
        .struct_size = sizeof old_roles[0],
        .role = SOQ_ROLE_KV_POLICY,
        .minor = SOQ_KV_POLICY_MINOR,
        .min_minor = SOQ_KV_POLICY_MINOR,
        .ops = &old_ops,
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "old",
    .variant = "",
    .version = "0.0.1",
    .summary = "KV policy from another time",
    .licence = "Apache-2.0",
    .n_roles = sizeof old_roles / sizeof old_roles[0],
    .role_stride = sizeof old_roles[0],
    .roles = old_roles,
};
