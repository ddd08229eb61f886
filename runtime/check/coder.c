#include "check/coder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "check/reference.h"
#include "model/dequant.h"

enum { WIDTH_MAX = 512 };

/* ---- Numbers */

/* The bits of a number that is a half float. */
static uint16_t half_bits(double x)
{
    int exponent;
    double fraction = frexp(fabs(x), &exponent);
    uint16_t sign = signbit(x) ? 0x8000 : 0;

    if (exponent > -14)
        return (uint16_t)(sign | (uint32_t)(exponent + 14) << 10 | ((uint32_t)(fraction * 2048) - 1024));
    return (uint16_t)(sign | (uint32_t)(fabs(x) * 0x1p24));
}

static size_t number_bytes(uint32_t dtype)
{
    return dtype == SOQ_DTYPE_F32 ? 4 : 2;
}

static double rounded(uint32_t dtype, double x)
{
    return dtype == SOQ_DTYPE_F32 ? (double)(float)x : soq__ref_half(x);
}

static void put_number(uint32_t dtype, uint8_t *at, double x)
{
    uint16_t half = dtype == SOQ_DTYPE_F32 ? 0 : half_bits(soq__ref_half(x));
    float single = (float)x;

    memcpy(at, dtype == SOQ_DTYPE_F32 ? (const void *)&single : &half, number_bytes(dtype));
}

static double get_number(uint32_t dtype, const uint8_t *at)
{
    float x;

    soq__dequant((enum soq_dtype)dtype)(at, &x, 1);
    return (double)x;
}

static double e4m3(uint32_t code)
{
    uint32_t exponent = code >> 3 & 15, fraction = code & 7;
    double x = exponent ? ldexp(8 + fraction, (int)exponent - 10) : ldexp(fraction, -9);

    return code & 128 ? -x : x;
}

/* ---- Where things lie */

static uint32_t ceil_div(uint32_t n, uint32_t by)
{
    return (n + by - 1) / by;
}

static uint32_t scales_of(const struct soq__coder *c)
{
    return ceil_div(c->width, c->format.group_dims) * ceil_div(c->tokens, c->format.group_tokens);
}

static bool has_minima(const struct soq__coder *c)
{
    return c->format.kind == SOQ_FORMAT_AFFINE && !c->format.symmetric;
}

static uint64_t codes_at(const struct soq__coder *c)
{
    uint64_t bytes = (uint64_t)scales_of(c) * (has_minima(c) ? 2 : 1) * number_bytes(c->format.dtype);

    return (bytes + 7) / 8 * 8;
}

/* A code's bits, plane by plane: adds `code` where it lies, which must be zeros, and returns what is there. */
static uint32_t code_at(const struct soq__coder *c, uint8_t *tile, uint32_t token, uint32_t dim, uint32_t code)
{
    bool key = c->role == SOQ_PLANE_KEY;
    uint32_t inner = key ? dim : token, outer = key ? token : dim, n_inner = key ? c->width : c->tokens,
             n_outer = key ? c->tokens : c->width, below = 0, found = 0;
    uint8_t *plane = tile + codes_at(c);

    for (uint32_t b = 8; b; b /= 2) {
        uint32_t quad = inner / 4, mask = (1u << b) - 1;
        uint8_t *at = plane + ((size_t)(quad / (8 / b)) * n_outer + outer) * 4 + inner % 4;
        uint32_t shift = quad % (8 / b) * b;

        if (!(c->format.bits & b))
            continue;
        *at = (uint8_t)(*at | (code >> below & mask) << shift);
        found |= ((uint32_t)*at >> shift & mask) << below;
        below += b;
        plane += (size_t)ceil_div(n_inner, 32 / b) * n_outer * 4;
    }
    return found;
}

/* The scale of a group or, with `minimum`, its minimum. */
static uint64_t scale_at(const struct soq__coder *c, uint32_t token, uint32_t dim, bool minimum)
{
    uint32_t group = dim / c->format.group_dims * ceil_div(c->tokens, c->format.group_tokens) + token / c->format.group_tokens;

    return (uint64_t)(group + (minimum ? scales_of(c) : 0)) * number_bytes(c->format.dtype);
}

