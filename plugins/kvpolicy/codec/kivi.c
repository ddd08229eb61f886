/* KV codec `kivi`: codes of 2 or 4 bits between the least and the largest number of a group; keys in groups of 32 tokens per
 * channel, values in groups of 32 channels per token (Z. Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV
 * Cache", ICML 2024, section 3). Keys have loud channels, whose scale is then their own; values have none.
 *
 * s = (max - min) / (2^bits - 1), code = (x - min) / s rounded, x' = code s + min. With half floats for s and min, 2 bits are 3
 * per number and 4 are 5.
 *
 * As published the latest 128 tokens stay plain. Here blocks are packed at multiples of 128 positions, so 0 to 127 tokens
 * always are; `residual` adds to that. A group of equal numbers has s = 0 and comes back as min, exactly up to the rounding to
 * half floats. */
#include "affine.h"

enum { KIVI_GRID = 128 };

struct kivi {
    uint32_t bits, group, residual, metadata;
};

static int kivi_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct kivi *codec = self;

    (void)host;
    *codec = (struct kivi){
        .bits = strcmp(config->get_string(config->ctx, "bits"), "4") == 0 ? 4 : 2,
        .group = (uint32_t)config->get_int(config->ctx, "group"),
        .residual = (uint32_t)config->get_int(config->ctx, "residual"),
        .metadata = codec_metadata(config),
    };
    if (codec->group & (codec->group - 1))
        return plugin_fail(err, SOQ_EINVAL, "[kv.kivi] group = %u is no power of two: set it to 8, 16, 32, 64 or 128",
                           codec->group);
    if (codec->residual % codec->group)
        return plugin_fail(err, SOQ_EINVAL, "[kv.kivi] residual = %u is no multiple of group = %u: set it to %u",
                           codec->residual, codec->group, (codec->residual / codec->group + 1) * codec->group);
    return 0;
}

static int kivi_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    const struct kivi *codec = self;
    bool keys = tile->role == SOQ_PLANE_KEY;
    int rc = codec_check_tile("kivi", tile, err);

    if (rc)
        return rc;
    if (keys && tile->tokens % codec->group)
        return plugin_fail(err, SOQ_EINVAL,
                           "[kv.kivi] group = %u does not divide blocks of %u tokens, and keys are packed in groups of tokens: "
                           "set [kv] block_tokens to %u or a multiple of it, or a smaller group",
                           codec->group, tile->tokens, codec->group);
    format_out->kind = SOQ_FORMAT_AFFINE;
    format_out->dtype = codec->metadata;
    format_out->tail_dtype = SOQ_DTYPE_F16;
    format_out->bits = codec->bits;
    format_out->group_tokens = keys ? codec->group : 1;
    format_out->group_dims = keys ? 1 : codec->group;
    format_out->grid_tokens = KIVI_GRID;
    format_out->residual_tokens = codec->residual;
    format_out->tile_bytes = kvtile_of(format_out, tile->role, tile->tokens, tile->width).bytes;
    return 0;
}

/* ---- Keys: groups of tokens, channel by channel */

struct channels {
    float scale[KVTILE_WIDTH_MAX], min[KVTILE_WIDTH_MAX];
};

/* The groups of x [tokens][width], tokens > 0: `scale` as computed. */
static void channels_of(const float *x, uint32_t tokens, uint32_t width, uint32_t bits, struct channels *out)
{
    float most = (float)((1u << bits) - 1), *low = out->min, *high = out->scale;

    for (uint32_t d = 0; d < width; d++)
        low[d] = high[d] = codec_finite(x[d]);
    for (uint32_t t = 1; t < tokens; t++) {
        for (uint32_t d = 0; d < width; d++) {
            float y = codec_finite(x[(size_t)t * width + d]);

            low[d] = y < low[d] ? y : low[d];
            high[d] = y > high[d] ? y : high[d];
        }
    }
    for (uint32_t d = 0; d < width; d++)
        out->scale[d] = (high[d] - low[d]) / most;
}

