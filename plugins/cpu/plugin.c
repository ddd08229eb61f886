/* The descriptor: what the host sees before any code of the plugin runs. */
#include "cpu.h"
#include "variant.h"

static const struct soq_option options[] = {
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_INT,
        .key = "threads",
        .default_value = "0",
        .min = 0,
        .max = 1024,
        .help = "Threads to compute with; 0: as many as the process may use processors.",
    },
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_ENUM,
        .key = "activations",
        .default_value = "q8",
        .min = 1,
        .choices = "q8|f32",
        .help = "What quantised weights are multiplied with: activations rounded to 8 bits (fast), or as they are (reference).",
    },
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_BOOL,
        .key = "repack",
        .default_value = "on",
        .min = 1,
        .help = "Copy weights into the order that the kernels read fastest; off: compute from the mapped file, slower.",
    },
};

static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend,
    .flags = SOQ_BACKEND_BATCH_INVARIANT,
    .domain = "host",
    .instance_size = sizeof(struct cpu),
    .devices = cpu_devices,
    .init = cpu_init,
    .shutdown = cpu_shutdown,
    .supports = cpu_supports,
    .begin = cpu_begin,
    .end = cpu_end,
    .memory = &cpu_memory_ops,
    .matmul = &cpu_matmul_ops,
    .attention = &cpu_attention_ops,
    .elementwise = &cpu_elementwise_ops,
};

static const struct soq_role_entry roles[] = {
    {
        .struct_size = sizeof(struct soq_role_entry),
        .role = SOQ_ROLE_BACKEND,
        .minor = SOQ_BACKEND_MINOR,
        .min_minor = SOQ_BACKEND_MINOR,
        .ops = &backend,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .option_stride = sizeof options[0],
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "cpu",
    .variant = CPU_VARIANT,
    .version = "0.1.0",
    .summary = "Computes on the processor",
    .licence = "Apache-2.0",
    .n_roles = sizeof roles / sizeof roles[0],
    .role_stride = sizeof roles[0],
    .roles = roles,
};