uint64_t soq__coder_tile_bytes(const struct soq__coder *c)
{
    bool key = c->role == SOQ_PLANE_KEY;
    uint64_t bytes = codes_at(c);

    for (uint32_t b = 8; b; b /= 2)
        if (c->format.bits & b)
            bytes += (uint64_t)ceil_div(key ? c->width : c->tokens, 32 / b) * (key ? c->tokens : c->width) * 4;
    return (bytes + 7) / 8 * 8;
}

/* The value of a code before its scale. */
static double level(const struct soq__coder *c, uint32_t code)
{
    switch (c->format.kind) {
    case SOQ_FORMAT_CODEBOOK:
        return code < c->format.codebook_size ? (double)c->format.codebook[code] : (double)NAN;
    case SOQ_FORMAT_E4M3:
        return (code & 127) == 127 ? (double)NAN : e4m3(code);
    default:
        return c->format.symmetric ? (double)code - (double)(1u << (c->format.bits - 1)) : (double)code;
    }
}

static void list_levels(struct soq__coder *c)
{
    for (uint32_t code = 0; code < 1u << c->format.bits; code++)
        c->levels[code] = level(c, code);
}

void soq__coder_init(struct soq__coder *c, const struct soq__coder_spec *spec, uint32_t role, uint32_t tokens, uint32_t width)
{
    *c = (struct soq__coder){.role = role, .tokens = tokens, .width = width};
    for (uint32_t d = 0; d < width; d++)
        c->signs[d] = d * 2654435761u >> 30 & 1 ? -1 : 1;
    c->format = (struct soq_kv_format){
        .struct_size = sizeof c->format,
        .kind = spec->kind,
        .dtype = spec->dtype,
        .bits = spec->bits,
        .group_tokens = spec->group_tokens ? spec->group_tokens : tokens,
        .group_dims = spec->group_dims ? spec->group_dims : width,
        .symmetric = spec->symmetric,
        .rotation = spec->rotation,
        .rotation_dims = spec->rotation ? width & (0u - width) : 0,
        .tail_dtype = SOQ_DTYPE_F16,
        .codebook_size = spec->codebook ? 1u << spec->bits : 0,
        .codebook = spec->codebook,
        .signs = spec->rotation == SOQ_ROTATION_HADAMARD_SIGNS ? c->signs : NULL,
    };
    if (spec->kind == SOQ_FORMAT_PLAIN || spec->kind == SOQ_FORMAT_OPAQUE)
        c->format.tile_bytes = ((uint64_t)tokens * width * number_bytes(spec->dtype) + 7) / 8 * 8 +
                               (spec->kind == SOQ_FORMAT_OPAQUE ? sizeof(struct soq__coder_name) : 0);
    else
        c->format.tile_bytes = soq__coder_tile_bytes(c);
    list_levels(c);
}

void soq__coder_read(struct soq__coder *c, const struct soq_kv_format *format, uint32_t role, uint32_t tokens, uint32_t width)
{
    *c = (struct soq__coder){.format = *format, .role = role, .tokens = tokens, .width = width};
    for (uint32_t d = 0; format->rotation == SOQ_ROTATION_HADAMARD_SIGNS && d < width; d++)
        c->signs[d] = format->signs[d];
    list_levels(c);
}

/* ---- Rotation */

static void hadamard(const struct soq__coder *c, double *x)
{
    uint32_t n = c->format.rotation_dims;

    for (uint32_t apart = 1; apart < n; apart *= 2)
        for (uint32_t i = 0; i < c->width; i++)
            if (!(i & apart)) {
                double a = x[i], b = x[i + apart];

                x[i] = a + b;
                x[i + apart] = a - b;
            }
    for (uint32_t i = 0; i < c->width && n; i++)
        x[i] /= sqrt(n);
}

