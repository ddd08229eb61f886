/* Checks of KV codecs: descriptions that make sense, tiles that come back within the format's bound, no byte beyond tile_bytes,
 * and the same from any thread. */
#include <math.h>
#include <stdlib.h>

#include "check/coder.h"
#include "check/kit.h"
#include "check/table.h"

static const uint32_t tokens[] = {1, 4, 16, 32, 128}, widths[] = {1, 7, 8, 20, 64, 80, 128, 256};

enum { KINDS = 6, ODDITIES = 7, THREADS = 4, TILES = 64, TOKENS = 32, WIDTH = 64, N = TOKENS * WIDTH };

struct codec {
    struct soq__kit *kit;
    const struct soq_kv_codec_ops *ops;
    void *self;
    struct soq_kv_tile tile;
    struct soq_kv_format format;
    size_t n; /* numbers of a tile */
};

static bool describe(struct codec *c)
{
    struct soq_kv_format empty = {.kind = 0}, *format = soq__kit_box(c->kit, &empty, sizeof empty);
    struct soq_error *err = soq__kit_error(c->kit);
    int rc = c->ops->describe(c->self, soq__kit_box(c->kit, &c->tile, sizeof c->tile), format, err);

    soq__kit_unbox(c->kit, format, &c->format, sizeof c->format);
    if (rc)
        soq__kit_refused(c->kit, "describe", rc, 0, err);
    return !rc;
}

/* An instance that knows a model, if it wants to. */
static void open_codec(struct soq__kit *kit, struct codec *c)
{
    static const float inv_freq[] = {1, 0.3f, 0.1f, 0.03f, 0.01f, 0.003f, 0.001f, 0.0003f};
    static const struct soq_kv_shape shape = {.struct_size = sizeof shape,
                                              .n_layers = 4,
                                              .n_heads = 12,
                                              .n_kv_heads = TILES,
                                              .head_dim = WIDTH,
                                              .head_dim_v = WIDTH,
                                              .context = 4096,
                                              .block_tokens = TOKENS,
                                              .rope_kind = SOQ_ROPE_HALF,
                                              .n_rot = 2 * SOQ__COUNT(inv_freq),
                                              .rope_mscale = 1,
                                              .inv_freq = inv_freq};
    struct soq_error *err = soq__kit_error(kit);

    soq__kit_open(kit);
    c->kit = kit;
    c->ops = kit->role->ops.kv_codec;
    c->self = soq__kit_instance(kit);
    if (c->ops->prepare)
        soq__kit_ok(kit, "prepare", c->ops->prepare(c->self, &shape, err), err);
}

/* Runs `try` on every shape of tile that the codec takes. */
static void each_tile(struct soq__kit *kit, void (*try)(struct codec *c))
{
    struct codec c = {.kit = kit};
    bool any = false;

    open_codec(kit, &c);
    for (size_t i = 0; i < 2 * SOQ__COUNT(tokens) * SOQ__COUNT(widths); i++) {
        c.tile = (struct soq_kv_tile){.struct_size = sizeof c.tile,
                                      .role = i % 2 ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY,
                                      .layer = 1,
                                      .head = 2,
                                      .tokens = tokens[i / 2 % SOQ__COUNT(tokens)],
                                      .width = widths[i / 2 / SOQ__COUNT(tokens)],
                                      .first_position = 640};
        c.n = (size_t)c.tile.tokens * c.tile.width;
        soq__kit_at(kit, "%s, %u x %u", i % 2 ? "values" : "keys", c.tile.tokens, c.tile.width);
        if (!describe(&c))
            continue;
        any = true;
        try(&c);
    }
    SOQ__EXPECT(kit, any, "takes no shape of tile");
}

/* ---- Descriptions */

static bool has_layout(const struct soq_kv_format *f)
{
    return f->kind == SOQ_FORMAT_AFFINE || f->kind == SOQ_FORMAT_CODEBOOK || f->kind == SOQ_FORMAT_E4M3;
}

/* What the kit makes of the format. */
static struct soq__coder coder_of(const struct codec *c)
{
    struct soq__coder coder;

    soq__coder_read(&coder, &c->format, c->tile.role, c->tile.tokens, c->tile.width);
    return coder;
}

