/* KV policy `full`: every entry stays. The baseline, and the smallest policy: copy this file to begin one of your own
 * (docs/plugin-guide.md takes it from there).
 *
 * A policy answers two questions about a sequence's cache, and both answers are arithmetic on positions: what will you need
 * (describe), and what stays (on_commit). It sees no tensor, no device and no thread. */

/* The one header that a plugin includes from Soquete, and nothing of Soquete's is linked. */
#include "soquete/plugin.h"

/* Called first. A policy with options reads them from `config`, the section [kv.full]; there are none here. A policy that
 * remembers something declares a struct, gives its size as instance_size below, and finds it zeroed at `self`. */
static int full_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    (void)self;
    (void)host;
    (void)config;
    (void)err;
    return 0; /* success; a failure is -SOQ_E... and a message in err */
}

/* Called when the model is known. The plan arrives saying "keep everything, need nothing", which is just what we want to say. A
 * policy that limits what rows see sets `window` and `sinks`; one that ranks entries asks for attention mass in `needs`. */
static int full_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    (void)self;
    (void)shape;
    (void)plan_out;
    (void)err;
    return 0;
}

/* The role's table. Slots that are not named are NULL, and optional: without `on_commit` nothing is ever evicted, without
 * `shutdown` there is nothing to give back, and with a state_size of 0 a sequence carries no state of ours. */
static const struct soq_kv_policy_ops full_ops = {
    .struct_size = sizeof full_ops,
    .instance_size = 0, /* bytes at self */
    .init = full_init,
    .describe = full_describe,
};

/* A plugin may fill several roles; this one fills one. `minor` is the version of the role's table that we were compiled with,
 * `min_minor` the oldest host that we work with. */
static const struct soq_role_entry full_roles[] = {
    {
        .struct_size = sizeof full_roles[0],
        .role = SOQ_ROLE_KV_POLICY,
        .minor = SOQ_KV_POLICY_MINOR,
        .min_minor = SOQ_KV_POLICY_MINOR,
        .ops = &full_ops,
    },
};

/* The only symbol that the shared object exports: constant data, so that the host can check it before any of our code runs.
 * Name and variant are those of the manifest, full.ini. */
const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "full",
    .variant = "",
    .version = "0.1.0",
    .summary = "KV policy: every entry stays",
    .licence = "Apache-2.0",
    .n_roles = sizeof full_roles / sizeof full_roles[0],
    .role_stride = sizeof full_roles[0],
    .roles = full_roles,
};
