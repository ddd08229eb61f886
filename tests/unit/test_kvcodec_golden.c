/* Codecs against the reference data of kv-golden, parts B and C: codes, scales and decoded numbers are equal, attention outputs
 * within its tolerance. Its README has the formulas. */
#include <math.h>
#include <unistd.h>

#include "codec_support.h"
#include "npy.h"
#include "support.h"

enum { TOKENS = 160, D = 64 };

static struct npy read_part(const char *name, char plane, const char *part)
{
    char path[200];
    struct npy a;

    snprintf(path, sizeof path, "kv-golden/codecs/%s.%c.%s.npy", name, plane, part);
    a = npy_read(soq__test_data(path));
    cr_assert(a.data, "%s", path);
    return a;
}

static struct npy read_whole(const char *name)
{
    char path[200];
    struct npy a;

    snprintf(path, sizeof path, "kv-golden/codecs/%s.npy", name);
    a = npy_read(soq__test_data(path));
    cr_assert(a.data, "%s", path);
    return a;
}

struct golden {
    const char *name, *codec;
    struct override options[4];
    uint32_t tokens;       /* of a tile */
    const char *deq;       /* the part with the decoded numbers */
    const char *scale[2];  /* the parts with scales of keys and values; NULL: there is none to compare */
    uint32_t by_tokens[2]; /* and what they are of: tokens x dims */
    uint32_t by_dims[2];
};

static const struct golden goldens[] = {
    {"q8_0", "int8", {{"rotation", "off"}}, 160, "deq", {"scale", "scale"}, {1, 1}, {32, 32}},
    {"q4_0", "int4", {{"rotation", "off"}}, 32, "deq", {"scale", "scale"}, {1, 1}, {32, 32}},
    {"q4_1", "int4", {{"format", "q4_1"}, {"rotation", "off"}}, 16, "deq", {"scale", "scale"}, {1, 1}, {32, 32}},
    {"q5_1", "int4", {{"format", "q5_1"}}, 32, "deq", {"scale", "scale"}, {1, 1}, {32, 32}},
    {"fp8_e4m3", "fp8", {{NULL, NULL}}, 16, "deq", {"scale", "scale"}, {16, 16}, {64, 64}},
    {"kivi2", "kivi", {{"metadata", "f32"}}, 160, "deq", {"scale", "scale"}, {32, 1}, {1, 32}},
    {"kivi2", "kivi", {{"bits", "2"}}, 32, "deq_f16meta", {NULL, NULL}, {0, 0}, {0, 0}},
    {"kivi4", "kivi", {{"bits", "4"}, {"metadata", "f32"}}, 32, "deq", {"scale", "scale"}, {32, 1}, {1, 32}},
    {"kivi4", "kivi", {{"bits", "4"}}, 160, "deq_f16meta", {NULL, NULL}, {0, 0}, {0, 0}},
};

/* Codes in the files are signed bytes for q8_0; tiles hold them with 128 added. */
static uint32_t golden_code(const struct npy *codes, size_t i)
{
    return strcmp(codes->type, "|i1") == 0 ? (uint32_t)(((const int8_t *)codes->data)[i] + 128)
                                           : ((const uint8_t *)codes->data)[i];
}

static void compare_codes(const struct golden *g, const struct codec *c, const uint8_t *tile, uint32_t first, char plane)
{
    const char *part = g->scale[plane == 'V'];
    uint32_t by_tokens = g->by_tokens[plane == 'V'], by_dims = g->by_dims[plane == 'V'];
    struct npy codes = read_part(g->name, plane, "codes"), scale = {0}, min = {0};

    if (part)
        scale = read_part(g->name, plane, part);
    if (part && !c->format.symmetric && c->format.kind == SOQ_FORMAT_AFFINE)
        min = read_part(g->name, plane, "min");
    for (uint32_t i = 0; i < c->tile.tokens * D; i++) {
        uint32_t t = i / D, d = i % D;
        size_t group = part ? (size_t)((first + t) / by_tokens) * (D / by_dims) + d / by_dims : 0;

        cr_assert_eq(codec_code(c, tile, t, d), golden_code(&codes, (size_t)first * D + i), "%s.%c: code of token %u, dim %u",
                     g->name, plane, first + t, d);
        if (scale.data)
            cr_assert_eq(codec_scale(c, tile, t, d), ((const float *)scale.data)[group], "%s.%c: scale of token %u, dim %u",
                         g->name, plane, first + t, d);
        if (min.data)
            cr_assert_eq(codec_min(c, tile, t, d), ((const float *)min.data)[group], "%s.%c: min of token %u, dim %u", g->name,
                         plane, first + t, d);
    }
    npy_done(&codes);
    npy_done(&scale);
    npy_done(&min);
}

