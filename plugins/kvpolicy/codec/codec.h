/* What the codecs that pack share: the descriptor of the plugin, which tiles they take, what becomes of numbers that are not
 * finite, rotated rows, and scales.
 *
 * Whatever a row holds, it is stored as something finite, in all of them alike: NaN as 0, and what lies beyond +-65504, the
 * largest half float, as that. */
#ifndef KVCODEC_CODEC_H
#define KVCODEC_CODEC_H

#include <stdbool.h>

#include "fail.h"
#include "hadamard.h"
#include "half.h"
#include "kvtile.h"
#include "option.h"
#include "soquete/plugin.h"

#define CODEC_LIMIT 65504.0f

/* The exported descriptor; NAME_roles are its roles. */
#define KV_CODEC_DESCRIPTOR(codec, what)                                                                                       \
    const struct soq_plugin soquete_plugin_v0 = {                                                                              \
        .struct_size = sizeof soquete_plugin_v0,                                                                               \
        .abi_major = SOQ_ABI_MAJOR,                                                                                            \
        .name = #codec,                                                                                                        \
        .variant = "",                                                                                                         \
        .version = "0.1.0",                                                                                                    \
        .summary = "KV codec: " what,                                                                                          \
        .licence = "Apache-2.0",                                                                                               \
        .n_roles = sizeof codec##_roles / sizeof codec##_roles[0],                                                             \
        .role_stride = sizeof codec##_roles[0],                                                                                \
        .roles = codec##_roles,                                                                                                \
    }

/* The same, with its role. NAME_ops and NAME_options are its tables. */
#define KV_CODEC_PLUGIN(codec, what)                                                                                           \
    static const struct soq_role_entry codec##_roles[] = {                                                                     \
        {                                                                                                                      \
            .struct_size = sizeof codec##_roles[0],                                                                            \
            .role = SOQ_ROLE_KV_CODEC,                                                                                         \
            .minor = SOQ_KV_CODEC_MINOR,                                                                                       \
            .min_minor = SOQ_KV_CODEC_MINOR,                                                                                   \
            .ops = &codec##_ops,                                                                                               \
            .options = codec##_options,                                                                                        \
            .n_options = sizeof codec##_options / sizeof codec##_options[0],                                                   \
            .option_stride = sizeof codec##_options[0],                                                                        \
        },                                                                                                                     \
    };                                                                                                                         \
    KV_CODEC_DESCRIPTOR(codec, what)

#define OPTION_METADATA(value) OPTION_ENUM("metadata", value, "f16|f32", "Type in which scales and the like are stored.")

/* Refuses tiles that no codec stores. */
static inline int codec_check_tile(const char *codec, const struct soq_kv_tile *tile, struct soq_error *err)
{
    if (tile->tokens == 0 || tile->tokens > 65536 || tile->width == 0 || tile->width > KVTILE_WIDTH_MAX)
        return plugin_fail(err, SOQ_EINVAL,
                           "kv codec %s: a tile of %u tokens x %u numbers cannot be stored; it takes up to 65536 x %d", codec,
                           tile->tokens, tile->width, KVTILE_WIDTH_MAX);
    return 0;
}

static inline uint32_t codec_metadata(const struct soq_config *config)
{
    return strcmp(config->get_string(config->ctx, "metadata"), "f32") == 0 ? SOQ_DTYPE_F32 : SOQ_DTYPE_F16;
}

/* ---- Rows */

static inline float codec_finite(float x)
{
    x = x < -CODEC_LIMIT ? -CODEC_LIMIT : x;
    x = x > CODEC_LIMIT ? CODEC_LIMIT : x;
    return x == x ? x : 0;
}

/* What is coded of a token: the finite row x [width], rotated as the format says. */
static inline void codec_row_in(const struct soq_kv_format *f, const float *x, uint32_t width, float *y)
{
    for (uint32_t d = 0; d < width; d++)
        y[d] = codec_finite(x[d]);
    if (f->rotation == SOQ_ROTATION_NONE)
        return;
    for (uint32_t d = 0; f->signs && d < width; d++)
        y[d] *= f->signs[d];
    hadamard(y, width, f->rotation_dims);
    for (uint32_t d = 0; d < width; d++)
        y[d] = codec_finite(y[d]);
}

/* Back, in place. */
static inline void codec_row_out(const struct soq_kv_format *f, uint32_t width, float *y)
{
    if (f->rotation == SOQ_ROTATION_NONE)
        return;
    hadamard(y, width, f->rotation_dims);
    for (uint32_t d = 0; f->signs && d < width; d++)
        y[d] *= f->signs[d];
}

/* ---- Scales */

static inline void codec_put(uint32_t dtype, void *array, uint64_t i, float x)
{
    if (dtype == SOQ_DTYPE_F32)
        ((float *)array)[i] = x;
    else
        ((uint16_t *)array)[i] = f16_from_f32(x);
}

static inline float codec_get(uint32_t dtype, const void *array, uint64_t i)
{
    return dtype == SOQ_DTYPE_F32 ? ((const float *)array)[i] : f16_to_f32(((const uint16_t *)array)[i]);
}

/* 0 for what is as good as 0: never infinite. */
static inline float codec_inverse(float scale)
{
    return fabsf(scale) < 0x1p-126f ? 0 : 1 / scale;
}

/* The smallest and the largest of x [n], n > 0, in lanes that a compiler turns into vectors. */
static inline void codec_range(const float *x, uint32_t n, float *low_out, float *high_out)
{
    float low[8], high[8];
    uint32_t i = 0;

    for (uint32_t j = 0; j < 8; j++)
        low[j] = high[j] = x[0];
    for (; i + 8 <= n; i += 8) {
        for (uint32_t j = 0; j < 8; j++) {
            low[j] = x[i + j] < low[j] ? x[i + j] : low[j];
            high[j] = x[i + j] > high[j] ? x[i + j] : high[j];
        }
    }
    for (; i < n; i++) {
        low[0] = x[i] < low[0] ? x[i] : low[0];
        high[0] = x[i] > high[0] ? x[i] : high[0];
    }
    for (uint32_t j = 1; j < 8; j++) {
        low[0] = low[j] < low[0] ? low[j] : low[0];
        high[0] = high[j] > high[0] ? high[j] : high[0];
    }
    *low_out = low[0];
    *high_out = high[0];
}

#endif
