/* Built from other headers of the same major: a longer descriptor, longer role entries, an older elementwise table that ends
 * after `embed`. */
#define soquete_plugin_v0 toy_base
#define TOY_NAME "skew"
#include "toy.h"
#undef soquete_plugin_v0

struct longer_entry {
    struct soq_role_entry entry;
    uint64_t future;
};

struct longer_plugin {
    struct soq_plugin plugin;
    uint64_t future;
};

static const struct soq_elementwise_ops old_elementwise = {
    .struct_size = offsetof(struct soq_elementwise_ops, norm), .add = toy_add, /* beyond struct_size: must not be seen */
};

static const struct soq_backend_ops skew_backend = {
    .struct_size = sizeof skew_backend,
    .domain = "host",
    .devices = toy_devices,
    .init = toy_backend_init,
    .shutdown = toy_shutdown,
    .supports = toy_supports,
    .begin = toy_begin,
    .end = toy_end,
    .elementwise = &old_elementwise,
};

static const struct longer_entry skew_roles[] = {
    {.entry = {.struct_size = sizeof(struct longer_entry),
               .role = SOQ_ROLE_BACKEND,
               .minor = SOQ_BACKEND_MINOR,
               .min_minor = 1,
               .ops = &skew_backend,
               .options = toy_options,
               .n_options = COUNT(toy_options),
               .option_stride = sizeof toy_options[0]},
     .future = UINT64_MAX},
    {.entry = {.struct_size = sizeof(struct longer_entry),
               .role = SOQ_ROLE_SAMPLER,
               .minor = SOQ_SAMPLER_MINOR,
               .min_minor = 1,
               .ops = &toy_sampler}},
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof(struct longer_plugin),
    .abi_major = SOQ_ABI_MAJOR,
    .name = "skew",
    .variant = "",
    .version = "1.0",
    .summary = "A toy from another time.",
    .licence = "Apache-2.0",
    .n_roles = COUNT(skew_roles),
    .role_stride = sizeof skew_roles[0],
    .roles = &skew_roles[0].entry,
};
