/* Tiles of the kind AFFINE whose groups lie in rows: one token x group_dims dims. Codes come from the scale as it is computed,
 * in f32; numbers come back from the scale as it is stored. */
#ifndef KVCODEC_AFFINE_H
#define KVCODEC_AFFINE_H

#include "codec.h"

enum { AFFINE_GROUP = 32 };

struct affine_group {
    float scale, min; /* min: 0 in symmetric formats */
};

/* Symmetric, 8 bits: max |x| / 127. Symmetric, fewer: m / -2^(bits - 1), m the number of largest magnitude (the first one), so
 * that m itself is met exactly. Else (max - min) / (2^bits - 1). */
static inline struct affine_group affine_group_of(const struct soq_kv_format *f, const float *x, uint32_t n)
{
    float low, high, m;
    uint32_t i = 0;

    codec_range(x, n, &low, &high);
    if (!f->symmetric)
        return (struct affine_group){(high - low) / (float)((1u << f->bits) - 1), low};
    m = high > -low ? high : low;
    if (f->bits == 8)
        return (struct affine_group){fabsf(m) / 127, 0};
    if (high == -low) {
        while (fabsf(x[i]) != high)
            i++;
        m = x[i];
    }
    return (struct affine_group){m / -(float)(1u << (f->bits - 1)), 0};
}

static inline void affine_codes(const struct soq_kv_format *f, struct affine_group g, const float *x, uint32_t n,
                                uint8_t *codes)
{
    float inverse = codec_inverse(g.scale), middle = (float)(1u << (f->bits - 1)) + 0.5f;
    int most = (1 << f->bits) - 1;

    if (f->symmetric && f->bits == 8) {
        for (uint32_t i = 0; i < n; i++) {
            float q = x[i] * inverse;

            codes[i] = (uint8_t)((int)(q + (q < 0 ? -0.5f : 0.5f)) + 128);
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        int code = (int)(f->symmetric ? x[i] * inverse + middle : (x[i] - g.min) * inverse + 0.5f);

        codes[i] = (uint8_t)(code < most ? code : most);
    }
}

static inline void affine_encode(const struct soq_kv_format *f, const struct soq_kv_tile *tile, const float *src, uint8_t *dst)
{
    struct kvtile t = kvtile_of(f, tile->role, tile->tokens, tile->width);
    struct kvtile_rows rows = {0};
    float y[KVTILE_WIDTH_MAX];

    memset(dst, 0, t.planes[0].at); /* zeros behind the scales */
    for (uint32_t token = 0; token < tile->tokens; token++) {
        codec_row_in(f, src + (size_t)token * tile->width, tile->width, y);
        for (uint32_t g = 0; g < t.dim_groups; g++) {
            uint32_t d = g * f->group_dims, n = tile->width - d < f->group_dims ? tile->width - d : f->group_dims;
            struct affine_group group = affine_group_of(f, y + d, n);

            affine_codes(f, group, y + d, n, rows.code[token % 4] + d);
            codec_put(f->dtype, dst, (uint64_t)g * t.token_groups + token, group.scale);
            if (!f->symmetric)
                codec_put(f->dtype, dst + t.min_at, (uint64_t)g * t.token_groups + token, group.min);
        }
        if (token % 4 == 3 || token + 1 == tile->tokens) {
            for (uint32_t r = token % 4 + 1; r < 4; r++)
                memset(rows.code[r], 0, tile->width);
            kvtile_put_rows(&t, tile->role, dst, token / 4 * 4, &rows);
        }
    }
}

static inline void affine_decode(const struct soq_kv_format *f, const struct soq_kv_tile *tile, const uint8_t *src, float *dst)
{
    struct kvtile t = kvtile_of(f, tile->role, tile->tokens, tile->width);
    float middle = f->symmetric ? (float)(1u << (f->bits - 1)) : 0;
    struct kvtile_rows rows;

    for (uint32_t token = 0; token < tile->tokens; token++) {
        float *y = dst + (size_t)token * tile->width;

        if (token % 4 == 0)
            kvtile_get_rows(&t, tile->role, src, token, &rows);
        for (uint32_t g = 0; g < t.dim_groups; g++) {
            uint32_t d = g * f->group_dims, n = tile->width - d < f->group_dims ? tile->width - d : f->group_dims;
            float scale = codec_get(f->dtype, src, (uint64_t)g * t.token_groups + token);
            float min = f->symmetric ? 0 : codec_get(f->dtype, src + t.min_at, (uint64_t)g * t.token_groups + token);

            for (uint32_t i = 0; i < n; i++)
                y[d + i] = ((float)rows.code[token % 4][d + i] - middle) * scale + min;
        }
        codec_row_out(f, tile->width, y);
    }
}

/* ---- int8 and int4: rows in groups of 32, rotated or not */

enum affine_rotation { ROTATION_AUTO, ROTATION_ON, ROTATION_OFF };

#define OPTION_ROTATION                                                                                                        \
    OPTION_ENUM("rotation", "auto", "auto|on|off",                                                                             \
                "Spread loud channels by a Hadamard transform of each row, width a power of two or a multiple of 64; auto: "   \
                "with 4 bits or fewer, where the width allows.")

static inline enum affine_rotation affine_rotation_of(const struct soq_config *config)
{
    const char *text = config->get_string(config->ctx, "rotation");

    return strcmp(text, "on") == 0 ? ROTATION_ON : strcmp(text, "off") == 0 ? ROTATION_OFF : ROTATION_AUTO;
}

/* bits and symmetric of *f are set; fills in the rest. */
static inline int affine_describe(const char *codec, enum affine_rotation rotation, const struct soq_kv_tile *tile,
                                  struct soq_kv_format *f, struct soq_error *err)
{
    int rc = codec_check_tile(codec, tile, err);

    if (rc)
        return rc;
    if (rotation == ROTATION_ON || (rotation == ROTATION_AUTO && f->bits <= 4))
        f->rotation_dims = hadamard_block(tile->width);
    if (rotation == ROTATION_ON && !f->rotation_dims)
        return plugin_fail(
            err, SOQ_EINVAL,
            "[kv.%s] rotation = on cannot rotate heads of %u numbers: that takes a power of two or a multiple of "
            "64; set it to off or auto",
            codec, tile->width);
    f->kind = SOQ_FORMAT_AFFINE;
    f->dtype = f->tail_dtype = SOQ_DTYPE_F16;
    f->group_tokens = 1;
    f->group_dims = AFFINE_GROUP;
    f->rotation = f->rotation_dims ? SOQ_ROTATION_HADAMARD : SOQ_ROTATION_NONE;
    f->tile_bytes = kvtile_of(f, tile->role, tile->tokens, tile->width).bytes;
    return 0;
}

#endif
