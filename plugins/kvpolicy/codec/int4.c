/* KV codec `int4`: rows in groups of 32 numbers, codes of 4 or 5 bits. The numbers are those of block formats of GGUF; where
 * they lie in memory is the ABI's own tile layout.
 *
 *   format   bits per number   x'                   s
 *   q4_0     4.5               (code - 8) s         m / -8, m the number of largest magnitude: symmetric
 *   q4_1     5                 code s + min         (max - min) / 15
 *   q5_1     6                 code s + min         (max - min) / 31
 *
 * Few bits and a loud channel do not go together: one number sets the scale of 31 others. A Hadamard transform of each row
 * spreads it first (S. Ashkboos et al., "QuaRot", NeurIPS 2024), and a backend rotates queries and outputs instead of every key
 * and value. */
#include "affine.h"

struct int4 {
    enum affine_rotation rotation;
    uint32_t bits, symmetric;
};

static int int4_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    const char *format = config->get_string(config->ctx, "format");
    struct int4 *codec = self;

    (void)host;
    (void)err;
    codec->rotation = affine_rotation_of(config);
    codec->bits = strcmp(format, "q5_1") == 0 ? 5 : 4;
    codec->symmetric = strcmp(format, "q4_0") == 0;
    return 0;
}

static int int4_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    const struct int4 *codec = self;

    format_out->bits = codec->bits;
    format_out->symmetric = codec->symmetric;
    return affine_describe("int4", codec->rotation, tile, format_out, err);
}

static int int4_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    struct soq_kv_format format = {.kind = 0};
    int rc = int4_describe(self, tile, &format, err);

    if (rc)
        return rc;
    affine_encode(&format, tile, src, dst);
    return 0;
}

static int int4_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    struct soq_kv_format format = {.kind = 0};
    int rc = int4_describe(self, tile, &format, err);

    if (rc)
        return rc;
    affine_decode(&format, tile, src, dst);
    return 0;
}

static const struct soq_option int4_options[] = {
    OPTION_ENUM("format", "q4_0", "q4_0|q4_1|q5_1",
                "4 bits around zero; 4 or 5 bits between the least and the largest number of each group."),
    OPTION_ROTATION,
};

static const struct soq_kv_codec_ops int4_ops = {
    .struct_size = sizeof int4_ops,
    .instance_size = sizeof(struct int4),
    .init = int4_init,
    .describe = int4_describe,
    .encode = int4_encode,
    .decode = int4_decode,
};

KV_CODEC_PLUGIN(int4, "4- or 5-bit codes, a scale per 32 numbers");
