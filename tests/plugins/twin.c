/* twin: the portable CPU backend once more, in a memory of its own: a handle is an address with its top bit flipped, so neither
 * backend can touch what belongs to the other. Its arithmetic is that of cpu/generic, bit for bit, so a model split over the
 * two gives the very numbers that one gives. It also fails when it is told to: the call `fail_at` of `fail_op`, once. */
#include <string.h>

#include "cpu.h"
#include "weights.h"

#define FLIP (UINT64_C(1) << 63)

struct twin {
    struct cpu cpu; /* first: the CPU backend's functions get it as theirs */
    char fail_op[32];
    uint64_t fail_at, n_calls;
};

/* Counts the calls of the op that is to fail; true: this is the one. */
static bool fails(struct twin *t, const char *op)
{
    return t->fail_at && strcmp(op, t->fail_op) == 0 && ++t->n_calls == t->fail_at;
}

static int twin_devices(const struct soq_host *host, const struct soq_config *config, struct soq_device *devices,
                        uint32_t stride, uint32_t capacity, uint32_t *count_out, struct soq_error *err)
{
    int rc = cpu_devices(host, config, devices, stride, capacity, count_out, err);

    if (!rc && capacity)
        devices->memory_free = devices->memory_total = (uint64_t)config->get_int(config->ctx, "memory");
    return rc;
}

static int twin_init(void *self, const struct soq_host *host, const struct soq_config *config,
                     const struct soq_backend_params *params, struct soq_error *err)
{
    struct twin *t = self;

    if (strcmp(config->get_string(config->ctx, "fail_op"), "init") == 0)
        return plugin_fail(err, SOQ_EDEVICE, "twin: init: told to fail");
    strncpy(t->fail_op, config->get_string(config->ctx, "fail_op"), sizeof t->fail_op - 1);
    t->fail_at = (uint64_t)config->get_int(config->ctx, "fail_at");
    return cpu_init(self, host, config, params, err);
}

static int twin_supports(void *self, const struct soq_op_desc *desc, struct soq_error *why)
{
    const struct twin *t = self;

    return strcmp(cpu_op_name(desc->op), t->fail_op) == 0 && !t->fail_at
               ? plugin_fail(why, SOQ_EUNSUPPORTED, "twin: told not to run %s", t->fail_op)
               : cpu_supports(self, desc, why);
}

static int twin_begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    return fails(self, "begin") ? plugin_fail(err, SOQ_EDEVICE, "twin: begin: told to fail") : cpu_begin(self, step, err);
}