/* out: the whole plane as it comes back, [TOKENS][D]. */
static void through(const struct golden *g, struct codec *c, char plane, float *out)
{
    struct npy in = read_whole(plane == 'K' ? "K" : "V"), deq = read_part(g->name, plane, g->deq);
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(codec_shape(c, plane == 'K' ? SOQ_PLANE_KEY : SOQ_PLANE_VALUE, g->tokens, D, &err), 0, "%s", err.text);
    for (uint32_t first = 0; first < TOKENS; first += g->tokens) {
        uint8_t *tile = codec_encode(c, (const float *)in.data + (size_t)first * D);

        compare_codes(g, c, tile, first, plane);
        codec_decode(c, tile, out + (size_t)first * D);
        soq__free(tile);
    }
    for (size_t i = 0; i < TOKENS * D; i++)
        cr_assert_eq(out[i], ((const float *)deq.data)[i], "%s.%c: number %zu is %.9g, not %.9g", g->name, plane, i,
                     (double)out[i], (double)((const float *)deq.data)[i]);
    npy_done(&in);
    npy_done(&deq);
}

static void attend(const float *k, const float *v, const float *q, double *out)
{
    double scores[TOKENS], most = -INFINITY, sum = 0;

    for (uint32_t t = 0; t < TOKENS; t++) {
        scores[t] = 0;
        for (uint32_t d = 0; d < D; d++)
            scores[t] += (double)k[t * D + d] * (double)q[d] / sqrt(D);
        most = fmax(most, scores[t]);
    }
    memset(out, 0, D * sizeof *out);
    for (uint32_t t = 0; t < TOKENS; t++) {
        double p = exp(scores[t] - most);

        sum += p;
        for (uint32_t d = 0; d < D; d++)
            out[d] += p * (double)v[t * D + d];
    }
    for (uint32_t d = 0; d < D; d++)
        out[d] /= sum;
}

static void compare_attention(const char *name, const float *k, const float *v, double tolerance)
{
    struct npy q = read_whole("q"), expected;
    double out[D];
    char file[64];

    snprintf(file, sizeof file, "attn.%s", name);
    expected = read_whole(file);
    attend(k, v, q.data, out);
    for (uint32_t d = 0; d < D; d++)
        cr_assert(fabs(out[d] - ((const double *)expected.data)[d]) <= tolerance, "%s: output %u is %.9g, not %.9g", name, d,
                  out[d], ((const double *)expected.data)[d]);
    npy_done(&q);
    npy_done(&expected);
}

Test(kvcodec_golden, affine_and_fp8)
{
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        const struct golden *g = &goldens[i];
        struct codec c = codec_open(g->codec, g->options);
        float *k = soq__alloc(TOKENS * D * sizeof *k), *v = soq__alloc(TOKENS * D * sizeof *v);

        through(g, &c, 'K', k);
        through(g, &c, 'V', v);
        if (strcmp(g->deq, "deq") == 0)
            compare_attention(g->name, k, v, 1e-9);
        soq__free(k);
        soq__free(v);
        codec_close(&c);
    }
}

/* ---- turboquant: the reference has signs of its own, so it gets numbers with the signs of both: what is rotated is the same,
 * and flipping signs is exact */

static void turbo_plane(struct codec *c, const char *name, char plane, float *out)
{
    struct npy in = read_whole(plane == 'K' ? "K" : "V"), signs = read_whole("turbo_signs");
    struct npy codes = read_part(name, plane, "codes"), norms = read_part(name, plane, "norms");
    struct npy deq = read_part(name, plane, "deq");
    struct soq_error err = SOQ_ERROR_INIT;
    float *x = in.data;
    uint8_t *tile;

    cr_assert_eq(codec_shape(c, plane == 'K' ? SOQ_PLANE_KEY : SOQ_PLANE_VALUE, TOKENS, D, &err), 0, "%s", err.text);
    for (uint32_t i = 0; i < TOKENS * D; i++)
        x[i] *= (float)((const int8_t *)signs.data)[i % D] * c->format.signs[i % D];
    tile = codec_encode(c, x);
    codec_decode(c, tile, out);
    for (uint32_t i = 0; i < TOKENS * D; i++) {
        double norm = (double)((const float *)norms.data)[i / D], expected = (double)((const float *)deq.data)[i];

        cr_assert_eq(codec_code(c, tile, i / D, i % D), golden_code(&codes, i), "%s.%c: code %u", name, plane, i);
        cr_assert_float_eq((double)codec_scale(c, tile, i / D, 0) * sqrt(D), norm, 1e-6 * norm, "%s.%c: norm", name, plane);
        out[i] *= (float)((const int8_t *)signs.data)[i % D] * c->format.signs[i % D];
        cr_assert_float_eq((double)out[i], expected, 1e-6 * norm, "%s.%c: number %u is %.9g, not %.9g", name, plane, i,
                           (double)out[i], expected);
    }
    soq__free(tile);
    npy_done(&in);
    npy_done(&signs);
    npy_done(&codes);
    npy_done(&norms);
    npy_done(&deq);
}

