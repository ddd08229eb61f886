/* A plugin that fills every role and computes nothing. Each toy is a file that changes one thing by a macro and includes this;
 * the macros below show what a correct plugin has. */
#include <stddef.h>
#include <string.h>

#include "soquete/plugin.h"

#define UNUSED __attribute__((unused))
#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof(array)[0]))

#ifndef TOY_NAME
#define TOY_NAME "toy"
#endif
#ifndef TOY_VARIANT
#define TOY_VARIANT ""
#endif
#ifndef TOY_VERSION
#define TOY_VERSION "1.0"
#endif
#ifndef TOY_ABI
#define TOY_ABI SOQ_ABI_MAJOR
#endif
#ifndef TOY_SIZE
#define TOY_SIZE sizeof(struct soq_plugin)
#endif
#ifndef TOY_MINOR
#define TOY_MINOR SOQ_BACKEND_MINOR
#endif
#ifndef TOY_MIN_MINOR
#define TOY_MIN_MINOR 1
#endif
#ifndef TOY_STRIDE
#define TOY_STRIDE sizeof(struct soq_role_entry)
#endif
#ifndef TOY_DEVICES
#define TOY_DEVICES 1
#endif
#ifndef TOY_BEGIN
#define TOY_BEGIN toy_begin
#endif
#ifndef TOY_MATMUL
#define TOY_MATMUL &toy_matmul
#endif
#ifndef TOY_MEMORY_SIZE
#define TOY_MEMORY_SIZE sizeof(struct soq_memory_ops)
#endif
#ifndef TOY_FREE
#define TOY_FREE toy_buffer_free
#endif
#ifndef TOY_STATE_SIZE
#define TOY_STATE_SIZE 0
#endif
#ifndef TOY_CHOICES
#define TOY_CHOICES "red|green"
#endif

/* ---- backend */

/* The device's name is what the section says, so that a test sees the configuration arrive. */
static int toy_devices(const struct soq_host *host, const struct soq_config *config, struct soq_device *devices,
                       uint32_t stride UNUSED, uint32_t capacity UNUSED, uint32_t *count_out, struct soq_error *err)
{
    *count_out = TOY_DEVICES;
    if (!TOY_DEVICES) {
        err->code = -SOQ_ENOTFOUND;
        strcpy(err->text, "the toy box is empty");
        return -SOQ_ENOTFOUND;
    }
    host->log(host->ctx, SOQ_LOG_DEBUG, "toy: devices");
    strncpy(devices[0].name, config->get_string(config->ctx, "colour"), sizeof devices[0].name - 1);
    devices[0].memory_total = (uint64_t)config->get_int(config->ctx, "size");
    return 0;
}

static int toy_backend_init(void *self UNUSED, const struct soq_host *host UNUSED, const struct soq_config *config UNUSED,
                            const struct soq_backend_params *params UNUSED, struct soq_error *err UNUSED)
{
    return 0;
}

static void toy_shutdown(void *self UNUSED)
{
}

static int toy_supports(void *self UNUSED, const struct soq_op_desc *desc UNUSED, struct soq_error *why UNUSED)
{
    return 0;
}

