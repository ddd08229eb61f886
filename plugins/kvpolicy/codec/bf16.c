/* KV codec `bf16`: numbers are kept as the upper halves of f32, rounded to nearest, ties to even. Memory as f16, with the range
 * of f32 and 8 bits of precision instead of 11: for models whose keys leave the range of f16. */
#include "fail.h"
#include "half.h"
#include "soquete/plugin.h"

static int bf16_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    (void)self;
    (void)host;
    (void)config;
    (void)err;
    return 0;
}

static int bf16_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    uint64_t numbers = (uint64_t)tile->tokens * tile->width;

    (void)self;
    if (numbers == 0 || numbers > UINT64_MAX / 16)
        return plugin_fail(err, SOQ_EINVAL, "kv codec bf16: a tile of %u tokens x %u numbers cannot be stored", tile->tokens,
                           tile->width);
    format_out->kind = SOQ_FORMAT_PLAIN;
    format_out->dtype = SOQ_DTYPE_BF16;
    format_out->tail_dtype = SOQ_DTYPE_BF16;
    format_out->tile_bytes = (numbers * sizeof(uint16_t) + 7) / 8 * 8;
    return 0;
}

static int bf16_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    size_t numbers = (size_t)tile->tokens * tile->width;
    uint16_t *half = dst;

    (void)self;
    (void)err;
    for (size_t i = 0; i < numbers; i++)
        half[i] = bf16_from_f32(src[i]);
    return 0;
}

static int bf16_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    size_t numbers = (size_t)tile->tokens * tile->width;
    const uint16_t *half = src;

    (void)self;
    (void)err;
    for (size_t i = 0; i < numbers; i++)
        dst[i] = bf16_to_f32(half[i]);
    return 0;
}

static const struct soq_kv_codec_ops bf16_ops = {
    .struct_size = sizeof bf16_ops,
    .init = bf16_init,
    .describe = bf16_describe,
    .encode = bf16_encode,
    .decode = bf16_decode,
};

static const struct soq_role_entry bf16_roles[] = {
    {
        .struct_size = sizeof bf16_roles[0],
        .role = SOQ_ROLE_KV_CODEC,
        .minor = SOQ_KV_CODEC_MINOR,
        .min_minor = SOQ_KV_CODEC_MINOR,
        .ops = &bf16_ops,
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "bf16",
    .variant = "",
    .version = "0.1.0",
    .summary = "KV codec: the upper halves of f32",
    .licence = "Apache-2.0",
    .n_roles = sizeof bf16_roles / sizeof bf16_roles[0],
    .role_stride = sizeof bf16_roles[0],
    .roles = bf16_roles,
};
