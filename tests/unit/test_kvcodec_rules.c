/* What the codecs that pack promise beyond the reference data: what they refuse, where codes lie, what rows become that hold no
 * ordinary numbers, and what rotation does. */
#include <math.h>
#include <unistd.h>

#include "codec_support.h"
#include "hadamard.h"

static uint64_t seed;

/* Roughly normal: the sum of twelve uniform numbers. */
static float noise(void)
{
    float sum = -6;

    for (int i = 0; i < 12; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(seed >> 40) * 0x1p-24f;
    }
    return sum;
}

static void fill(float *x, size_t n)
{
    seed = 7;
    for (size_t i = 0; i < n; i++)
        x[i] = noise();
}

/* ---- Descriptions */

struct variant {
    const char *codec;
    struct override options[4];
    uint32_t kind, bits, symmetric;
    double key_bits, value_bits; /* per number of a tile of 32 x 64, everything counted */
};

static const struct variant variants[] = {
    {"int8", {{NULL, NULL}}, SOQ_FORMAT_AFFINE, 8, 1, 8.5, 8.5},
    {"int8", {{"rotation", "on"}}, SOQ_FORMAT_AFFINE, 8, 1, 8.5, 8.5},
    {"int4", {{NULL, NULL}}, SOQ_FORMAT_AFFINE, 4, 1, 4.5, 4.5},
    {"int4", {{"rotation", "off"}}, SOQ_FORMAT_AFFINE, 4, 1, 4.5, 4.5},
    {"int4", {{"format", "q4_1"}}, SOQ_FORMAT_AFFINE, 4, 0, 5, 5},
    {"int4", {{"format", "q5_1"}}, SOQ_FORMAT_AFFINE, 5, 0, 6, 6},
    {"fp8", {{NULL, NULL}}, SOQ_FORMAT_E4M3, 8, 0, 8 + 64.0 / 2048, 8 + 64.0 / 2048},
    {"kivi", {{NULL, NULL}}, SOQ_FORMAT_AFFINE, 2, 0, 3, 3},
    {"kivi", {{"bits", "4"}}, SOQ_FORMAT_AFFINE, 4, 0, 5, 5},
    {"kivi", {{"bits", "4"}, {"metadata", "f32"}}, SOQ_FORMAT_AFFINE, 4, 0, 6, 6},
    {"turboquant", {{NULL, NULL}}, SOQ_FORMAT_CODEBOOK, 3, 0, 3.25, 3.25},
    {"turboquant", {{"bits", "1"}}, SOQ_FORMAT_CODEBOOK, 1, 0, 1.25, 1.25},
    {"turboquant", {{"bits", "4"}, {"metadata", "f32"}}, SOQ_FORMAT_CODEBOOK, 4, 0, 4.5, 4.5},
    {"turboquant", {{"variant", "prod"}}, SOQ_FORMAT_OPAQUE, 2, 0, 3.5, 3.5},
    {"turboquant", {{"variant", "prod"}, {"bits", "1"}}, SOQ_FORMAT_OPAQUE, 0, 0, 1.5, 1.5},
    /* 3 bits, lo and hi, one outlier of 4 bytes per channel of 32 tokens or row of 64, and 8 bytes */
    {"kvquant", {{NULL, NULL}}, SOQ_FORMAT_OPAQUE, 3, 0, 3 + 1 + 1 + 1.0 / 32, 3 + 0.5 + 0.5 + 1.0 / 32},
    {"kvquant", {{"outliers", "0"}, {"bits", "2"}}, SOQ_FORMAT_OPAQUE, 2, 0, 2 + 1 + 1.0 / 32, 2 + 0.5 + 1.0 / 32},
};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

Test(kvcodec_rules, descriptions)
{
    for (size_t i = 0; i < N_VARIANTS; i++) {
        const struct variant *v = &variants[i];
        struct codec c = codec_open(v->codec, v->options);
        struct soq_error err = SOQ_ERROR_INIT;

        for (uint32_t role = SOQ_PLANE_KEY; role <= SOQ_PLANE_VALUE; role++) {
            cr_assert_eq(codec_shape(&c, role, 32, 64, &err), 0, "%s: %s", v->codec, err.text);
            cr_assert_eq(c.format.kind, v->kind);
            cr_assert_eq(c.format.bits, v->bits);
            cr_assert_eq(c.format.symmetric, v->symmetric);
            cr_assert_eq(c.format.tail_dtype, SOQ_DTYPE_F16);
            cr_assert_float_eq((double)c.format.tile_bytes * 8 / (32 * 64), role == SOQ_PLANE_KEY ? v->key_bits : v->value_bits,
                               1e-9, "%s: %lu bytes", v->codec, (unsigned long)c.format.tile_bytes);
            if (v->kind != SOQ_FORMAT_OPAQUE)
                cr_assert_eq(c.format.tile_bytes, kvtile_of(&c.format, role, 32, 64).bytes);
        }
        codec_close(&c);
    }
}

