/* The descriptor of a plugin that is one KV policy; full.c writes it out and says what each member means. */
#ifndef KVPOLICY_DESCRIBE_H
#define KVPOLICY_DESCRIBE_H

#include "soquete/plugin.h"

/* NAME_ops and NAME_options are its tables. */
#define KV_POLICY_PLUGIN(policy, what)                                                                                         \
    static const struct soq_role_entry policy##_roles[] = {                                                                    \
        {                                                                                                                      \
            .struct_size = sizeof policy##_roles[0],                                                                           \
            .role = SOQ_ROLE_KV_POLICY,                                                                                        \
            .minor = SOQ_KV_POLICY_MINOR,                                                                                      \
            .min_minor = SOQ_KV_POLICY_MINOR,                                                                                  \
            .ops = &policy##_ops,                                                                                              \
            .options = policy##_options,                                                                                       \
            .n_options = sizeof policy##_options / sizeof policy##_options[0],                                                 \
            .option_stride = sizeof policy##_options[0],                                                                       \
        },                                                                                                                     \
    };                                                                                                                         \
    const struct soq_plugin soquete_plugin_v0 = {                                                                              \
        .struct_size = sizeof soquete_plugin_v0,                                                                               \
        .abi_major = SOQ_ABI_MAJOR,                                                                                            \
        .name = #policy,                                                                                                       \
        .variant = "",                                                                                                         \
        .version = "0.1.0",                                                                                                    \
        .summary = "KV policy: " what,                                                                                         \
        .licence = "Apache-2.0",                                                                                               \
        .n_roles = sizeof policy##_roles / sizeof policy##_roles[0],                                                           \
        .role_stride = sizeof policy##_roles[0],                                                                               \
        .roles = policy##_roles,                                                                                               \
    }

#endif
