/* The plain codecs and the conversions below them. */
#include <criterion/criterion.h>
#include <math.h>

#include "half.h"
#include "plugin_open.h"

/* ---- f16: an independent reference in double */

static double f16_value(uint32_t half)
{
    double fraction = half & 0x3ff;
    int exponent = half >> 10 & 31;
    double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);

    return half & 0x8000 ? -magnitude : magnitude;
}

Test(kvcodec, f16_to_f32_every_value)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);

        if ((h & 0x7fff) > 0x7c00) {
            cr_assert(isnan(f));
            cr_assert_eq(f32_bits(f), (h & 0x8000) << 16 | 0x7fc00000 | (h & 0x3ff) << 13);
        } else if ((h & 0x7fff) == 0x7c00) {
            cr_assert_eq(f, h & 0x8000 ? -INFINITY : INFINITY);
        } else {
            cr_assert_eq((double)f, f16_value(h), "%04x gave %g", h, (double)f);
            cr_assert_eq(!!signbit(f), h >> 15);
        }
    }
}

Test(kvcodec, f16_round_trip_every_value)
{
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t back = f16_from_f32(f16_to_f32((uint16_t)h));

        cr_assert_eq(back, (h & 0x7fff) > 0x7c00 ? h | 0x200 : h, "%04x came back as %04x", h, back);
    }
}

/* Between every two neighbours: just below the middle, the middle (to even), just above it. */
Test(kvcodec, f16_rounds_to_nearest_even)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double above = h == 0x7bff ? 65536 : f16_value(h + 1);
        float middle = (float)((f16_value(h) + above) / 2);

        cr_assert_eq((double)middle, (f16_value(h) + above) / 2, "the middle is exact in f32");
        for (uint32_t sign = 0; sign < 0x10000; sign += 0x8000) {
            float s = sign ? -1 : 1;

            cr_assert_eq(f16_from_f32(s * middle), sign | (h + (h & 1)));
            cr_assert_eq(f16_from_f32(s * nextafterf(middle, 0)), sign | h);
            cr_assert_eq(f16_from_f32(s * nextafterf(middle, INFINITY)), sign | (h + 1));
        }
    }
}

Test(kvcodec, f16_extremes)
{
    cr_assert_eq(f16_from_f32(65519.996f), 0x7bff);
    cr_assert_eq(f16_from_f32(65520.0f), 0x7c00);
    cr_assert_eq(f16_from_f32(3.4e38f), 0x7c00);
    cr_assert_eq(f16_from_f32(-INFINITY), 0xfc00);
    cr_assert_eq(f16_from_f32(1e-45f), 0);
    cr_assert_eq(f16_from_f32(-1e-45f), 0x8000);
    cr_assert_eq(f16_from_f32(f32_from_bits(0x7f800001)), 0x7e00, "a signalling NaN becomes quiet, never infinity");
    cr_assert_eq(f16_from_f32(f32_from_bits(0xffc02000)), 0xfe01, "payload and sign stay");
}

Test(kvcodec, bf16)
{
    for (uint32_t h = 0; h < 0x7f80; h++) {
        uint32_t low = h << 16;

        cr_assert_eq(f32_bits(bf16_to_f32((uint16_t)h)), low);
        cr_assert_eq(bf16_from_f32(f32_from_bits(low)), h);
        cr_assert_eq(bf16_from_f32(f32_from_bits(low | 0x7fff)), h);
        cr_assert_eq(bf16_from_f32(f32_from_bits(low | 0x8000)), h + (h & 1));
        cr_assert_eq(bf16_from_f32(f32_from_bits(low | 0x8001)), h + 1);
        cr_assert_eq(bf16_from_f32(-f32_from_bits(low | 0x8001)), 0x8000 | (h + 1));
    }
    cr_assert_eq(bf16_from_f32(INFINITY), 0x7f80);
    cr_assert_eq(bf16_from_f32(f32_from_bits(0x7f800001)), 0x7fc0);
    cr_assert_eq(bf16_from_f32(f32_from_bits(0xffffffff)), 0xffff);
}

/* ---- The plugins */

enum { TOKENS = 8, WIDTH = 5 };

