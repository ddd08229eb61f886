/* A codec that is a format: writes and reads tiles as soquete/kv.h describes them, number by number, with no eye on speed. Kind
 * OPAQUE adds to each number what the tile says about itself, so that a tile that is decoded as another one shows. */
#ifndef SOQ_TESTS_KV_TOY_H
#define SOQ_TESTS_KV_TOY_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "kvtile.h"

struct toy {
    struct soq_kv_format format;
    uint32_t role;
};

static inline uint32_t toy_number_bytes(const struct toy *toy)
{
    return toy->format.dtype == SOQ_DTYPE_F32 ? 4 : 2;
}

static inline void toy_put(const struct toy *toy, uint8_t *at, size_t i, float x)
{
    uint16_t half = toy->format.dtype == SOQ_DTYPE_F16 ? f16_from_f32(x) : bf16_from_f32(x);

    if (toy->format.dtype == SOQ_DTYPE_F32)
        memcpy(at + i * 4, &x, 4);
    else
        memcpy(at + i * 2, &half, 2);
}

static inline float toy_get(const struct toy *toy, const uint8_t *at, size_t i)
{
    uint16_t half;
    float x;

    memcpy(&half, at + i * 2, 2);
    if (toy->format.dtype != SOQ_DTYPE_F32)
        return toy->format.dtype == SOQ_DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
    memcpy(&x, at + i * 4, 4);
    return x;
}

/* y = H (signs x), or back: x = signs (H y). */
static inline void toy_rotate(const struct toy *toy, const float *src, float *dst, uint32_t tokens, uint32_t width, int back)
{
    const struct soq_kv_format *f = &toy->format;
    uint32_t dims = f->rotation ? f->rotation_dims : 1;

    for (uint32_t i = 0; i < tokens * width; i++) {
        uint32_t at = i % width % dims, first = i - at;
        double sum = 0;

        for (uint32_t j = 0; j < dims; j++) {
            double sign = f->signs && !back ? (double)f->signs[(first + j) % width] : 1;

            sum += sign * (__builtin_parity(at & j) ? -1.0 : 1.0) * (double)src[first + j];
        }
        dst[i] = (float)(sum / sqrt(dims) * (f->signs && back ? (double)f->signs[i % width] : 1));
    }
}

static inline float toy_e4m3(uint32_t code)
{
    float x = code & 0x78 ? ldexpf((float)(8 + (code & 7)), (int)(code >> 3 & 15) - 10) : ldexpf((float)(code & 7), -9);

    return code & 0x80 ? -x : x;
}

static inline float toy_value(const struct toy *toy, uint32_t code, float scale, float minimum)
{
    const struct soq_kv_format *f = &toy->format;

    if (f->kind == SOQ_FORMAT_CODEBOOK)
        return f->codebook[code] * scale;
    if (f->kind == SOQ_FORMAT_E4M3)
        return toy_e4m3(code) * scale;
    return f->symmetric ? ((float)code - (float)(1u << (f->bits - 1))) * scale : (float)code * scale + minimum;
}

static inline uint32_t toy_nearest(const struct toy *toy, float x, float scale, float minimum)
{
    uint32_t n = toy->format.kind == SOQ_FORMAT_CODEBOOK ? toy->format.codebook_size : 1u << toy->format.bits, best = 0;

    for (uint32_t code = 1; code < n; code++)
        if (!(toy->format.kind == SOQ_FORMAT_E4M3 && (code & 0x7f) == 0x7f) &&
            fabsf(toy_value(toy, code, scale, minimum) - x) < fabsf(toy_value(toy, best, scale, minimum) - x))
            best = code;
    return best;
}

/* Scale and minimum of a group, rounded as they are stored. */
static inline void toy_scale(const struct toy *toy, const struct kvtile *t, uint8_t *tile, const float *x, uint32_t tokens,
                             uint32_t width, uint32_t group)
{
    const struct soq_kv_format *f = &toy->format;
    uint32_t first_dim = group / t->token_groups * f->group_dims, first_token = group % t->token_groups * f->group_tokens;
    float low = INFINITY, high = -INFINITY, top;

    for (uint32_t i = first_token; i < first_token + f->group_tokens && i < tokens; i++)
        for (uint32_t d = first_dim; d < first_dim + f->group_dims && d < width; d++) {
            low = fminf(low, x[i * width + d]);
            high = fmaxf(high, x[i * width + d]);
        }
    top = fmaxf(fabsf(low), fabsf(high));
    if (f->kind == SOQ_FORMAT_AFFINE)
        top = f->symmetric ? top / (float)((1u << (f->bits - 1)) - (f->bits > 1)) : (high - low) / (float)((1u << f->bits) - 1);
    else
        top /= f->kind == SOQ_FORMAT_E4M3 ? 448 : f->codebook[f->codebook_size - 1];
    toy_put(toy, tile, group, top);
    if (t->min_at)
        toy_put(toy, tile + t->min_at, group, low);
}