/* Formats are of shapes, whatever the layer, head and position: a group is described by one of its tiles. */
static void expect_again(struct codec *c)
{
    static const uint32_t others[][3] = {{1, 2, 640}, {0, 2, 640}, {3, 2, 640}, {1, 0, 640}, {1, 2, 0}, {1, 2, UINT32_MAX}};
    const struct soq_kv_format first = c->format;
    const struct soq_kv_tile tile = c->tile;

    for (size_t i = 0; i < SOQ__COUNT(others); i++) {
        c->tile.layer = others[i][0];
        c->tile.head = others[i][1];
        c->tile.first_position = others[i][2];
        SOQ__EXPECT(c->kit, describe(c) && memcmp(&first, &c->format, sizeof first) == 0,
                    "describe again, of layer %u, head %u, position %u (after layer %u, head %u, position %u): another format",
                    c->tile.layer, c->tile.head, c->tile.first_position, tile.layer, tile.head, tile.first_position);
    }
    c->tile = tile;
}

static void try_format(struct codec *c)
{
    const struct soq_kv_format first = c->format, *f = &first;
    uint64_t element = f->dtype == SOQ_DTYPE_F32 ? 4 : 2;

    SOQ__EXPECT(c->kit, f->kind >= SOQ_FORMAT_PLAIN && f->kind <= SOQ_FORMAT_E4M3, "kind %u", f->kind);
    SOQ__EXPECT(c->kit, f->tile_bytes && f->tile_bytes % 8 == 0, "tile_bytes = %lu is no multiple of 8",
                (unsigned long)f->tile_bytes);
    SOQ__EXPECT(c->kit,
                f->dtype == SOQ_DTYPE_F32 || f->dtype == SOQ_DTYPE_F16 || f->dtype == SOQ_DTYPE_BF16 ||
                    f->kind == SOQ_FORMAT_OPAQUE,
                "dtype %u is no float", f->dtype);
    SOQ__EXPECT(c->kit, f->dtype != SOQ_DTYPE_BF16 || f->kind == SOQ_FORMAT_PLAIN || f->kind == SOQ_FORMAT_OPAQUE,
                "scales are F16 or F32, not BF16");
    SOQ__EXPECT(c->kit, f->tail_dtype == SOQ_DTYPE_F32 || f->tail_dtype == SOQ_DTYPE_F16 || f->tail_dtype == SOQ_DTYPE_BF16,
                "tail_dtype %u is no float", f->tail_dtype);
    SOQ__EXPECT(c->kit, f->kind != SOQ_FORMAT_PLAIN || f->tile_bytes >= c->n * element, "%lu bytes for %zu plain numbers",
                (unsigned long)f->tile_bytes, c->n);
    SOQ__EXPECT(c->kit, f->kind != SOQ_FORMAT_CODEBOOK || (f->codebook && f->codebook_size),
                "a codebook format without a book");
    SOQ__EXPECT(c->kit, !f->codebook == !f->codebook_size, "a codebook of %u entries at %p", f->codebook_size,
                (const void *)f->codebook);
    SOQ__EXPECT(c->kit, !(f->waived & ~c->ops->traits), "waives %x, but its traits are %x", f->waived, c->ops->traits);
    SOQ__EXPECT(c->kit, !has_layout(f) || (f->bits && f->bits <= 8 && f->group_tokens && f->group_dims),
                "codes of %u bits in groups of %u x %u", f->bits, f->group_tokens, f->group_dims);
    SOQ__EXPECT(c->kit, f->kind != SOQ_FORMAT_E4M3 || f->bits == 8, "E4M3 codes of %u bits", f->bits);
    SOQ__EXPECT(c->kit, !f->rotation == !f->rotation_dims, "rotation %u of %u dims", f->rotation, f->rotation_dims);
    SOQ__EXPECT(c->kit,
                (f->rotation_dims & (f->rotation_dims - 1)) == 0 && (!f->rotation || c->tile.width % f->rotation_dims == 0),
                "rotation of %u dims: no power of two that divides %u", f->rotation_dims, c->tile.width);
    SOQ__EXPECT(c->kit, f->rotation != SOQ_ROTATION_HADAMARD_SIGNS || f->signs, "a rotation with signs without signs");
    if (has_layout(f)) {
        const struct soq__coder coder = coder_of(c);

        SOQ__EXPECT(c->kit, f->tile_bytes == soq__coder_tile_bytes(&coder), "tile_bytes = %lu, by the layout %lu",
                    (unsigned long)f->tile_bytes, (unsigned long)soq__coder_tile_bytes(&coder));
    }
    expect_again(c);
}

static void check_format(struct soq__kit *kit)
{
    each_tile(kit, try_format);
}

