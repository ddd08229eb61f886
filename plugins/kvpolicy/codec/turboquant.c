/* KV codec `turboquant`: the length of a row, and its direction, rotated at random, number by number from the best codebook for
 * normal numbers (A. Zandieh et al., "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate", 2025,
 * algorithms 1 and 2). Nothing is learned, no channel matters more than another.
 *
 * y = sqrt(d) H (signs x / |x|), H the orthonormal Hadamard transform: its numbers are close to N(0, 1) whatever x was.
 *   mse    code = the nearest entry of the Lloyd-Max codebook for N(0, 1). Kind CODEBOOK: backends compute on it.
 *   prod   one bit less for that; the bit goes to a sketch of what is left, r: the signs of e = H (signs' r), QJL with an
 *          orthonormal matrix. r' = sqrt(pi / (2 d)) |r| signs' H sign(e). Inner products are free of bias, but vary more.
 *          OPAQUE; the tile is laid out as an AFFINE one of `bits` bits whose top bit is the sketch's and whose minima are
 *          sqrt(pi / (2 d)) |r|.
 *
 * A row of zeros comes back as zeros. */
#include "codec.h"
#include "philox.h"

struct turboquant {
    uint32_t prod, bits, metadata;
    float signs[KVTILE_WIDTH_MAX], sketch_signs[KVTILE_WIDTH_MAX];
};

/* ---- The codebooks of 0 to 4 bits: minimal squared error for N(0, 1), .36338, .11748, .03455 and .00950 from 1 bit on */

static const float book0[] = {0};
static const float book1[] = {-0.797884561f, 0.797884561f};
static const float book2[] = {-1.51041761f, -0.452780035f, 0.452780035f, 1.51041761f};
static const float book3[] = {-2.1519457f,  -1.34390928f, -0.756005281f, -0.245094179f,
                              0.245094179f, 0.756005281f, 1.34390928f,   2.1519457f};
static const float book4[] = {-2.73258957f,  -2.06901723f, -1.61804639f, -1.2562312f,  -0.942340456f, -0.656759119f,
                              -0.388048299f, -0.12839503f, 0.12839503f,  0.388048299f, 0.656759119f,  0.942340456f,
                              1.2562312f,    1.61804639f,  2.06901723f,  2.73258957f};
static const float *const books[] = {book0, book1, book2, book3, book4};

/* ---- The plugin's tables call these */

static int turboquant_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct turboquant *codec = self;
    uint64_t seed = (uint64_t)config->get_int(config->ctx, "seed");

    (void)host;
    (void)err;
    codec->prod = strcmp(config->get_string(config->ctx, "variant"), "prod") == 0;
    codec->bits = (uint32_t)config->get_int(config->ctx, "bits");
    codec->metadata = codec_metadata(config);
    for (uint32_t d = 0; d < KVTILE_WIDTH_MAX; d++) {
        codec->signs[d] = philox_uniform(seed, d, 0) < 0.5 ? -1 : 1;
        codec->sketch_signs[d] = philox_uniform(seed, d, 1) < 0.5 ? -1 : 1;
    }
    return 0;
}

/* How tiles are laid out: as a backend would read them, but for the kind of `prod`. */
static struct soq_kv_format layout_of(const struct turboquant *codec, uint32_t width)
{
    return (struct soq_kv_format){
        .kind = codec->prod ? SOQ_FORMAT_AFFINE : SOQ_FORMAT_CODEBOOK,
        .dtype = codec->metadata,
        .bits = codec->bits,
        .group_tokens = 1,
        .group_dims = width,
        .rotation = SOQ_ROTATION_HADAMARD_SIGNS,
        .rotation_dims = hadamard_block(width),
        .signs = codec->signs,
    };
}

static int turboquant_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out,
                               struct soq_error *err)
{
    const struct turboquant *codec = self;
    uint32_t struct_size = format_out->struct_size;
    int rc = codec_check_tile("turboquant", tile, err);

    if (rc)
        return rc;
    if (!hadamard_block(tile->width))
        return plugin_fail(err, SOQ_EINVAL,
                           "kv codec turboquant cannot rotate heads of %u numbers: that takes a power of two or a multiple of "
                           "64; choose another codec, int4 for example",
                           tile->width);
    *format_out = layout_of(codec, tile->width);
    format_out->struct_size = struct_size;
    format_out->tail_dtype = SOQ_DTYPE_F16;
    format_out->tile_bytes = kvtile_of(format_out, tile->role, tile->tokens, tile->width).bytes;
    format_out->codebook = books[codec->bits - codec->prod];
    format_out->codebook_size = 1u << (codec->bits - codec->prod);
    if (codec->prod) {
        format_out->kind = SOQ_FORMAT_OPAQUE;
        format_out->bits = codec->bits - 1;
        format_out->sketch_bits = 1;
    }
    return 0;
}

/* ---- Rows */

static float length(const float *x, uint32_t n)
{
    float sums[8] = {0}, sum = 0;
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (uint32_t j = 0; j < 8; j++)
            sums[j] += x[i + j] * x[i + j];
    for (; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t j = 0; j < 8; j++)
        sum += sums[j];
    return sqrtf(sum);
}