static void flip(const struct soq__coder *c, double *x)
{
    for (uint32_t d = 0; d < c->width && c->format.rotation == SOQ_ROTATION_HADAMARD_SIGNS; d++)
        x[d] *= (double)c->signs[d];
}

/* ---- Codes */

static uint32_t nearest(const struct soq__coder *c, double x)
{
    uint32_t last = (1u << c->format.bits) - 1, best = 0;

    if (c->format.kind == SOQ_FORMAT_AFFINE) /* levels are 1 apart */
        return x <= c->levels[0] ? 0 : x >= c->levels[last] ? last : (uint32_t)nearbyint(x - c->levels[0]);
    for (uint32_t code = 1; code <= last; code++)
        if (fabs(c->levels[code] - x) < fabs(c->levels[best] - x)) /* never NaN's */
            best = code;
    return best;
}

/* Of one group; the largest number becomes the outermost level, whatever its sign. */
static void scale_group(const struct soq__coder *c, const double *x, uint32_t token, uint32_t dim, double *scale, double *min)
{
    double low = INFINITY, high = -INFINITY, top;

    for (uint32_t t = token; t < token + c->format.group_tokens && t < c->tokens; t++)
        for (uint32_t d = dim; d < dim + c->format.group_dims && d < c->width; d++) {
            low = fmin(low, x[(size_t)t * c->width + d]);
            high = fmax(high, x[(size_t)t * c->width + d]);
        }
    top = -low > high ? low : high;
    *min = has_minima(c) ? rounded(c->format.dtype, low) : 0;
    if (has_minima(c))
        *scale = (high - low) / ((1u << c->format.bits) - 1);
    else if (c->format.kind == SOQ_FORMAT_E4M3)
        *scale = fabs(top) / 448;
    else
        *scale = top / c->levels[0];
    *scale = rounded(c->format.dtype, *scale);
}

static void encode_codes(const struct soq__coder *c, const double *x, uint8_t *dst)
{
    memset(dst, 0, c->format.tile_bytes);
    for (uint32_t t = 0; t < c->tokens; t += c->format.group_tokens)
        for (uint32_t d = 0; d < c->width; d += c->format.group_dims) {
            double scale, min;

            scale_group(c, x, t, d, &scale, &min);
            put_number(c->format.dtype, dst + scale_at(c, t, d, false), scale);
            if (has_minima(c))
                put_number(c->format.dtype, dst + scale_at(c, t, d, true), min);
            for (uint32_t i = t; i < t + c->format.group_tokens && i < c->tokens; i++)
                for (uint32_t j = d; j < d + c->format.group_dims && j < c->width; j++)
                    code_at(c, dst, i, j, scale != 0 ? nearest(c, (x[(size_t)i * c->width + j] - min) / scale) : 0);
        }
}

static double decode_code(const struct soq__coder *c, const uint8_t *src, uint32_t t, uint32_t d)
{
    double scale = get_number(c->format.dtype, src + scale_at(c, t, d, false));
    double min = has_minima(c) ? get_number(c->format.dtype, src + scale_at(c, t, d, true)) : 0;

    return c->levels[code_at(c, (uint8_t *)(uintptr_t)src, t, d, 0)] * scale + min;
}

/* ---- Tiles */

static void encode_row(const struct soq__coder *c, const float *src, double *row)
{
    for (uint32_t d = 0; d < c->width; d++)
        row[d] = (double)src[d];
    flip(c, row);
    hadamard(c, row);
}

static uint64_t name_at(const struct soq__coder *c)
{
    return c->format.tile_bytes - sizeof(struct soq__coder_name);
}

struct soq__coder_name soq__coder_name_of(const struct soq__coder *c, const uint8_t *tile)
{
    struct soq__coder_name name;

    memcpy(&name, tile + name_at(c), sizeof name);
    return name;
}

void soq__coder_set_name(const struct soq__coder *c, const struct soq__coder_name *name, uint8_t *tile)
{
    if (c->format.kind == SOQ_FORMAT_OPAQUE)
        memcpy(tile + name_at(c), name, sizeof *name);
}