/* Every code of a tile, by numbers or to numbers. */
static inline void toy_codes(const struct toy *toy, const struct soq_kv_tile *about, uint8_t *tile, float *x, int encode)
{
    const struct soq_kv_format *f = &toy->format;
    struct kvtile t = kvtile_of(f, toy->role, about->tokens, about->width);

    for (uint32_t g = 0; g < t.dim_groups * t.token_groups && encode; g++)
        toy_scale(toy, &t, tile, x, about->tokens, about->width, g);
    for (uint32_t i = 0; i < about->tokens * about->width; i++) {
        uint32_t token = i / about->width, dim = i % about->width;
        uint32_t inner = toy->role == SOQ_PLANE_KEY ? dim : token, outer = toy->role == SOQ_PLANE_KEY ? token : dim;
        uint32_t group = dim / f->group_dims * t.token_groups + token / f->group_tokens;
        float scale = toy_get(toy, tile, group), minimum = t.min_at ? toy_get(toy, tile + t.min_at, group) : 0;

        if (encode)
            kvtile_put(&t, tile, inner, outer, toy_nearest(toy, x[i], scale, minimum));
        else
            x[i] = toy_value(toy, kvtile_get(&t, tile, inner, outer), scale, minimum);
    }
}

static inline float toy_shift(const struct soq_kv_tile *about)
{
    return 8.0f * (float)about->layer + 2.0f * (float)about->head + (about->role == SOQ_PLANE_KEY ? 1.0f : 0.0f);
}

static inline int toy_encode(void *self, const struct soq_kv_tile *about, const float *src, void *dst, struct soq_error *err)
{
    const struct toy *toy = self;
    size_t n = (size_t)about->tokens * about->width;
    float *x = malloc(n * sizeof *x);

    (void)err;
    toy_rotate(toy, src, x, about->tokens, about->width, 0);
    memset(dst, 0, toy->format.tile_bytes);
    for (size_t i = 0; i < n && (toy->format.kind == SOQ_FORMAT_PLAIN || toy->format.kind == SOQ_FORMAT_OPAQUE); i++)
        toy_put(toy, dst, i, toy->format.kind == SOQ_FORMAT_PLAIN ? x[i] : src[i] + toy_shift(about));
    if (toy->format.kind != SOQ_FORMAT_PLAIN && toy->format.kind != SOQ_FORMAT_OPAQUE)
        toy_codes(toy, about, dst, x, 1);
    free(x);
    return 0;
}

static inline int toy_decode(void *self, const struct soq_kv_tile *about, const void *src, float *dst, struct soq_error *err)
{
    const struct toy *toy = self;
    size_t n = (size_t)about->tokens * about->width;
    float *x = malloc(n * sizeof *x);

    (void)err;
    for (size_t i = 0; i < n && (toy->format.kind == SOQ_FORMAT_PLAIN || toy->format.kind == SOQ_FORMAT_OPAQUE); i++)
        x[i] = toy_get(toy, src, i) - (toy->format.kind == SOQ_FORMAT_PLAIN ? 0.0f : toy_shift(about));
    if (toy->format.kind != SOQ_FORMAT_PLAIN && toy->format.kind != SOQ_FORMAT_OPAQUE)
        toy_codes(toy, about, (uint8_t *)(uintptr_t)src, x, 0);
    toy_rotate(toy, x, dst, about->tokens, about->width, 1);
    free(x);
    return 0;
}

/* tile_bytes filled in for tiles of that shape. */
static inline struct toy toy_of(struct soq_kv_format format, uint32_t role, uint32_t tokens, uint32_t width)
{
    struct toy toy = {format, role};
    uint64_t plain = (uint64_t)tokens * width * toy_number_bytes(&toy);

    toy.format.struct_size = sizeof toy.format;
    toy.format.tile_bytes = format.kind == SOQ_FORMAT_PLAIN || format.kind == SOQ_FORMAT_OPAQUE
                                ? (plain + 7) / 8 * 8
                                : kvtile_of(&format, role, tokens, width).bytes;
    return toy;
}

#endif