Test(kvcodec_rules, rotation_by_default_is_for_few_bits_and_widths_that_allow_it)
{
    struct codec int4 = codec_open("int4", NULL), int8 = codec_open("int8", NULL);
    struct soq_error err = SOQ_ERROR_INIT;
    static const uint32_t blocks[][2] = {{16, 16}, {64, 64}, {80, 0}, {128, 128}, {192, 64}, {256, 256}, {576, 64}, {20, 0}};

    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        cr_assert_eq(codec_shape(&int4, SOQ_PLANE_KEY, 32, blocks[i][0], &err), 0);
        cr_assert_eq(int4.format.rotation, blocks[i][1] ? SOQ_ROTATION_HADAMARD : SOQ_ROTATION_NONE);
        cr_assert_eq(int4.format.rotation_dims, blocks[i][1]);
        cr_assert_eq(codec_shape(&int8, SOQ_PLANE_KEY, 32, blocks[i][0], &err), 0);
        cr_assert_eq(int8.format.rotation, SOQ_ROTATION_NONE);
    }
    codec_close(&int4);
    codec_close(&int8);
}

Test(kvcodec_rules, kivi_waits_for_its_grid_and_residual)
{
    struct override residual[] = {{"residual", "128"}, {NULL, NULL}};
    struct codec c = codec_open("kivi", residual);
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(codec_shape(&c, SOQ_PLANE_KEY, 32, 64, &err), 0);
    cr_assert_eq(c.format.grid_tokens, 128);
    cr_assert_eq(c.format.residual_tokens, 128);
    cr_assert_eq(c.format.group_tokens, 32);
    cr_assert_eq(c.format.group_dims, 1);
    cr_assert_eq(codec_shape(&c, SOQ_PLANE_VALUE, 16, 64, &err), 0);
    cr_assert_eq(c.format.group_tokens, 1);
    cr_assert_eq(c.format.group_dims, 32);
    codec_close(&c);
}

/* ---- What is refused */

struct refusal {
    const char *codec;
    struct override options[4];
    uint32_t role, tokens, width; /* tokens 0: already by init */
    const char *text;
};

static const struct refusal refusals[] = {
    {"kivi", {{"group", "48"}}, 0, 0, 0, "group = 48 is no power of two"},
    {"kivi", {{"residual", "100"}}, 0, 0, 0, "residual = 100 is no multiple of group = 32: set it to 128"},
    {"kivi", {{NULL, NULL}}, SOQ_PLANE_KEY, 16, 64, "group = 32 does not divide blocks of 16 tokens"},
    {"int4", {{"rotation", "on"}}, SOQ_PLANE_KEY, 32, 80, "[kv.int4] rotation = on cannot rotate heads of 80 numbers"},
    {"int8", {{"rotation", "on"}}, SOQ_PLANE_VALUE, 32, 20, "[kv.int8] rotation = on cannot rotate heads of 20 numbers"},
    {"int8", {{NULL, NULL}}, SOQ_PLANE_VALUE, 32, 1025, "kv codec int8: a tile of 32 tokens x 1025 numbers cannot be stored"},
    {"turboquant", {{NULL, NULL}}, SOQ_PLANE_KEY, 32, 80, "turboquant cannot rotate heads of 80 numbers"},
    {"kvquant", {{NULL, NULL}}, SOQ_PLANE_KEY, 512, 64, "kvquant: a tile of 512 tokens x 64 numbers cannot be stored"},
    {"kvquant", {{"calibration", "/nowhere/at/all"}}, 0, 0, 0, "/nowhere/at/all: No such file or directory; calibration files"},
    {"kvquant", {{"weights", "sensitivity"}}, 0, 0, 0, "[kv.kvquant] weights = sensitivity takes tables from a calibration"},
    {"fp8", {{NULL, NULL}}, SOQ_PLANE_KEY, 32, 2048, "kv codec fp8: a tile of 32 tokens x 2048 numbers cannot be stored"},
};