/* The nearest entries of a book: as many as there are middles below. */
static void nearest(const float *book, uint32_t bits, const float *y, float inverse, uint32_t n, uint8_t *codes)
{
    memset(codes, 0, n);
    for (uint32_t k = 0; k + 1 < 1u << bits; k++) {
        float middle = (book[k] + book[k + 1]) / 2;

        for (uint32_t d = 0; d < n; d++)
            codes[d] = (uint8_t)(codes[d] + (y[d] * inverse > middle));
    }
}

/* y: the rotated row [n], which becomes what is left of it; scale: that its codes are read with. Adds the sketch to the codes;
 * returns what its signs are read with. */
static float sketch(const struct turboquant *codec, const struct soq_kv_format *f, float scale, float *y, uint32_t n,
                    uint8_t *codes)
{
    const float *book = books[codec->bits - 1];
    float left;

    for (uint32_t d = 0; d < n; d++)
        y[d] -= book[codes[d]] * scale;
    left = length(y, n);
    for (uint32_t d = 0; d < n; d++)
        y[d] *= codec->sketch_signs[d];
    hadamard(y, n, f->rotation_dims);
    for (uint32_t d = 0; d < n; d++)
        codes[d] = (uint8_t)(codes[d] | (y[d] >= 0) << (codec->bits - 1));
    return left * sqrtf(1.57079633f / (float)n);
}

/* Adds what the sketch says to the row y. */
static void add_sketch(const struct turboquant *codec, const struct soq_kv_format *f, float gain, const uint8_t *codes,
                       uint32_t n, float *y)
{
    float r[KVTILE_WIDTH_MAX];

    for (uint32_t d = 0; d < n; d++)
        r[d] = codes[d] >> (codec->bits - 1) ? gain : -gain;
    hadamard(r, n, f->rotation_dims);
    for (uint32_t d = 0; d < n; d++)
        y[d] += r[d] * codec->sketch_signs[d];
}

/* ---- Tiles */

static int turboquant_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    const struct turboquant *codec = self;
    struct soq_kv_format f = layout_of(codec, tile->width);
    struct kvtile t = kvtile_of(&f, tile->role, tile->tokens, tile->width);
    uint32_t book_bits = codec->bits - codec->prod, n = tile->width;
    struct kvtile_rows rows = {0};
    float y[KVTILE_WIDTH_MAX];

    (void)err;
    memset(dst, 0, t.planes[0].at); /* zeros behind the scales */
    for (uint32_t token = 0; token < tile->tokens; token++) {
        uint8_t *codes = rows.code[token % 4];
        float scale;

        codec_row_in(&f, src + (size_t)token * n, n, y);
        scale = length(y, n) / sqrtf((float)n);
        nearest(books[book_bits], book_bits, y, codec_inverse(scale), n, codes);
        codec_put(f.dtype, dst, token, scale);
        if (codec->prod)
            codec_put(f.dtype, (uint8_t *)dst + t.min_at, token,
                      sketch(codec, &f, codec_get(f.dtype, dst, token), y, n, codes));
        if (token % 4 == 3 || token + 1 == tile->tokens) {
            for (uint32_t r = token % 4 + 1; r < 4; r++)
                memset(rows.code[r], 0, n);
            kvtile_put_rows(&t, tile->role, dst, token / 4 * 4, &rows);
        }
    }
    return 0;
}

static int turboquant_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    const struct turboquant *codec = self;
    struct soq_kv_format f = layout_of(codec, tile->width);
    struct kvtile t = kvtile_of(&f, tile->role, tile->tokens, tile->width);
    uint32_t book_bits = codec->bits - codec->prod, n = tile->width;
    const float *book = books[book_bits];
    struct kvtile_rows rows;

    (void)err;
    for (uint32_t token = 0; token < tile->tokens; token++) {
        float scale = codec_get(f.dtype, src, token), *y = dst + (size_t)token * n;
        const uint8_t *codes = rows.code[token % 4];

        if (token % 4 == 0)
            kvtile_get_rows(&t, tile->role, src, token, &rows);
        for (uint32_t d = 0; d < n; d++)
            y[d] = book[codes[d] & ((1u << book_bits) - 1)] * scale;
        if (codec->prod)
            add_sketch(codec, &f, codec_get(f.dtype, (const uint8_t *)src + t.min_at, token), codes, n, y);
        codec_row_out(&f, n, y);
    }
    return 0;
}

static const struct soq_option turboquant_options[] = {
    OPTION_ENUM("variant", "mse", "mse|prod", "Least squared error, or inner products without bias, which vary more."),
    OPTION_INT("bits", "3", 1, 4, "Bits per number, the sketch of prod included."),
    OPTION_INT("seed", "0", 0, INT32_MAX, "Of the random signs of the rotation."),
    OPTION_METADATA("f16"),
};

static const struct soq_kv_codec_ops turboquant_ops = {
    .struct_size = sizeof turboquant_ops,
    .instance_size = sizeof(struct turboquant),
    .init = turboquant_init,
    .describe = turboquant_describe,
    .encode = turboquant_encode,
    .decode = turboquant_decode,
};

KV_CODEC_PLUGIN(turboquant, "1 to 4 bits from the codebook for normal numbers");