static void check_impossible(struct soq__kit *kit)
{
    static const uint32_t shapes[][2] = {{0, 8}, {8, 0}, {0, 0}, {UINT32_MAX, UINT32_MAX}};
    struct codec c = {.kit = kit, .tile = {.role = SOQ_PLANE_KEY}};

    open_codec(kit, &c);
    for (size_t i = 0; i < SOQ__COUNT(shapes); i++) {
        c.tile.tokens = shapes[i][0];
        c.tile.width = shapes[i][1];
        soq__kit_at(kit, "%u x %u", c.tile.tokens, c.tile.width);
        SOQ__EXPECT(kit, !describe(&c), "a tile that cannot be stored has a format");
    }
}

/* ---- Round trips */

/* Several kinds of tiles: zeros, a constant, noise, outliers, large, tiny. */
static float number(uint32_t kind, size_t i, uint64_t *seed)
{
    float x = soq__kit_random(seed);

    switch (kind) {
    case 0:
        return 0;
    case 1:
        return -1.5f;
    case 2:
        return x;
    case 3:
        return i % 37 == 5 ? 60 * x : x;
    case 4:
        return 60000 * x;
    default:
        return 1e-4f * x;
    }
}

static void encode(struct codec *c, const float *src, void *dst)
{
    struct soq_error *err = soq__kit_error(c->kit);

    c->kit->host.no_alloc = true;
    soq__kit_ok(c->kit, "encode", c->ops->encode(c->self, soq__kit_box(c->kit, &c->tile, sizeof c->tile), src, dst, err), err);
    c->kit->host.no_alloc = false;
}

static void decode(struct codec *c, const void *src, float *dst)
{
    struct soq_error *err = soq__kit_error(c->kit);

    c->kit->host.no_alloc = true;
    soq__kit_ok(c->kit, "decode", c->ops->decode(c->self, soq__kit_box(c->kit, &c->tile, sizeof c->tile), src, dst, err), err);
    c->kit->host.no_alloc = false;
}

/* The least and the largest number of a group, and 0. */
struct range {
    uint32_t t0, d0; /* where the group begins */
    double low, high;
};

static struct range range_of(const struct codec *c, const float *src, uint32_t t0, uint32_t d0)
{
    const struct soq_kv_format *f = &c->format;
    struct range r = {.t0 = t0, .d0 = d0};

    for (uint32_t t = t0; t < t0 + f->group_tokens && t < c->tile.tokens; t++) {
        for (uint32_t d = d0; d < d0 + f->group_dims && d < c->tile.width; d++) {
            r.low = fmin(r.low, (double)src[t * c->tile.width + d]);
            r.high = fmax(r.high, (double)src[t * c->tile.width + d]);
        }
    }
    return r;
}

static double plain_bound(uint32_t dtype, double x)
{
    return dtype == SOQ_DTYPE_F32 ? 0 : dtype == SOQ_DTYPE_F16 ? fmax(x * 0x1p-11, 0x1p-25) : x * 0x1p-8;
}

/* What the format allows number i to be off. Groups: one step, as scales are rounded too. *range: of the group of the number
 * before, if that is the same. */
static double bound_of(const struct codec *c, const float *src, size_t i, struct range *range)
{
    const struct soq_kv_format *f = &c->format;
    uint32_t width = c->tile.width, t0, d0;
    /* A scale below the normal half floats is off by up to 2^-25, a code multiplies that. */
    double high, rounding = 1e-6 + (f->dtype == SOQ_DTYPE_F16 ? ldexp(1, (int)f->bits - 25) : 0);

    if (f->kind == SOQ_FORMAT_PLAIN)
        return plain_bound(f->dtype, fabs((double)src[i]));
    t0 = (uint32_t)(i / width) / f->group_tokens * f->group_tokens;
    d0 = (uint32_t)(i % width) / f->group_dims * f->group_dims;
    if (i == 0 || range->t0 != t0 || range->d0 != d0)
        *range = range_of(c, src, t0, d0);
    high = f->symmetric || f->kind != SOQ_FORMAT_AFFINE ? 2 * fmax(range->high, -range->low) : range->high - range->low;
    if (f->kind == SOQ_FORMAT_E4M3)
        return fabs((double)src[i]) / 16 + high * 0x1p-19 + rounding;
    return high / ((1u << f->bits) - 1) * (f->kind == SOQ_FORMAT_AFFINE ? 1 : 4) + 1e-3 * high + rounding;
}

/* A rotation spreads errors over its tile, and what an opaque format does is its own matter: such tiles are compared as a
 * whole. */