static int twin_end(void *self, struct soq_error *err)
{
    return fails(self, "end") ? plugin_fail(err, SOQ_EDEVICE, "twin: end: told to fail") : cpu_end(self, err);
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

static int twin_alloc(void *self, uint64_t bytes, soq_buffer *buffer_out, struct soq_error *err)
{
    int rc = cpu_memory_ops.buffer_alloc(self, bytes, buffer_out, err);

    *buffer_out ^= rc ? 0 : FLIP;
    return rc;
}

static void twin_free(void *self, soq_buffer buffer)
{
    cpu_memory_ops.buffer_free(self, buffer ^ FLIP);
}

static int twin_write(void *self, soq_buffer dst, uint64_t offset, const void *src, uint64_t bytes, struct soq_error *err)
{
    return fails(self, "buffer_write") ? plugin_fail(err, SOQ_EDEVICE, "twin: buffer_write: told to fail")
                                       : cpu_memory_ops.buffer_write(self, dst ^ FLIP, offset, src, bytes, err);
}

static int twin_read(void *self, soq_buffer src, uint64_t offset, void *dst, uint64_t bytes, struct soq_error *err)
{
    return fails(self, "buffer_read") ? plugin_fail(err, SOQ_EDEVICE, "twin: buffer_read: told to fail")
                                      : cpu_memory_ops.buffer_read(self, src ^ FLIP, offset, dst, bytes, err);
}

static int twin_group(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *group_out, struct soq_error *err)
{
    return cpu_attention_ops.group_create(self, desc, group_out, err);
}

static void twin_group_free(void *self, soq_kv_group group)
{
    cpu_attention_ops.group_free(self, group);
}

static int twin_slab(void *self, soq_kv_group group, uint32_t block_class, uint32_t first_block, uint32_t n_blocks,
                     soq_buffer slab, struct soq_error *err)
{
    return cpu_attention_ops.group_slab(self, group, block_class, first_block, n_blocks, slab ? slab ^ FLIP : 0, err);
}

/* ---- Ops ----------------------------------------------------------------------------------------------------------------- */

static void flip(soq_buffer *const *buffers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (*buffers[i])
            *buffers[i] ^= FLIP;
}

#define OP(table, name, op, ...)                                                                                               \
    static int twin_##name(void *self, const struct soq_##name##_args *args)                                                   \
    {                                                                                                                          \
        struct soq_##name##_args a = *args;                                                                                    \
        soq_buffer *const buffers[] = {__VA_ARGS__};                                                                           \
                                                                                                                               \
        flip(buffers, sizeof buffers / sizeof buffers[0]);                                                                     \
        return fails(self, #name) ? cpu_refuse(self, op, SOQ_EDEVICE, "told to fail") : cpu_##table##_ops.name(self, &a);      \
    }

OP(matmul, matmul, SOQ_OP_MATMUL, &a.x.buffer, &a.y.buffer)
OP(elementwise, embed, SOQ_OP_EMBED, &a.y.buffer)
OP(elementwise, norm, SOQ_OP_NORM, &a.x.buffer, &a.y.buffer)
OP(elementwise, rope_table, SOQ_OP_ROPE_TABLE, &a.inv_freq.buffer, &a.table.buffer)
OP(elementwise, rope, SOQ_OP_ROPE, &a.x.buffer, &a.table.buffer)
OP(elementwise, activation, SOQ_OP_ACTIVATION, &a.gate.buffer, &a.up.buffer, &a.y.buffer)
OP(elementwise, add, SOQ_OP_ADD, &a.a.buffer, &a.b.buffer, &a.y.buffer)
OP(elementwise, scale, SOQ_OP_SCALE, &a.x.buffer)
OP(elementwise, gather, SOQ_OP_GATHER, &a.x.buffer, &a.y.buffer)
OP(attention, kv_append, SOQ_OP_KV_APPEND, &a.k.buffer, &a.v.buffer)
OP(attention, attention, SOQ_OP_ATTENTION, &a.inv_freq.buffer, &a.q.buffer, &a.out.buffer, &a.mass)

/* ---- Tables -------------------------------------------------------------------------------------------------------------- */

static const struct soq_memory_ops memory_ops = {
    .struct_size = sizeof memory_ops,
    .buffer_alloc = twin_alloc,
    .buffer_free = twin_free,
    .buffer_write = twin_write,
    .buffer_read = twin_read,
    .weight_prepare = cpu_weight_prepare,
    .weight_free = cpu_weight_free,
};

static const struct soq_matmul_ops matmul_ops = {.struct_size = sizeof matmul_ops, .matmul = twin_matmul};

static const struct soq_elementwise_ops elementwise_ops = {
    .struct_size = sizeof elementwise_ops,
    .embed = twin_embed,
    .norm = twin_norm,
    .rope_table = twin_rope_table,
    .rope = twin_rope,
    .activation = twin_activation,
    .add = twin_add,
    .scale = twin_scale,
    .gather = twin_gather,
};

static const struct soq_attention_ops attention_ops = {
    .struct_size = sizeof attention_ops,
    .group_create = twin_group,
    .group_free = twin_group_free,
    .group_slab = twin_slab,
    .kv_append = twin_kv_append,
    .attention = twin_attention,
};

#define OPTION(type_, key_, default_, ...)                                                                                     \
    {                                                                                                                          \
        .struct_size = sizeof(struct soq_option), .type = type_, .key = key_, .default_value = default_, __VA_ARGS__           \
    }

static const struct soq_option options[] = {
    OPTION(SOQ_OPT_INT, "threads", "1", .min = 0, .max = 1024, .help = "As those of the CPU backend."),
    OPTION(SOQ_OPT_ENUM, "activations", "f32", .min = 1, .choices = "q8|f32", .help = "As that of the CPU backend."),
    OPTION(SOQ_OPT_BOOL, "repack", "on", .min = 1, .help = "As that of the CPU backend."),
    OPTION(SOQ_OPT_SIZE, "memory", "1GiB", .min = 1, .max = 0x1p50, .help = "That the device claims to have free."),
    OPTION(SOQ_OPT_STRING, "fail_op", "", .min = 1, .help = "The op, or init, begin, end, buffer_read, buffer_write."),
    OPTION(SOQ_OPT_INT, "fail_at", "0", .min = 0, .max = 1e9, .help = "The call that fails; 0: the op is not supported."),
};

static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend,
    .flags = SOQ_BACKEND_BATCH_INVARIANT,
    .domain = "twin",
    .instance_size = sizeof(struct twin),
    .devices = twin_devices,
    .init = twin_init,
    .shutdown = cpu_shutdown,
    .supports = twin_supports,
    .begin = twin_begin,
    .end = twin_end,
    .memory = &memory_ops,
    .matmul = &matmul_ops,
    .attention = &attention_ops,
    .elementwise = &elementwise_ops,
};

static const struct soq_role_entry roles[] = {
    {
        .struct_size = sizeof roles[0],
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
    .name = "twin",
    .variant = "",
    .version = "0",
    .summary = "The CPU backend in a memory of its own",
    .licence = "Apache-2.0",
    .n_roles = 1,
    .role_stride = sizeof roles[0],
    .roles = roles,
};