Test(kvcodec_rules, what_cannot_work_is_refused_with_a_reason)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct soq_error err = SOQ_ERROR_INIT;
        struct codec c;
        int rc = codec_try(r->codec, r->options, &c, &err);

        cr_assert_eq(!rc, r->tokens != 0, "%s: %s", r->codec, err.text);
        if (!rc)
            rc = codec_shape(&c, r->role, r->tokens, r->width, &err);
        cr_assert_lt(rc, 0);
        cr_assert(strstr(err.text, r->text), "\"%s\" does not say \"%s\"", err.text, r->text);
        codec_close(&c);
    }
}

/* ---- Where codes lie, and what they stand for */

/* Whatever the shape: a number is what its code and its group's scale say, which lie where soquete/kv.h says. */
static void compare_tile(const struct codec *c, const uint8_t *tile, const float *out)
{
    float middle = c->format.symmetric ? (float)(1u << (c->format.bits - 1)) : 0;

    for (uint32_t i = 0; i < c->tile.tokens * c->tile.width; i++) {
        uint32_t t = i / c->tile.width, d = i % c->tile.width;
        float code = (float)codec_code(c, tile, t, d), x;

        x = (code - middle) * codec_scale(c, tile, t, d) + codec_min(c, tile, t, d);
        cr_assert_eq(out[i], x, "token %u, dim %u of %u x %u: %g, not %g", t, d, c->tile.tokens, c->tile.width, (double)out[i],
                     (double)x);
    }
}

Test(kvcodec_rules, tiles_of_every_shape_are_laid_out_as_the_abi_says)
{
    static const uint32_t tokens[] = {32, 64, 256}, widths[] = {16, 20, 64, 80, 128, 256};
    float *in = soq__alloc(256 * 256 * sizeof *in), *out = soq__alloc(256 * 256 * sizeof *out);

    fill(in, 256 * 256);
    for (size_t i = 0; i < N_VARIANTS * 2 * 3 * 6; i++) {
        const struct variant *v = &variants[i % N_VARIANTS];
        size_t shape = i / N_VARIANTS;
        struct soq_error err = SOQ_ERROR_INIT;
        struct codec c = codec_open(v->codec, v->options);
        uint8_t *tile;

        if (!codec_shape(&c, 1 + shape % 2, tokens[shape / 2 % 3], widths[shape / 6], &err) &&
            c.format.kind == SOQ_FORMAT_AFFINE && !c.format.rotation) {
            tile = codec_encode(&c, in);
            codec_decode(&c, tile, out);
            compare_tile(&c, tile, out);
            soq__free(tile);
        }
        codec_close(&c);
    }
    soq__free(in);
    soq__free(out);
}

/* ---- Rows that hold no ordinary numbers */

static const float oddities[] = {0, -1.5f, 65504, 1e30f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-30f, 3e-8f};

/* How far a number may come back: a step of its group's range, whatever the group holds. */
static void compare_odd(const struct codec *c, const char *name, const float *in, const float *out)
{
    uint32_t width = c->tile.width;

    for (uint32_t i = 0; i < c->tile.tokens * width; i++)
        cr_assert(isfinite(out[i]) && fabsf(out[i]) <= 4 * 65504.0f * 16, "%s: %g comes back as %g", name, (double)in[i],
                  (double)out[i]);
}