static void compare(struct codec *c, const float *src, const float *out)
{
    bool whole = c->format.kind == SOQ_FORMAT_OPAQUE || c->format.rotation;
    double error = 0, size = 0, bound = 0;
    struct range range = {0};

    for (size_t i = 0; i < c->n; i++) {
        double off = fabs((double)out[i] - (double)src[i]),
               allowed = c->format.kind == SOQ_FORMAT_OPAQUE ? 0 : bound_of(c, src, i, &range);

        SOQ__EXPECT(c->kit, isfinite(out[i]), "number %zu, %g, comes back as %g", i, (double)src[i], (double)out[i]);
        SOQ__EXPECT(c->kit, whole || off <= allowed, "number %zu, %.9g, comes back as %.9g (off by %.3g, allowed %.3g)", i,
                    (double)src[i], (double)out[i], off, allowed);
        error += off * off;
        size += (double)src[i] * (double)src[i];
        bound += allowed * allowed;
    }
    SOQ__EXPECT(c->kit, !whole || error <= (c->format.kind == SOQ_FORMAT_OPAQUE ? 0.25 * size : 4 * bound) + 1e-12,
                "the tile is off by %.3g of its length", sqrt(error / (size + 1e-30)));
}

static void try_round_trip(struct codec *c)
{
    float *src = soq__kit_guard(c->kit, c->n * sizeof *src, 4), *out = soq__kit_guard(c->kit, c->n * sizeof *out, 4);
    float *again = soq__kit_guard(c->kit, c->n * sizeof *out, 4);
    void *dst = soq__kit_guard(c->kit, c->format.tile_bytes, 8);

    for (uint32_t kind = 0; kind < KINDS; kind++) {
        uint64_t seed = kind + 1;

        for (size_t i = 0; i < c->n; i++)
            src[i] = number(kind, i, &seed);
        memset(dst, 0xff, c->format.tile_bytes);
        encode(c, src, dst);
        decode(c, dst, out);
        compare(c, src, out);
        /* Bytes that encode leaves alone must not matter. */
        memset(dst, 0, c->format.tile_bytes);
        encode(c, src, dst);
        decode(c, dst, again);
        SOQ__EXPECT(c->kit, memcmp(out, again, c->n * sizeof *out) == 0,
                    "the same tile comes back as other bits the second time");
    }
    soq__kit_guard_intact(c->kit, dst, "the tile");
    soq__kit_guard_intact(c->kit, out, "the decoded numbers");
}

static void check_round_trip(struct soq__kit *kit)
{
    each_tile(kit, try_round_trip);
}

/* ---- The layout of tiles: what a backend would read is what decode says */

static void try_layout(struct codec *c)
{
    float *src = soq__kit_guard(c->kit, c->n * sizeof *src, 4), *out = soq__kit_guard(c->kit, c->n * sizeof *out, 4);
    float *read = soq__kit_guard(c->kit, c->n * sizeof *read, 4);
    uint8_t *tile = soq__kit_guard(c->kit, c->format.tile_bytes, 8);
    struct soq__coder coder;

    if (!has_layout(&c->format))
        return;
    coder = coder_of(c);
    soq__kit_fill(src, c->n, 5);
    encode(c, src, tile);
    decode(c, tile, out);
    soq__coder_decode(&coder, tile, read);
    for (size_t i = 0; i < c->n; i++)
        SOQ__EXPECT(c->kit, fabs((double)out[i] - (double)read[i]) <= 1e-5,
                    "token %zu, dim %zu: decode says %.9g, the tile %.9g", i / c->tile.width, i % c->tile.width, (double)out[i],
                    (double)read[i]);
}

static void check_layout(struct soq__kit *kit)
{
    each_tile(kit, try_layout);
}

/* ---- Numbers that are not finite, or hardly */

static void try_odd(struct codec *c)
{
    static const float odd[ODDITIES] = {INFINITY, -INFINITY, NAN, 3e38f, 1e-40f, 65504, -1e-30f};
    float *src = soq__kit_guard(c->kit, c->n * sizeof *src, 4), *out = soq__kit_guard(c->kit, c->n * sizeof *out, 4);
    void *tile = soq__kit_guard(c->kit, c->format.tile_bytes, 8);

    if (c->format.kind == SOQ_FORMAT_PLAIN)
        return;
    for (uint32_t kind = 0; kind < 2 * ODDITIES; kind++) { /* one among others, then all of them */
        soq__kit_fill(src, c->n, 9);
        for (size_t i = 0; i < c->n; i++)
            if (kind >= ODDITIES || i == c->n / 2)
                src[i] = odd[kind % ODDITIES];
        encode(c, src, tile);
        decode(c, tile, out);
        for (size_t i = 0; i < c->n; i++)
            SOQ__EXPECT(c->kit, isfinite(out[i]), "a tile with %s%g: number %zu comes back as %g", kind < ODDITIES ? "a " : "",
                        (double)odd[kind % ODDITIES], i, (double)out[i]);
    }
    soq__kit_guard_intact(c->kit, tile, "the tile");
}

