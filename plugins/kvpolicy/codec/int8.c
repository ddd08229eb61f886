/* KV codec `int8`: rows in groups of 32 numbers, each code a byte, one half float per group: 8.5 bits per number. The numbers
 * are those of the block format q8_0 of GGUF; where they lie in memory is the ABI's own tile layout.
 *
 * s = max |x| / 127, code = x / s rounded half away from zero. */
#include "affine.h"

struct int8 {
    enum affine_rotation rotation;
};

static int int8_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct int8 *codec = self;

    (void)host;
    (void)err;
    codec->rotation = affine_rotation_of(config);
    return 0;
}

static int int8_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    const struct int8 *codec = self;

    format_out->bits = 8;
    format_out->symmetric = 1;
    return affine_describe("int8", codec->rotation, tile, format_out, err);
}

static int int8_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    struct soq_kv_format format = {.kind = 0};
    int rc = int8_describe(self, tile, &format, err);

    if (rc)
        return rc;
    affine_encode(&format, tile, src, dst);
    return 0;
}

static int int8_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    struct soq_kv_format format = {.kind = 0};
    int rc = int8_describe(self, tile, &format, err);

    if (rc)
        return rc;
    affine_decode(&format, tile, src, dst);
    return 0;
}

static const struct soq_option int8_options[] = {OPTION_ROTATION};

static const struct soq_kv_codec_ops int8_ops = {
    .struct_size = sizeof int8_ops,
    .instance_size = sizeof(struct int8),
    .init = int8_init,
    .describe = int8_describe,
    .encode = int8_encode,
    .decode = int8_decode,
};

KV_CODEC_PLUGIN(int8, "8-bit codes, a scale per 32 numbers");