UNUSED static int toy_begin(void *self UNUSED, const struct soq_step *step UNUSED, struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_end(void *self UNUSED, struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_buffer_alloc(void *self UNUSED, uint64_t bytes UNUSED, soq_buffer *buffer_out, struct soq_error *err UNUSED)
{
    *buffer_out = 1;
    return 0;
}

UNUSED static void toy_buffer_free(void *self UNUSED, soq_buffer buffer UNUSED)
{
}

static int toy_write(void *self UNUSED, soq_buffer dst UNUSED, uint64_t offset UNUSED, const void *src UNUSED,
                     uint64_t bytes UNUSED, struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_read(void *self UNUSED, soq_buffer src UNUSED, uint64_t offset UNUSED, void *dst UNUSED, uint64_t bytes UNUSED,
                    struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_prepare(void *self UNUSED, const struct soq_weight_desc *desc UNUSED, struct soq_weight_info *info UNUSED,
                       struct soq_error *err UNUSED)
{
    return 0;
}

static void toy_weight_free(void *self UNUSED, soq_weight weight UNUSED)
{
}

UNUSED static int toy_matmul_op(void *self UNUSED, const struct soq_matmul_args *args UNUSED)
{
    return 0;
}

static int toy_add(void *self UNUSED, const struct soq_add_args *args UNUSED)
{
    return 0;
}

static const struct soq_memory_ops toy_memory = {
    .struct_size = TOY_MEMORY_SIZE,
    .buffer_alloc = toy_buffer_alloc,
    .buffer_free = TOY_FREE,
    .buffer_write = toy_write,
    .buffer_read = toy_read,
    .weight_prepare = toy_prepare,
    .weight_free = toy_weight_free,
};

UNUSED static const struct soq_matmul_ops toy_matmul = {.struct_size = sizeof toy_matmul, .matmul = toy_matmul_op};

static const struct soq_elementwise_ops toy_elementwise = {.struct_size = sizeof toy_elementwise, .add = toy_add};

static const struct soq_backend_ops toy_backend = {
    .struct_size = sizeof toy_backend,
    .domain = "host",
    .instance_size = 64,
    .devices = toy_devices,
    .init = toy_backend_init,
    .shutdown = toy_shutdown,
    .supports = toy_supports,
    .begin = TOY_BEGIN,
    .end = toy_end,
    .memory = &toy_memory,
    .matmul = TOY_MATMUL,
    .elementwise = &toy_elementwise,
};

/* ---- The other roles */

static int toy_init(void *self UNUSED, const struct soq_host *host UNUSED, const struct soq_config *config UNUSED,
                    struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_describe_policy(void *self UNUSED, const struct soq_kv_shape *shape UNUSED, struct soq_kv_plan *plan UNUSED,
                               struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_describe_codec(void *self UNUSED, const struct soq_kv_tile *tile UNUSED, struct soq_kv_format *format UNUSED,
                              struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_encode(void *self UNUSED, const struct soq_kv_tile *tile UNUSED, const float *src UNUSED, void *dst UNUSED,
                      struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_decode(void *self UNUSED, const struct soq_kv_tile *tile UNUSED, const void *src UNUSED, float *dst UNUSED,
                      struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_defaults(void *self UNUSED, struct soq_sampling *sampling UNUSED, struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_check(void *self UNUSED, const struct soq_sampling *sampling UNUSED, uint32_t n_vocab UNUSED,
                     struct soq_error *err UNUSED)
{
    return 0;
}

static int toy_sample(void *self UNUSED, void *state UNUSED, const struct soq_sampling *sampling UNUSED,
                      const struct soq_sampler_row *row UNUSED, struct soq_sampled *sampled UNUSED,
                      struct soq_error *err UNUSED)
{
    return 0;
}

static const struct soq_kv_policy_ops toy_policy = {
    .struct_size = sizeof toy_policy,
    .init = toy_init,
    .describe = toy_describe_policy,
    .state_size = TOY_STATE_SIZE,
};

static const struct soq_kv_codec_ops toy_codec = {
    .struct_size = sizeof toy_codec,
    .init = toy_init,
    .describe = toy_describe_codec,
    .encode = toy_encode,
    .decode = toy_decode,
};

static const struct soq_sampler_ops toy_sampler = {
    .struct_size = sizeof toy_sampler,
    .init = toy_init,
    .defaults = toy_defaults,
    .check = toy_check,
    .sample = toy_sample,
};

/* ---- The descriptor */

static const struct soq_option toy_options[] = {
    {.struct_size = sizeof(struct soq_option),
     .type = SOQ_OPT_ENUM,
     .key = "colour",
     .default_value = "red",
     .choices = TOY_CHOICES,
     .help = "The paint."},
    {.struct_size = sizeof(struct soq_option),
     .type = SOQ_OPT_SIZE,
     .key = "size",
     .default_value = "1KiB",
     .min = 1,
     .max = 1 << 20,
     .help = "How much of it."},
    {.struct_size = sizeof(struct soq_option),
     .type = SOQ_OPT_FLOAT,
     .key = "gloss",
     .default_value = "0.5",
     .min = 0,
     .max = 1,
     .help = "Share of light that comes back."},
    {.struct_size = sizeof(struct soq_option),
     .type = SOQ_OPT_BOOL,
     .key = "dry",
     .default_value = "yes",
     .min = 0,
     .max = -1,
     .help = "Whether it may be touched."},
};

#define TOY_ROLE(role_, minor_, ops_)                                                                                          \
    {                                                                                                                          \
        .struct_size = sizeof(struct soq_role_entry), .role = role_, .minor = minor_, .min_minor = TOY_MIN_MINOR, .ops = ops_, \
        .options = toy_options, .n_options = COUNT(toy_options), .option_stride = sizeof toy_options[0]                        \
    }

static const struct soq_role_entry toy_roles[] = {
    TOY_ROLE(SOQ_ROLE_BACKEND, TOY_MINOR, &toy_backend), TOY_ROLE(SOQ_ROLE_KV_POLICY, SOQ_KV_POLICY_MINOR, &toy_policy),
    TOY_ROLE(SOQ_ROLE_KV_CODEC, SOQ_KV_CODEC_MINOR, &toy_codec), TOY_ROLE(SOQ_ROLE_SAMPLER, SOQ_SAMPLER_MINOR, &toy_sampler),
#ifdef TOY_MORE_ROLES
    TOY_MORE_ROLES
#endif
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = TOY_SIZE,
    .abi_major = TOY_ABI,
    .name = TOY_NAME,
    .variant = TOY_VARIANT,
    .version = TOY_VERSION,
    .summary = "A toy.",
    .licence = "Apache-2.0",
    .n_roles = COUNT(toy_roles),
    .role_stride = TOY_STRIDE,
    .roles = toy_roles,
};
