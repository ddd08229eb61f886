/* KV codec `fp8`: 8-bit floats, E4M3, and one f32 scale per tile: s = max |x| / 448 over the block's tokens of one head. 8 bits
 * per number and 32 per tile. Relative to its size a number is off by at most 1/16, whatever else lies in the tile, down to
 * 2^-15 of the largest. */
#include "codec.h"
#include "e4m3.h"

static int fp8_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    (void)self;
    (void)host;
    (void)config;
    (void)err;
    return 0;
}

static int fp8_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    int rc = codec_check_tile("fp8", tile, err);

    (void)self;
    if (rc)
        return rc;
    format_out->kind = SOQ_FORMAT_E4M3;
    format_out->dtype = SOQ_DTYPE_F32;
    format_out->tail_dtype = SOQ_DTYPE_F16;
    format_out->bits = 8;
    format_out->group_tokens = tile->tokens;
    format_out->group_dims = tile->width;
    format_out->tile_bytes = kvtile_of(format_out, tile->role, tile->tokens, tile->width).bytes;
    return 0;
}

static float largest(const float *x, size_t n)
{
    uint32_t most = 0; /* the bits of numbers that are not negative are ordered as the numbers are */

    for (size_t i = 0; i < n; i++) {
        uint32_t bits = f32_bits(codec_finite(x[i])) & 0x7fffffff;

        most = bits > most ? bits : most;
    }
    return f32_from_bits(most);
}

static int fp8_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    struct soq_kv_format format = {.kind = 0};
    struct kvtile_rows rows = {0};
    struct kvtile t;
    float scale, inverse;
    int rc = fp8_describe(self, tile, &format, err);

    if (rc)
        return rc;
    t = kvtile_of(&format, tile->role, tile->tokens, tile->width);
    scale = largest(src, (size_t)tile->tokens * tile->width) / E4M3_MAX;
    inverse = codec_inverse(scale);
    memset(dst, 0, t.planes[0].at);
    codec_put(SOQ_DTYPE_F32, dst, 0, scale);
    for (uint32_t token = 0; token < tile->tokens; token++) {
        for (uint32_t d = 0; d < tile->width; d++)
            rows.code[token % 4][d] = e4m3_from_f32(codec_finite(src[(size_t)token * tile->width + d]) * inverse);
        if (token % 4 == 3 || token + 1 == tile->tokens) {
            for (uint32_t r = token % 4 + 1; r < 4; r++)
                memset(rows.code[r], 0, tile->width);
            kvtile_put_rows(&t, tile->role, dst, token / 4 * 4, &rows);
        }
    }
    return 0;
}

static int fp8_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    struct soq_kv_format format = {.kind = 0};
    struct kvtile_rows rows;
    struct kvtile t;
    float scale;
    int rc = fp8_describe(self, tile, &format, err);

    if (rc)
        return rc;
    t = kvtile_of(&format, tile->role, tile->tokens, tile->width);
    scale = codec_get(SOQ_DTYPE_F32, src, 0);
    for (uint32_t token = 0; token < tile->tokens; token++) {
        if (token % 4 == 0)
            kvtile_get_rows(&t, tile->role, src, token, &rows);
        for (uint32_t d = 0; d < tile->width; d++)
            dst[(size_t)token * tile->width + d] = e4m3_to_f32(rows.code[token % 4][d]) * scale;
    }
    return 0;
}

static const struct soq_kv_codec_ops fp8_ops = {
    .struct_size = sizeof fp8_ops,
    .init = fp8_init,
    .describe = fp8_describe,
    .encode = fp8_encode,
    .decode = fp8_decode,
};

static const struct soq_role_entry fp8_roles[] = {
    {
        .struct_size = sizeof fp8_roles[0],
        .role = SOQ_ROLE_KV_CODEC,
        .minor = SOQ_KV_CODEC_MINOR,
        .min_minor = SOQ_KV_CODEC_MINOR,
        .ops = &fp8_ops,
    },
};

KV_CODEC_DESCRIPTOR(fp8, "8-bit floats (E4M3), a scale per tile");
