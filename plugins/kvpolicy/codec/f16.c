/* KV codec `f16`: numbers are kept as IEEE half floats. The default, and the smallest codec: copy this file to begin one.
 *
 * A codec stores tiles. A tile holds the keys or the values of one head in one layer for one block of tokens: tokens x width
 * numbers, row by row. `describe` says in a struct how tiles are stored, so that a backend that knows such a format can compute
 * on it directly; any other backend calls `decode` and goes on with f32. That is why a new codec works everywhere at once. */

/* Conversions are shared with the other plugins; everything else comes from the ABI's header. */
#include "half.h"
#include "soquete/plugin.h"

#include "fail.h"

/* Called first. Options would come from `config`, the section [kv.f16]; there are none. */
static int f16_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    (void)self;
    (void)host;
    (void)config;
    (void)err;
    return 0;
}

/* Says how a tile of this shape is stored; a shape that a codec cannot store is refused here, when the model is loaded, and
 * never later. The description arrives zeroed: name only what applies. */
static int f16_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    uint64_t numbers = (uint64_t)tile->tokens * tile->width;

    (void)self;
    if (numbers == 0 || numbers > UINT64_MAX / 16)
        return plugin_fail(err, SOQ_EINVAL, "kv codec f16: a tile of %u tokens x %u numbers cannot be stored", tile->tokens,
                           tile->width);
    format_out->kind = SOQ_FORMAT_PLAIN;                               /* elements in a row, no scales, no codes */
    format_out->dtype = SOQ_DTYPE_F16;                                 /* of the elements */
    format_out->tail_dtype = SOQ_DTYPE_F16;                            /* of the block that is still being filled */
    format_out->tile_bytes = (numbers * sizeof(uint16_t) + 7) / 8 * 8; /* tiles begin on multiples of 8 */
    return 0;
}

/* f32 -> stored. Called from several threads at once: it touches nothing but its arguments. */
static int f16_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    size_t numbers = (size_t)tile->tokens * tile->width;
    uint16_t *half = dst;

    (void)self;
    (void)err;
    for (size_t i = 0; i < numbers; i++)
        half[i] = f16_from_f32(src[i]);
    return 0;
}

/* Stored -> f32. */
static int f16_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    size_t numbers = (size_t)tile->tokens * tile->width;
    const uint16_t *half = src;

    (void)self;
    (void)err;
    for (size_t i = 0; i < numbers; i++)
        dst[i] = f16_to_f32(half[i]);
    return 0;
}

/* The role's table; `shutdown`, which is optional, is NULL. */
static const struct soq_kv_codec_ops f16_ops = {
    .struct_size = sizeof f16_ops,
    .instance_size = 0, /* nothing to remember at self */
    .init = f16_init,
    .describe = f16_describe,
    .encode = f16_encode,
    .decode = f16_decode,
};

/* The roles that this plugin fills, with the version of the table it was compiled with and the oldest it works with. */
static const struct soq_role_entry f16_roles[] = {
    {
        .struct_size = sizeof f16_roles[0],
        .role = SOQ_ROLE_KV_CODEC,
        .minor = SOQ_KV_CODEC_MINOR,
        .min_minor = SOQ_KV_CODEC_MINOR,
        .ops = &f16_ops,
    },
};

/* The only exported symbol. Name and variant are those of the manifest, f16.ini. */
const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "f16",
    .variant = "",
    .version = "0.1.0",
    .summary = "KV codec: half floats",
    .licence = "Apache-2.0",
    .n_roles = sizeof f16_roles / sizeof f16_roles[0],
    .role_stride = sizeof f16_roles[0],
    .roles = f16_roles,
};
