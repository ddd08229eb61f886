/* A codec that packs with one thing wrong: the tree's int8 behind wrappers. Each bad_*.c sets one hook and includes this. */
#define soquete_plugin_v0 real_plugin
#include "kvpolicy/codec/int8.c"
#undef soquete_plugin_v0

#ifndef BAD_ENCODE
#define BAD_ENCODE
#endif
#ifndef BAD_DECODE
#define BAD_DECODE
#endif

static int bad_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    int rc = int8_encode(self, tile, src, dst, err);
    size_t numbers = (size_t)tile->tokens * tile->width;
    uint16_t *scales = dst;

    (void)numbers;
    (void)scales;
    BAD_ENCODE;
    return rc;
}

static int bad_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    int rc = int8_decode(self, tile, src, dst, err);
    size_t numbers = (size_t)tile->tokens * tile->width;

    (void)numbers;
    BAD_DECODE;
    return rc;
}

static const struct soq_kv_codec_ops bad_ops = {
    .struct_size = sizeof bad_ops,
    .instance_size = sizeof(struct int8),
    .init = int8_init,
    .describe = int8_describe,
    .encode = bad_encode,
    .decode = bad_decode,
};

#define bad_options int8_options
KV_CODEC_PLUGIN(bad, "one thing wrong");