static void check_odd(struct soq__kit *kit)
{
    each_tile(kit, try_odd);
}

/* ---- Threads: different tiles at once come out as one after the other */

struct shared {
    struct codec *c;
    float *src, *out;   /* [TILES][N] */
    unsigned char *dst; /* [TILES][tile_bytes] */
};

static void run_tile(const struct shared *s, uint32_t i)
{
    const struct codec *c = s->c;
    struct soq_kv_tile tile = c->tile;
    struct soq_error err = SOQ_ERROR_INIT;
    unsigned char *dst = s->dst + i * c->format.tile_bytes;

    tile.head = i;
    soq__kit_ok(c->kit, "encode", c->ops->encode(c->self, &tile, s->src + (size_t)i * N, dst, &err), &err);
    soq__kit_ok(c->kit, "decode", c->ops->decode(c->self, &tile, dst, s->out + (size_t)i * N, &err), &err);
}

static void run_tiles(void *arg, uint32_t index)
{
    for (int round = 0; round < 8; round++)
        for (uint32_t i = index; i < TILES; i += THREADS)
            run_tile(arg, i);
}

static void check_threads(struct soq__kit *kit)
{
    struct codec c = {
        .kit = kit, .tile = {.struct_size = sizeof c.tile, .role = SOQ_PLANE_KEY, .tokens = TOKENS, .width = WIDTH}, .n = N};
    struct shared s = {.c = &c};
    size_t bytes = sizeof(float) * TILES * N;
    float *alone;

    open_codec(kit, &c);
    if (!describe(&c))
        soq__kit_skip(kit, "does not take tiles of %d x %d", TOKENS, WIDTH);
    s.src = soq__kit_guard(kit, bytes, 4);
    s.out = soq__kit_guard(kit, bytes, 4);
    s.dst = soq__kit_guard(kit, TILES * c.format.tile_bytes, 8);
    alone = soq__kit_guard(kit, bytes, 4);
    soq__kit_fill(s.src, (size_t)TILES * N, 3);
    for (uint32_t i = 0; i < TILES; i++)
        run_tile(&s, i);
    memcpy(alone, s.out, bytes);
    memset(s.out, 0, bytes);
    soq__kit_at(kit, "%d threads", THREADS);
    soq__kit_threads(kit, THREADS, run_tiles, &s);
    SOQ__EXPECT(kit, memcmp(alone, s.out, bytes) == 0, "tiles come out as other bits than on one thread");
}

/* ---- Work */

int soq__kit_codec_work(struct soq__kit *kit, void *self, struct soq_error *err)
{
    struct codec c = {.kit = kit,
                      .ops = kit->role->ops.kv_codec,
                      .tile = {.struct_size = sizeof c.tile, .role = SOQ_PLANE_KEY, .tokens = TOKENS, .width = WIDTH}};
    static float numbers[N];
    void *dst;
    int rc;

    c.self = self;
    if (!describe(&c))
        return 0;
    dst = soq__kit_guard(kit, c.format.tile_bytes, 8);
    rc = c.ops->encode(self, soq__kit_box(kit, &c.tile, sizeof c.tile), numbers, dst, err);
    return rc ? rc : c.ops->decode(self, soq__kit_box(kit, &c.tile, sizeof c.tile), dst, numbers, err);
}

static const struct soq__check checks[] = {
    {"codec.format", SOQ_ROLE_KV_CODEC, "formats are complete, and the same for every layer, head and position", check_format,
     "skew.exact"},
    {"codec.impossible", SOQ_ROLE_KV_CODEC, "tiles of nothing, or of everything, are refused", check_impossible, "skew.exact"},
    {"codec.round_trip", SOQ_ROLE_KV_CODEC, "numbers come back within the format's bound; tile_bytes is kept to",
     check_round_trip, "codec.format"},
    {"codec.layout", SOQ_ROLE_KV_CODEC, "tiles of the kinds that backends read are laid out as the ABI says", check_layout,
     "codec.round_trip"},
    {"codec.odd", SOQ_ROLE_KV_CODEC, "infinities, NaN and the like come back finite", check_odd, "codec.round_trip"},
    {"codec.threads", SOQ_ROLE_KV_CODEC, "threads at once get the bits that one gets", check_threads, "codec.round_trip"},
};
const struct soq__check_family soq__checks_codec = SOQ__FAMILY(checks);
