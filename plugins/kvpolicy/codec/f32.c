/* KV codec `f32`: numbers are kept as they are. Twice the memory of f16; the reference that every other codec is compared with.
 */
#include <string.h>

#include "fail.h"
#include "soquete/plugin.h"

static int f32_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    (void)self;
    (void)host;
    (void)config;
    (void)err;
    return 0;
}

static int f32_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    uint64_t numbers = (uint64_t)tile->tokens * tile->width;

    (void)self;
    if (numbers == 0 || numbers > UINT64_MAX / 16)
        return plugin_fail(err, SOQ_EINVAL, "kv codec f32: a tile of %u tokens x %u numbers cannot be stored", tile->tokens,
                           tile->width);
    format_out->kind = SOQ_FORMAT_PLAIN;
    format_out->dtype = SOQ_DTYPE_F32;
    format_out->tail_dtype = SOQ_DTYPE_F32;
    format_out->tile_bytes = (numbers * sizeof(float) + 7) / 8 * 8;
    return 0;
}

static int f32_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    (void)self;
    (void)err;
    memcpy(dst, src, (size_t)tile->tokens * tile->width * sizeof *src);
    return 0;
}

static int f32_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    (void)self;
    (void)err;
    memcpy(dst, src, (size_t)tile->tokens * tile->width * sizeof *dst);
    return 0;
}

static const struct soq_kv_codec_ops f32_ops = {
    .struct_size = sizeof f32_ops,
    .init = f32_init,
    .describe = f32_describe,
    .encode = f32_encode,
    .decode = f32_decode,
};

static const struct soq_role_entry f32_roles[] = {
    {
        .struct_size = sizeof f32_roles[0],
        .role = SOQ_ROLE_KV_CODEC,
        .minor = SOQ_KV_CODEC_MINOR,
        .min_minor = SOQ_KV_CODEC_MINOR,
        .ops = &f32_ops,
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "f32",
    .variant = "",
    .version = "0.1.0",
    .summary = "KV codec: numbers as they are",
    .licence = "Apache-2.0",
    .n_roles = sizeof f32_roles / sizeof f32_roles[0],
    .role_stride = sizeof f32_roles[0],
    .roles = f32_roles,
};