Test(kvcodec_rules, whatever_a_row_holds_comes_back_finite)
{
    enum { T = 32, W = 64, N = T * W };
    float in[N], out[N];

    for (size_t i = 0; i < N_VARIANTS * 2 * sizeof oddities / sizeof oddities[0]; i++) {
        const struct variant *v = &variants[i % N_VARIANTS];
        float odd = oddities[i / N_VARIANTS / 2];
        struct soq_error err = SOQ_ERROR_INIT;
        struct codec c = codec_open(v->codec, v->options);
        uint8_t *tile;

        cr_assert_eq(codec_shape(&c, 1 + i / N_VARIANTS % 2, T, W, &err), 0);
        fill(in, N); /* one odd number among ordinary ones */
        in[5 * W + 3] = odd;
        tile = codec_encode(&c, in);
        codec_decode(&c, tile, out);
        compare_odd(&c, v->codec, in, out);
        soq__free(tile);
        for (uint32_t j = 0; j < N; j++) /* nothing else */
            in[j] = odd;
        tile = codec_encode(&c, in);
        codec_decode(&c, tile, out);
        compare_odd(&c, v->codec, in, out);
        for (uint32_t j = 0; j < N && (odd == 0 || isnan(odd)); j++)
            cr_assert_eq(out[j], 0, "%s: zeros and NaN are zeros", v->codec);
        for (uint32_t j = 0; j < N && (odd == -1.5f || isinf(odd)) && !c.format.rotation; j++)
            cr_assert_float_eq(out[j], isinf(odd) ? copysignf(65504, odd) : odd, 1e-3f * fabsf(isinf(odd) ? 65504 : odd),
                               "%s: a constant is kept: %g", v->codec, (double)out[j]);
        soq__free(tile);
        codec_close(&c);
    }
}

/* ---- Rotation */

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

Test(kvcodec_rules, rotation_keeps_dot_products_within_rounding)
{
    static const uint32_t widths[] = {16, 64, 128, 192, 256, 1024};
    float a[1024], b[1024], back[1024];

    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        uint32_t n = widths[i], block = hadamard_block(n);
        double before, size;

        fill(a, n);
        for (uint32_t j = 0; j < n; j++)
            b[j] = noise();
        a[3] *= 100;
        memcpy(back, a, n * sizeof *a);
        before = dot(a, b, n);
        size = sqrt(dot(a, a, n) * dot(b, b, n));
        hadamard(a, n, block);
        hadamard(b, n, block);
        cr_assert(fabs(dot(a, b, n) - before) <= 1e-6 * size, "%u: %g, not %g", n, dot(a, b, n), before);
        hadamard(a, n, block);
        for (uint32_t j = 0; j < n; j++)
            cr_assert_float_eq(a[j], back[j], 1e-5f * 300, "its own inverse");
    }
}

Test(kvcodec_rules, hadamard_is_in_natural_order)
{
    for (uint32_t b = 0; b < 64; b++) {
        float x[64] = {0};

        x[b] = 8;
        hadamard(x, 64, 64);
        for (uint32_t a = 0; a < 64; a++)
            cr_assert_eq(x[a], __builtin_popcount(a & b) % 2 ? -1 : 1);
    }
}

static double error_of(const char *rotation, const float *in, uint32_t tokens, uint32_t width)
{
    struct override options[] = {{"rotation", rotation}, {NULL, NULL}};
    struct codec c = codec_open("int4", options);
    float *out = soq__alloc((size_t)tokens * width * sizeof *out);
    struct soq_error err = SOQ_ERROR_INIT;
    uint8_t *tile;
    double error = 0;

    cr_assert_eq(codec_shape(&c, SOQ_PLANE_KEY, tokens, width, &err), 0);
    tile = codec_encode(&c, in);
    codec_decode(&c, tile, out);
    for (size_t i = 0; i < (size_t)tokens * width; i++)
        error += pow((double)out[i] - (double)in[i], 2);
    soq__free(tile);
    soq__free(out);
    codec_close(&c);
    return error;
}

Test(kvcodec_rules, rotation_helps_where_a_channel_is_loud)
{
    float in[32 * 128];
    double on, off;

    fill(in, 32 * 128);
    for (uint32_t t = 0; t < 32; t++)
        in[t * 128 + 17] = 40 + in[t * 128 + 17];
    on = error_of("on", in, 32, 128);
    off = error_of("off", in, 32, 128);
    cr_assert_lt(on, off / 1.5, "squared error %g with, %g without", on, off);
}

/* ---- turboquant's figures */

/* Numbers of the normal distribution in pairs (G. Box, M. Muller, 1958). */
static void fill_normal(float *x, size_t n)
{
    seed = 11;
    for (size_t i = 0; i + 1 < n; i += 2) {
        double u[2];

        for (int j = 0; j < 2; j++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            u[j] = ((double)(seed >> 11) + 0.5) * 0x1p-53;
        }
        x[i] = (float)(sqrt(-2 * log(u[0])) * cos(2 * M_PI * u[1]));
        x[i + 1] = (float)(sqrt(-2 * log(u[0])) * sin(2 * M_PI * u[1]));
    }
}

