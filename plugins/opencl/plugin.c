/* The descriptor: what the host sees before any code of the plugin runs. */
#include "opencl.h"

static const struct soq_option options[] = {
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_STRING,
        .key = "device",
        .default_value = "",
        .min = 1,
        .help = "Which device: its index, its UUID or PCI address, or part of its name; empty: the first.",
    },
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_SIZE,
        .key = "memory",
        .default_value = "0",
        .min = 1,
        .help = "Most bytes to take of the device's memory; 0: what the driver gives.",
    },
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_SIZE,
        .key = "arena",
        .default_value = "64MiB",
        .min = 4096,
        .max = 1ull << 40,
        .help = "Size of the first piece of memory that buffers are cut from; each further one is twice as large.",
    },
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_SIZE,
        .key = "decoded",
        .default_value = "32MiB",
        .min = 1,
        .max = 1ull << 40,
        .help =
            "Room for packed KV tiles that the host decodes because no kernel does; the least is taken where it is too small.",
    },
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_PATH,
        .key = "cache_dir",
        .default_value = "",
        .min = 1,
        .help = "Folder for compiled kernels, which makes later starts faster; empty: none.",
    },
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_BOOL,
        .key = "profile",
        .default_value = "off",
        .min = 1,
        .help = "Measure each kernel and log a table at the end.",
    },
};

static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend,
    .flags = SOQ_BACKEND_BATCH_INVARIANT,
    .domain = "opencl",
    .instance_size = sizeof(struct opencl),
    .devices = opencl_devices,
    .init = opencl_init,
    .shutdown = opencl_shutdown,
    .supports = opencl_supports,
    .begin = opencl_begin,
    .end = opencl_end,
    .memory = &opencl_memory_ops,
    .matmul = &opencl_matmul_ops,
    .attention = &opencl_attention_ops,
    .elementwise = &opencl_elementwise_ops,
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
    .name = "opencl",
    .variant = "",
    .version = "0.1.0",
    .summary = "Computes on GPUs and other devices with an OpenCL driver",
    .licence = "Apache-2.0",
    .n_roles = sizeof roles / sizeof roles[0],
    .role_stride = sizeof roles[0],
    .roles = roles,
};