static void encode_keys(const struct soq_kv_format *f, const struct soq_kv_tile *tile, const float *src, uint8_t *dst)
{
    struct kvtile t = kvtile_of(f, tile->role, tile->tokens, tile->width);
    struct kvtile_rows rows = {0};
    struct channels c;
    int most = (1 << f->bits) - 1;

    memset(dst, 0, t.planes[0].at); /* zeros behind the scales */
    for (uint32_t token = 0; token < tile->tokens; token++) {
        const float *x = src + (size_t)token * tile->width;
        uint8_t *codes = rows.code[token % 4];

        if (token % f->group_tokens == 0) {
            channels_of(x, f->group_tokens, tile->width, f->bits, &c);
            for (uint32_t d = 0; d < tile->width; d++) {
                uint64_t at = (uint64_t)d * t.token_groups + token / f->group_tokens;

                codec_put(f->dtype, dst, at, c.scale[d]);
                codec_put(f->dtype, dst + t.min_at, at, c.min[d]);
                c.scale[d] = codec_inverse(c.scale[d]);
            }
        }
        for (uint32_t d = 0; d < tile->width; d++) {
            int code = (int)((codec_finite(x[d]) - c.min[d]) * c.scale[d] + 0.5f);

            codes[d] = (uint8_t)(code < most ? code : most);
        }
        if (token % 4 == 3)
            kvtile_put_rows(&t, tile->role, dst, token - 3, &rows);
    }
}

static void decode_keys(const struct soq_kv_format *f, const struct soq_kv_tile *tile, const uint8_t *src, float *dst)
{
    struct kvtile t = kvtile_of(f, tile->role, tile->tokens, tile->width);
    struct kvtile_rows rows;
    struct channels c;

    for (uint32_t token = 0; token < tile->tokens; token++) {
        float *y = dst + (size_t)token * tile->width;

        for (uint32_t d = 0; token % f->group_tokens == 0 && d < tile->width; d++) {
            uint64_t at = (uint64_t)d * t.token_groups + token / f->group_tokens;

            c.scale[d] = codec_get(f->dtype, src, at);
            c.min[d] = codec_get(f->dtype, src + t.min_at, at);
        }
        if (token % 4 == 0)
            kvtile_get_rows(&t, tile->role, src, token, &rows);
        for (uint32_t d = 0; d < tile->width; d++)
            y[d] = (float)rows.code[token % 4][d] * c.scale[d] + c.min[d];
    }
}

/* ---- The plugin */

static int kivi_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    struct soq_kv_format format = {.kind = 0};
    int rc = kivi_describe(self, tile, &format, err);

    if (rc)
        return rc;
    if (tile->role == SOQ_PLANE_KEY)
        encode_keys(&format, tile, src, dst);
    else
        affine_encode(&format, tile, src, dst);
    return 0;
}

static int kivi_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    struct soq_kv_format format = {.kind = 0};
    int rc = kivi_describe(self, tile, &format, err);

    if (rc)
        return rc;
    if (tile->role == SOQ_PLANE_KEY)
        decode_keys(&format, tile, src, dst);
    else
        affine_decode(&format, tile, src, dst);
    return 0;
}

static const struct soq_option kivi_options[] = {
    OPTION_ENUM("bits", "2", "2|4", "Bits of a code."),
    OPTION_INT("group", "32", 8, 128,
               "Tokens of a key's channel, and channels of a value, that share a scale: a power of two."),
    OPTION_INT("residual", "0", 0, 65536,
               "Tokens before each multiple of 128 that stay plain, beside the 0 to 127 behind it: a multiple of group."),
    OPTION_METADATA("f16"),
};

static const struct soq_kv_codec_ops kivi_ops = {
    .struct_size = sizeof kivi_ops,
    .instance_size = sizeof(struct kivi),
    .init = kivi_init,
    .describe = kivi_describe,
    .encode = kivi_encode,
    .decode = kivi_decode,
};

KV_CODEC_PLUGIN(kivi, "2 or 4 bits; keys by channel, values by token");