Test(kvcodec_rules, turboquants_codebooks_have_the_least_error)
{
    static const double table[] = {0, .36338, .11748, .03455, .00950};
    static const char *const names[] = {"0", "1", "2", "3", "4"};
    enum { N = 1000000 };
    float *x = soq__alloc(N * sizeof *x);

    fill_normal(x, N);
    for (uint32_t bits = 1; bits <= 4; bits++) {
        struct override options[] = {{"bits", names[bits]}, {NULL, NULL}};
        struct codec c = codec_open("turboquant", options);
        struct soq_error err = SOQ_ERROR_INIT;
        double error = 0;

        cr_assert_eq(codec_shape(&c, SOQ_PLANE_KEY, 32, 64, &err), 0);
        for (uint32_t i = 0; i < N; i++) {
            double best = INFINITY;

            for (uint32_t k = 0; k < c.format.codebook_size; k++)
                best = fmin(best, pow((double)x[i] - (double)c.format.codebook[k], 2));
            error += best / N;
        }
        cr_assert_float_eq(error, table[bits], 0.01 * table[bits], "%u bits: %g, not %g", bits, error, table[bits]);
        codec_close(&c);
    }
    soq__free(x);
}

/* Mean and variance, times d, of the errors of inner products of rows of length 1 with directions at random. */
static void inner_products(const char *variant, double *bias_out, double *variance_out)
{
    enum { T = 256, W = 128, TILES = 40 };
    struct override options[] = {{"variant", variant}, {"metadata", "f32"}, {NULL, NULL}};
    float *x = soq__alloc(2 * T * W * TILES * sizeof *x), *back = soq__alloc(T * W * sizeof *back);
    struct codec c = codec_open("turboquant", options);
    struct soq_error err = SOQ_ERROR_INIT;
    double sum = 0, squares = 0;

    fill_normal(x, 2 * T * W * TILES);
    cr_assert_eq(codec_shape(&c, SOQ_PLANE_KEY, T, W, &err), 0);
    for (size_t tile = 0; tile < TILES; tile++) {
        const float *keys = x + tile * T * W, *queries = x + (TILES + tile) * T * W;
        uint8_t *bytes = codec_encode(&c, keys);

        codec_decode(&c, bytes, back);
        for (uint32_t t = 0; t < T; t++) {
            const float *k = keys + t * W, *q = queries + t * W;
            double size = sqrt(dot(k, k, W) * dot(q, q, W)), exact = dot(k, q, W);
            double error = (dot(back + t * W, q, W) - exact) / size;

            sum += error * (exact < 0 ? -1 : 1) / (T * TILES);
            squares += error * error / (T * TILES);
        }
        soq__free(bytes);
    }
    codec_close(&c);
    soq__free(x);
    soq__free(back);
    *bias_out = sum;
    *variance_out = squares * W;
}

/* At 3 bits the table of the design has 0.034 for mse and 0.064 for prod with an orthonormal sketch. */
Test(kvcodec_rules, turboquant_prod_varies_more_than_mse_and_is_free_of_bias)
{
    double bias[2], variance[2];

    inner_products("mse", &bias[0], &variance[0]);
    inner_products("prod", &bias[1], &variance[1]);
    printf("variance of inner products x d at 3 bits: mse %.4f, prod %.4f; bias mse %.5f, prod %.5f\n", variance[0],
           variance[1], bias[0], bias[1]);
    cr_assert_float_eq(variance[0], 0.034, 0.002);
    cr_assert_float_eq(variance[1], 0.064, 0.006);
    cr_assert_lt(bias[0], -0.001, "mse makes inner products smaller");
    cr_assert_lt(fabs(bias[1]), fabs(bias[0]) / 2);
}

/* ---- kvquant */

enum { L = 2, H = 3, D = 64, T = 64, LAYER_FLOATS = 4 * H * D + 6 * SOQ_CALIBRATION_TABLES };
static const struct soq_calibration_header two_layers = {.n_layers = L, .n_kv_heads = H, .head_dim = D};

