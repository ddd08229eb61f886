/* For tests of KV codecs: a codec with a configuration and one shape of tile, and what it makes of numbers. */
#ifndef SOQ_TESTS_CODEC_SUPPORT_H
#define SOQ_TESTS_CODEC_SUPPORT_H

#include <criterion/criterion.h>

#include "base/alloc.h"
#include "half.h"
#include "kvtile.h"
#include "plugin_open.h"
#include "soquete/calibration.h"

struct codec {
    const struct soq_kv_codec_ops *ops;
    void *self;
    struct soq_kv_tile tile;
    struct soq_kv_format format;
};

static inline void *codec_host_alloc(void *ctx, size_t bytes, size_t align)
{
    (void)ctx;
    (void)align;
    return soq__alloc(bytes);
}

static inline void codec_host_free(void *ctx, void *p)
{
    (void)ctx;
    soq__free(p);
}

static const struct soq_host codec_host = {
    .struct_size = sizeof codec_host, .abi_major = SOQ_ABI_MAJOR, .alloc = codec_host_alloc, .free = codec_host_free};

/* overrides: as plugin_open.h has it; NULL: all defaults. */
static inline int codec_try(const char *name, const struct override *overrides, struct codec *out, struct soq_error *err)
{
    const struct soq_role_entry *entry = open_plugin(name, SOQ_ROLE_KV_CODEC);
    struct plugin_values values = {entry, overrides};
    struct soq_config config = plugin_config(&values);
    int rc;

    *out = (struct codec){.ops = entry->ops};
    out->self = soq__alloc_zero(1, out->ops->instance_size + 1);
    rc = out->ops->init(out->self, &codec_host, &config, err);
    if (rc) {
        soq__free(out->self);
        out->self = NULL;
    }
    return rc;
}

static inline struct codec codec_open(const char *name, const struct override *overrides)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct codec c;

    cr_assert_eq(codec_try(name, overrides, &c, &err), 0, "%s: %s", name, err.text);
    return c;
}

static inline void codec_close(struct codec *c)
{
    if (c->self && c->ops->shutdown)
        c->ops->shutdown(c->self);
    soq__free(c->self);
    *c = (struct codec){.ops = NULL};
}

static inline int codec_shape(struct codec *c, uint32_t role, uint32_t tokens, uint32_t width, struct soq_error *err)
{
    c->tile = (struct soq_kv_tile){.struct_size = sizeof c->tile, .role = role, .tokens = tokens, .width = width};
    c->format = (struct soq_kv_format){.struct_size = sizeof c->format};
    return c->ops->describe(c->self, &c->tile, &c->format, err);
}

/* Writes a calibration file with the given contents; the header's checksum is put right. */
static inline void codec_write_calibration(const char *path, struct soq_calibration_header header, const float *layers)
{
    size_t floats = (size_t)(header.n_layers * soq_calibration_layer_floats(&header));
    FILE *file = fopen(path, "wb");

    cr_assert(file);
    memcpy(header.magic, SOQ_CALIBRATION_MAGIC, sizeof header.magic);
    header.version = header.version ? header.version : SOQ_CALIBRATION_VERSION;
    header.checksum = soq_calibration_checksum(&header, layers);
    cr_assert_eq(fwrite(&header, sizeof header, 1, file), 1);
    cr_assert_eq(fwrite(layers, sizeof *layers, floats, file), floats);
    cr_assert_eq(fclose(file), 0);
}

/* A tile of [tokens][width] numbers, to be freed. */
static inline uint8_t *codec_encode(struct codec *c, const float *src)
{
    struct soq_error err = SOQ_ERROR_INIT;
    uint8_t *tile = soq__alloc(c->format.tile_bytes + 8);

    memset(tile, 0xa5, c->format.tile_bytes + 8);
    cr_assert_eq(c->ops->encode(c->self, &c->tile, src, tile, &err), 0, "%s", err.text);
    for (int i = 0; i < 8; i++)
        cr_assert_eq(tile[c->format.tile_bytes + (size_t)i], 0xa5, "nothing is written behind the tile");
    return tile;
}

static inline void codec_decode(struct codec *c, const uint8_t *tile, float *dst)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(c->ops->decode(c->self, &c->tile, tile, dst, &err), 0, "%s", err.text);
}

/* Of a tile whose layout the ABI names: the code and the number that it stands for, before any rotation, one by one as
 * soquete/kv.h says. */
static inline uint32_t codec_code(const struct codec *c, const uint8_t *tile, uint32_t token, uint32_t dim)
{
    struct kvtile t = kvtile_of(&c->format, c->tile.role, c->tile.tokens, c->tile.width);
    bool keys = c->tile.role == SOQ_PLANE_KEY;

    return kvtile_get(&t, tile, keys ? dim : token, keys ? token : dim);
}

static inline float codec_meta(const struct codec *c, const uint8_t *tile, uint64_t at, uint32_t token, uint32_t dim)
{
    struct kvtile t = kvtile_of(&c->format, c->tile.role, c->tile.tokens, c->tile.width);
    uint64_t i = (uint64_t)(dim / c->format.group_dims) * t.token_groups + token / c->format.group_tokens;

    return c->format.dtype == SOQ_DTYPE_F32 ? ((const float *)(tile + at))[i] : f16_to_f32(((const uint16_t *)(tile + at))[i]);
}

static inline float codec_scale(const struct codec *c, const uint8_t *tile, uint32_t token, uint32_t dim)
{
    return codec_meta(c, tile, 0, token, dim);
}

static inline float codec_min(const struct codec *c, const uint8_t *tile, uint32_t token, uint32_t dim)
{
    struct kvtile t = kvtile_of(&c->format, c->tile.role, c->tile.tokens, c->tile.width);

    return t.min_at ? codec_meta(c, tile, t.min_at, token, dim) : 0;
}

#endif