bool soq__coder_encode(const struct soq__coder *c, const float *src, uint8_t *dst)
{
    size_t n = (size_t)c->tokens * c->width;
    double *rows;

    if (c->format.kind == SOQ_FORMAT_OPAQUE || c->format.kind == SOQ_FORMAT_PLAIN) {
        bool opaque = c->format.kind == SOQ_FORMAT_OPAQUE;

        for (size_t i = 0; i < n; i++)
            put_number(c->format.dtype, dst + i * number_bytes(c->format.dtype),
                       opaque ? -(double)src[n - 1 - i] : (double)src[i]);
        return true;
    }
    rows = malloc(n * sizeof *rows);
    for (uint32_t t = 0; t < c->tokens && rows; t++)
        encode_row(c, src + (size_t)t * c->width, rows + (size_t)t * c->width);
    if (!rows)
        return false;
    encode_codes(c, rows, dst);
    free(rows);
    return true;
}

void soq__coder_decode(const struct soq__coder *c, const uint8_t *src, float *dst)
{
    size_t n = (size_t)c->tokens * c->width;
    double row[WIDTH_MAX];

    if (c->format.kind == SOQ_FORMAT_OPAQUE || c->format.kind == SOQ_FORMAT_PLAIN) {
        bool opaque = c->format.kind == SOQ_FORMAT_OPAQUE;

        for (size_t i = 0; i < n; i++)
            dst[opaque ? n - 1 - i : i] =
                (float)((opaque ? -1 : 1) * get_number(c->format.dtype, src + i * number_bytes(c->format.dtype)));
        return;
    }
    for (uint32_t t = 0; t < c->tokens; t++) {
        for (uint32_t d = 0; d < c->width; d++)
            row[d] = decode_code(c, src, t, d);
        hadamard(c, row);
        flip(c, row);
        for (uint32_t d = 0; d < c->width; d++)
            dst[(size_t)t * c->width + d] = (float)row[d];
    }
}

/* ---- The view of backends */

static int check_shape(const struct soq__coder *c, const struct soq_kv_tile *tile, struct soq_error *err)
{
    if (tile->tokens == c->tokens && tile->width == c->width && tile->role == c->role)
        return 0;
    return soq__fail(err, SOQ_EINVAL, "a tile of %u x %u and role %u is said to be %u x %u and of role %u", c->tokens, c->width,
                     c->role, tile->tokens, tile->width, tile->role);
}

static int check_name(const struct soq__coder *c, const struct soq_kv_tile *tile, const uint8_t *src, struct soq_error *err)
{
    struct soq__coder_name name = soq__coder_name_of(c, src);

    if (name.layer == tile->layer && name.head == tile->head)
        return 0;
    return soq__fail(err, SOQ_EINVAL, "a tile that was encoded as layer %u, head %u is to be decoded as layer %u, head %u",
                     name.layer, name.head, tile->layer, tile->head);
}

static int encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    const struct soq__coder *c = self;
    struct soq__coder_name name = {tile->layer, tile->head, tile->first_position, 0};
    int rc = check_shape(c, tile, err);

    if (rc)
        return rc;
    if (!soq__coder_encode(c, src, dst))
        return soq__fail(err, SOQ_ENOMEM, "the kit is out of memory");
    soq__coder_set_name(c, &name, dst);
    return 0;
}

static int decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    const struct soq__coder *c = self;
    int rc = check_shape(c, tile, err);

    if (!rc && c->format.kind == SOQ_FORMAT_OPAQUE)
        rc = check_name(c, tile, src, err);
    if (rc)
        return rc;
    soq__coder_decode(c, src, dst);
    return 0;
}

struct soq_kv_coder soq__coder_view(struct soq__coder *c)
{
    static const struct soq_kv_codec_ops ops = {.struct_size = sizeof ops, .encode = encode, .decode = decode};

    return (struct soq_kv_coder){.struct_size = sizeof(struct soq_kv_coder), .ops = &ops, .self = c};
}