struct plain {
    const char *name;
    uint32_t dtype;
    size_t bytes;
};
static const struct plain plains[] = {{"f16", SOQ_DTYPE_F16, 2}, {"f32", SOQ_DTYPE_F32, 4}};

Test(kvcodec, describe)
{
    for (size_t i = 0; i < sizeof plains / sizeof plains[0]; i++) {
        const struct soq_role_entry *entry = open_plugin(plains[i].name, SOQ_ROLE_KV_CODEC);
        const struct soq_kv_codec_ops *ops = entry->ops;
        struct soq_kv_tile tile = {.struct_size = sizeof tile, .role = SOQ_PLANE_KEY, .tokens = 32, .width = 80};
        struct soq_kv_format format = {.struct_size = sizeof format};
        struct soq_error err = SOQ_ERROR_INIT;
        struct plugin_values values = {entry, NULL};
        struct soq_config config = plugin_config(&values);

        cr_assert_eq(ops->init(NULL, NULL, &config, &err), 0);
        cr_assert_eq(ops->describe(NULL, &tile, &format, &err), 0);
        cr_assert_eq(format.kind, SOQ_FORMAT_PLAIN);
        cr_assert_eq(format.dtype, plains[i].dtype);
        cr_assert_eq(format.tail_dtype, plains[i].dtype);
        cr_assert_eq(format.tile_bytes, 32 * 80 * plains[i].bytes);

        tile.tokens = 1;
        tile.width = 1;
        cr_assert_eq(ops->describe(NULL, &tile, &format, &err), 0);
        cr_assert_eq(format.tile_bytes, 8, "whole units of 8 bytes");
        tile.tokens = 65536;
        tile.width = 65536;
        cr_assert_eq(ops->describe(NULL, &tile, &format, &err), 0);
        cr_assert_eq(format.tile_bytes, plains[i].bytes << 32);

        tile.width = 0;
        cr_assert_eq(ops->describe(NULL, &tile, &format, &err), -SOQ_EINVAL);
        cr_assert(strstr(err.text, plains[i].name) && strstr(err.text, "65536 tokens x 0 numbers"));
        tile.tokens = tile.width = UINT32_MAX;
        cr_assert_eq(ops->describe(NULL, &tile, &format, NULL), -SOQ_EINVAL);
    }
}

Test(kvcodec, encode_decode)
{
    for (size_t i = 0; i < sizeof plains / sizeof plains[0]; i++) {
        const struct soq_kv_codec_ops *ops = open_plugin(plains[i].name, SOQ_ROLE_KV_CODEC)->ops;
        struct soq_kv_tile tile = {.struct_size = sizeof tile, .role = SOQ_PLANE_VALUE, .tokens = TOKENS, .width = WIDTH};
        float in[TOKENS * WIDTH], out[TOKENS * WIDTH + 1];
        uint64_t stored[TOKENS * WIDTH / 2 + 1];
        const uint16_t *half = (const uint16_t *)stored;

        for (uint32_t j = 0; j < TOKENS * WIDTH; j++)
            in[j] = (j % 2 ? -1.0f : 1.0f) * (float)j / 7;
        in[3] = INFINITY;
        in[4] = -0.0f;
        memset(stored, 0xa5, sizeof stored);
        out[TOKENS * WIDTH] = 42;
        cr_assert_eq(ops->encode(NULL, &tile, in, stored, NULL), 0);
        cr_assert_eq(ops->decode(NULL, &tile, stored, out, NULL), 0);
        for (uint32_t j = 0; j < TOKENS * WIDTH; j++) {
            float want = plains[i].bytes == 2 ? f16_to_f32(f16_from_f32(in[j])) : in[j];

            cr_assert_eq(f32_bits(out[j]), f32_bits(want), "%s: %u", plains[i].name, j);
            if (plains[i].bytes == 2)
                cr_assert_eq(half[j], f16_from_f32(in[j]), "token by token, row by row");
        }
        cr_assert_eq(((const uint8_t *)stored)[TOKENS * WIDTH * plains[i].bytes], 0xa5, "nothing is written behind the tile");
        cr_assert_eq(out[TOKENS * WIDTH], 42);
    }
}