Test(kvcodec_golden, turboquant)
{
    float *k = soq__alloc(TOKENS * D * sizeof *k), *v = soq__alloc(TOKENS * D * sizeof *v);

    for (int bits = 1; bits <= 4; bits++) {
        char name[16], text[4], file[32];
        struct override options[] = {{"bits", text}, {"metadata", "f32"}, {NULL, NULL}};
        struct npy book;
        struct codec c;

        snprintf(name, sizeof name, "turbo%d", bits);
        snprintf(text, sizeof text, "%d", bits);
        snprintf(file, sizeof file, "turbo_codebook%d", bits);
        c = codec_open("turboquant", options);
        turbo_plane(&c, name, 'K', k);
        turbo_plane(&c, name, 'V', v);
        compare_attention(name, k, v, 1e-5);
        book = read_whole(file);
        cr_assert_eq(c.format.codebook_size, 1u << bits);
        for (uint32_t i = 0; i < c.format.codebook_size; i++)
            cr_assert_float_eq((double)c.format.codebook[i], ((const double *)book.data)[i], 2e-7);
        npy_done(&book);
        codec_close(&c);
    }
    soq__free(k);
    soq__free(v);
}

/* ---- kvquant: the reference has its own table, which goes in by a calibration file, and thresholds of a tile of all tokens */

static void kvquant_plane(struct codec *c, char plane, float *out)
{
    struct npy in = read_whole(plane == 'K' ? "K" : "V"), deq = read_part("kvquant3", plane, "deq");
    struct npy index = read_part("kvquant3", plane, "outlier_index");
    struct soq_error err = SOQ_ERROR_INIT;
    const float *x = in.data, *expected = deq.data;
    uint8_t *tile;

    cr_assert_eq(codec_shape(c, plane == 'K' ? SOQ_PLANE_KEY : SOQ_PLANE_VALUE, TOKENS, D, &err), 0, "%s", err.text);
    tile = codec_encode(c, x);
    codec_decode(c, tile, out);
    for (size_t i = 0; i < index.rows * index.cols; i++) {
        size_t vector = i / index.cols, place = (size_t)((const int32_t *)index.data)[i];
        size_t at = plane == 'K' ? place * D + vector : vector * D + place;

        cr_assert_eq(out[at], x[at], "%c: outlier %zu of vector %zu is kept exactly", plane, place, vector);
    }
    for (uint32_t i = 0; i < TOKENS * D; i++)
        cr_assert_float_eq(out[i], expected[i], 2e-6f * fmaxf(1, fabsf(expected[i])), "%c: number %u is %.9g, not %.9g", plane,
                           i, (double)out[i], (double)expected[i]);
    soq__free(tile);
    npy_done(&in);
    npy_done(&deq);
    npy_done(&index);
}

Test(kvcodec_golden, kvquant)
{
    char path[] = "kvquant3-XXXXXX";
    struct override options[] = {
        {"calibration", path}, {"thresholds", "tile"}, {"keys", "post_rope"}, {"metadata", "f32"}, {NULL, NULL}};
    struct soq_calibration_header header = {.n_layers = 1, .n_kv_heads = 1, .head_dim = D};
    float layer[4 * D + 6 * SOQ_CALIBRATION_TABLES] = {0};
    float *k = soq__alloc(TOKENS * D * sizeof *k), *v = soq__alloc(TOKENS * D * sizeof *v);
    struct npy lut[2] = {read_part("kvquant3", 'K', "lut"), read_part("kvquant3", 'V', "lut")};
    struct codec c;

    close(mkstemp(path));
    memcpy(layer + soq_calibration_table(&header, SOQ_CALIBRATION_ROPED_KEYS, 0, 3), lut[0].data, 8 * sizeof(float));
    memcpy(layer + soq_calibration_table(&header, SOQ_CALIBRATION_VALUES, 0, 3), lut[1].data, 8 * sizeof(float));
    codec_write_calibration(path, header, layer);
    c = codec_open("kvquant", options);
    unlink(path);
    kvquant_plane(&c, 'K', k);
    kvquant_plane(&c, 'V', v);
    compare_attention("kvquant3", k, v, 1e-5);
    codec_close(&c);
    npy_done(&lut[0]);
    npy_done(&lut[1]);
    soq__free(k);
    soq__free(v);
}