/* Thresholds +-2 for every channel, uniform tables. */
static void uniform_calibration(float *layers)
{
    for (uint32_t l = 0; l < L; l++, layers += LAYER_FLOATS) {
        for (uint32_t i = 0; i < 4 * H * D; i++)
            layers[i] = i < 2 * H * D ? -2 : 2;
        for (uint32_t i = 0; i < 6; i++)
            for (uint32_t bits = 2; bits <= 4; bits++)
                for (uint32_t k = 0; k < 1u << bits; k++)
                    layers[soq_calibration_table(&two_layers, i / 2, i % 2, bits) + k] =
                        (float)(2 * k + 1) / (float)(1u << bits) - 1;
    }
}

static struct soq_kv_shape shape_of(const float *inv_freq, uint32_t kind)
{
    return (struct soq_kv_shape){.struct_size = sizeof(struct soq_kv_shape),
                                 .n_layers = L,
                                 .n_heads = H,
                                 .n_kv_heads = H,
                                 .head_dim = D,
                                 .head_dim_v = D,
                                 .rope_kind = kind,
                                 .n_rot = D,
                                 .rope_mscale = 1.25f,
                                 .inv_freq = inv_freq};
}

Test(kvcodec_rules, kvquant_takes_rope_off_keys_and_puts_it_back)
{
    float inv_freq[D / 2], plain[T * D], keys[T * D], out[T * D];

    for (uint32_t i = 0; i < D / 2; i++)
        inv_freq[i] = powf(10000, -(float)i / (D / 2));
    for (uint32_t kind = SOQ_ROPE_INTERLEAVED; kind <= SOQ_ROPE_HALF; kind++) {
        struct override options[] = {{"bits", "4"}, {NULL, NULL}};
        struct soq_kv_shape shape = shape_of(inv_freq, kind);
        struct codec c = codec_open("kvquant", options);
        struct soq_error err = SOQ_ERROR_INIT;
        double error = 0;
        uint8_t *tile;

        for (uint32_t i = 0; i < T * D; i++) /* the same in all tokens: nothing is left once RoPE is undone */
            plain[i] = (float)(int)(i % D * 37 % 64) / 16 - 2;
        for (uint32_t i = 0; i < T * D / 2; i++) {
            uint32_t pair = i % (D / 2), a = kind == SOQ_ROPE_HALF ? pair : 2 * pair,
                     b = kind == SOQ_ROPE_HALF ? pair + D / 2 : a + 1;
            double angle = (1000 + i / (D / 2)) * (double)inv_freq[pair];
            float *row = keys + i / (D / 2) * D;

            row[a] = (float)(1.25 * ((double)plain[a] * cos(angle) - (double)plain[b] * sin(angle)));
            row[b] = (float)(1.25 * ((double)plain[b] * cos(angle) + (double)plain[a] * sin(angle)));
        }
        cr_assert_eq(c.ops->prepare(c.self, &shape, &err), 0, "%s", err.text);
        cr_assert(c.ops->traits & SOQ_CODEC_NEEDS_POSITIONS);
        cr_assert_eq(codec_shape(&c, SOQ_PLANE_KEY, T, D, &err), 0);
        c.tile.first_position = 1000;
        tile = codec_encode(&c, keys);
        c.tile.first_position = 0; /* the tile itself knows */
        codec_decode(&c, tile, out);
        for (uint32_t i = 0; i < T * D; i++)
            error = fmax(error, fabs((double)out[i] - (double)keys[i]));
        cr_assert_lt(error, 2e-3, "kind %u: off by %g: half floats of at most 2.5", kind, error);
        soq__free(tile);
        codec_close(&c);
    }
}

/* Which tiles it can do without the positions of: values, and keys that stay as they come. */
Test(kvcodec_rules, kvquant_needs_positions_of_keys_without_rope_only)
{
    for (int i = 0; i < 4; i++) {
        struct override options[] = {{"keys", i / 2 ? "post_rope" : "pre_rope"}, {NULL, NULL}};
        struct codec c = codec_open("kvquant", options);
        struct soq_error err = SOQ_ERROR_INIT;

        cr_assert_eq(codec_shape(&c, i % 2 ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY, T, D, &err), 0, "%s", err.text);
        cr_expect_eq(c.format.waived, i ? SOQ_CODEC_NEEDS_POSITIONS : 0u, "case %d", i);
        codec_close(&c);
    }
}

static struct codec open_calibrated(const struct soq_calibration_header *header, const float *layers, const char *thresholds)
{
    char path[] = "calibration-XXXXXX";
    struct override options[] = {
        {"calibration", path}, {"thresholds", thresholds}, {"keys", "post_rope"}, {"metadata", "f32"}, {NULL, NULL}};
    struct codec c;

