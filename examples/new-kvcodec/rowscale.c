/* KV codec `rowscale`: each token's numbers as codes of 8 bits, with one scale for the row.
 *
 * scale = max |x| / 127, code = 128 + x / scale, rounded, x' = (code - 128) * scale. A loud channel so costs all others of its
 * row their accuracy: smaller groups, a rotation or another kind of code is where an idea of your own begins. */
#include <soquete/plugin.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LARGEST 65504.0f /* of a half float */

/* The plugin's instance: the host allocates it, zeroed, and hands it to every call as `self`. */
struct codec {
    uint32_t residual;
};

static int fail(struct soq_error *err, int code, const char *fmt, ...)
{
    va_list args;

    if (!err) /* the caller wants no message */
        return -code;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return err->code = -code;
}

/* The section [kv.rowscale]; each value was checked against the table below. */
static int codec_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct codec *c = self;

    (void)host, (void)err;
    c->residual = (uint32_t)config->get_int(config->ctx, "residual");
    return 0;
}

/* Where the codes begin: behind the scales, at a multiple of 8 bytes. */
static size_t codes_at(const struct soq_kv_tile *tile)
{
    return (tile->tokens * sizeof(float) + 7) / 8 * 8;
}

/* The code of a number: in quads along the axis that attention sums over, the dims of keys and the tokens of values. */
static size_t code_at(const struct soq_kv_tile *tile, uint32_t token, uint32_t dim)
{
    int keys = tile->role == SOQ_PLANE_KEY;
    size_t inner = keys ? dim : token, outer = keys ? token : dim, n_outer = keys ? tile->tokens : tile->width;

    return codes_at(tile) + (inner / 4 * n_outer + outer) * 4 + inner % 4;
}

static size_t tile_bytes(const struct soq_kv_tile *tile)
{
    int keys = tile->role == SOQ_PLANE_KEY;
    size_t n_inner = keys ? tile->width : tile->tokens, n_outer = keys ? tile->tokens : tile->width;

    return (codes_at(tile) + (n_inner + 3) / 4 * 4 * n_outer + 7) / 8 * 8;
}

/* How tiles of that shape are stored, whatever their layer, head and position. The format comes in as zeros. */
static int codec_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format, struct soq_error *err)
{
    const struct codec *c = self;

    if (tile->tokens == 0 || tile->width == 0 || tile->tokens > 65536 || tile->width > 65536)
        return fail(err, SOQ_EINVAL, "kv codec rowscale: a tile of %u tokens x %u numbers cannot be stored", tile->tokens,
                    tile->width);
    format->kind = SOQ_FORMAT_AFFINE;
    format->dtype = SOQ_DTYPE_F32; /* of the scales */
    format->bits = 8;
    format->symmetric = 1;
    format->group_tokens = 1;
    format->group_dims = tile->width;
    format->tail_dtype = SOQ_DTYPE_F16;
    format->residual_tokens = c->residual;
    format->tile_bytes = tile_bytes(tile);
    return 0;
}

/* Whatever comes, something finite is stored: NaN as 0, infinities as the largest half float. */
static float tamed(float x)
{
    if (x != x)
        return 0;
    return x < -LARGEST ? -LARGEST : x > LARGEST ? LARGEST : x;
}

static float scale_of(const float *row, uint32_t width)
{
    float most = 0;

    for (uint32_t d = 0; d < width; d++) {
        float x = tamed(row[d]), size = x < 0 ? -x : x;

        most = size > most ? size : most;
    }
    return most / 127;
}

/* Any thread, several at once; no allocation. Every byte of the tile is written. */
static int codec_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    unsigned char *bytes = dst;

    (void)self, (void)err;
    memset(dst, 0, tile_bytes(tile));
    for (uint32_t t = 0; t < tile->tokens; t++) {
        const float *row = src + (size_t)t * tile->width;
        float scale = scale_of(row, tile->width), inverse = scale < 0x1p-126f ? 0 : 1 / scale; /* a row of zeros */

        memcpy(bytes + t * sizeof scale, &scale, sizeof scale);
        for (uint32_t d = 0; d < tile->width; d++)
            bytes[code_at(tile, t, d)] = (unsigned char)(int)(tamed(row[d]) * inverse + 128.5f);
    }
    return 0;
}

static int codec_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    const unsigned char *bytes = src;

    (void)self, (void)err;
    for (uint32_t t = 0; t < tile->tokens; t++) {
        float scale;

        memcpy(&scale, bytes + t * sizeof scale, sizeof scale);
        for (uint32_t d = 0; d < tile->width; d++)
            dst[(size_t)t * tile->width + d] = (float)(bytes[code_at(tile, t, d)] - 128) * scale;
    }
    return 0;
}

static const struct soq_option options[] = {
    {
        .struct_size = sizeof options[0],
        .type = SOQ_OPT_INT,
        .key = "residual",
        .default_value = "0",
        .min = 0,
        .max = 65536,
        .help = "Entries before each point at which blocks are packed that stay plain.",
    },
};

static const struct soq_kv_codec_ops ops = {
    .struct_size = sizeof ops,
    .instance_size = sizeof(struct codec),
    .init = codec_init,
    .describe = codec_describe,
    .encode = codec_encode,
    .decode = codec_decode,
};

static const struct soq_role_entry roles[] = {
    {
        .struct_size = sizeof roles[0],
        .role = SOQ_ROLE_KV_CODEC,
        .minor = SOQ_KV_CODEC_MINOR,
        .min_minor = SOQ_KV_CODEC_MINOR,
        .ops = &ops,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .option_stride = sizeof options[0],
    },
};

/* The one symbol that the library exports; the host looks at it before any of the code above runs. */
const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "rowscale",
    .variant = "",
    .version = "0.1",
    .summary = "KV codec: codes of 8 bits, a scale per row",
    .licence = "Apache-2.0",
    .n_roles = sizeof roles / sizeof roles[0],
    .role_stride = sizeof roles[0],
    .roles = roles,
};