    close(mkstemp(path));
    codec_write_calibration(path, *header, layers);
    c = codec_open("kvquant", options);
    unlink(path);
    return c;
}

Test(kvcodec_rules, kvquant_keeps_the_farthest_exactly_and_no_more_than_it_may)
{
    float layers[L * LAYER_FLOATS], in[T * D], out[T * D];
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t exact = 0;
    struct codec c;
    uint8_t *tile;

    uniform_calibration(layers);
    c = open_calibrated(&two_layers, layers, "calibrated");
    cr_assert_eq(codec_shape(&c, SOQ_PLANE_KEY, T, D, &err), 0);
    cr_assert_eq(c.format.tile_bytes, 8 + D * 4 + 41 * 4 + 84 + T * D * 3 / 8,
                 "a row, 41 outliers, 1 percent, of 4 and 2 bytes; no thresholds");
    for (uint32_t i = 0; i < T * D; i++)
        in[i] = i % 40 == 7 ? 3 + (float)i / 1000 : (float)(int)(i % 17) / 8 - 1;
    tile = codec_encode(&c, in);
    codec_decode(&c, tile, out);
    for (uint32_t i = 0; i < T * D; i++) {
        bool outlier = i % 40 == 7, kept = i < D || (outlier && i >= 40 * (103 - 41) + 7);

        exact += outlier && out[i] == in[i];
        cr_assert_float_eq(out[i],
                           kept      ? in[i]
                           : outlier ? 1.75f
                                     : in[i],
                           kept      ? 0
                           : outlier ? 1e-6f
                                     : 0.2501f,
                           "number %u: %g, not %g", i, (double)out[i], (double)in[i]);
    }
    cr_assert_eq(exact, 41 + 2, "and two in the first row, which is kept in any case");
    soq__free(tile);
    codec_close(&c);
}

Test(kvcodec_rules, kvquant_refuses_bad_and_foreign_calibrations)
{
    float layers[L * LAYER_FLOATS], inv_freq[D / 2] = {0};
    struct soq_kv_shape shape = shape_of(inv_freq, SOQ_ROPE_HALF);
    struct soq_error err = SOQ_ERROR_INIT;
    struct codec c;
    char path[] = "calibration-XXXXXX";
    struct override options[] = {{"calibration", path}, {NULL, NULL}};
    struct soq_calibration_header newer = two_layers;
    FILE *file;

    uniform_calibration(layers);
    c = open_calibrated(&two_layers, layers, "calibrated");
    cr_assert_eq(c.ops->prepare(c.self, &shape, &err), 0, "%s", err.text);
    shape.fingerprint[3] = 1;
    cr_assert_eq(c.ops->prepare(c.self, &shape, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "the file is of another model"), "%s", err.text);
    shape.n_layers = 7;
    cr_assert_eq(c.ops->prepare(c.self, &shape, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "of 2 layers, 3 KV heads of 64 numbers, this one has 7"), "%s", err.text);
    codec_close(&c);

    close(mkstemp(path));
    newer.version = 9;
    codec_write_calibration(path, newer, layers);
    cr_assert_eq(codec_try("kvquant", options, &c, &err), -SOQ_EUNSUPPORTED);
    cr_assert(strstr(err.text, "version 9"), "%s", err.text);
    codec_write_calibration(path, two_layers, layers);
    file = fopen(path, "r+b");
    fseek(file, 500, SEEK_SET);
    fputc('x', file);
    fclose(file);
    cr_assert_eq(codec_try("kvquant", options, &c, &err), -SOQ_ECORRUPT);
    cr_assert(strstr(err.text, "its checksum does not fit"), "%s", err.text);
    cr_assert_eq(truncate(path, 1000), 0);
    cr_assert_eq(codec_try("kvquant", options, &c, &err), -SOQ_ECORRUPT);
    cr_assert(strstr(err.text, "not as long as it says"), "%s", err.text);
    cr_assert_eq(truncate(path, 30), 0);
    cr_assert_eq(codec_try("kvquant", options, &c, &err), -SOQ_ECORRUPT);
    cr_assert(strstr(err.text, "not a calibration file"), "%s", err.text);
    unlink(path);
}
