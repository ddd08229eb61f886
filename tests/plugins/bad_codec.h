/* A codec with one thing wrong: the tree's f32 behind wrappers. Each bad_*.c sets one hook and includes this; without hooks it
 * is a correct plugin. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define soquete_plugin_v0 real_plugin
#define f32_ops real_ops
#define f32_roles real_roles
#include "kvpolicy/codec/f32.c"
#undef soquete_plugin_v0
#undef f32_ops
#undef f32_roles

#ifndef BAD_INIT
#define BAD_INIT
#endif
#ifndef BAD_SHUTDOWN
#define BAD_SHUTDOWN
#endif
#ifndef BAD_DESCRIBE
#define BAD_DESCRIBE
#endif
#ifndef BAD_ENCODE
#define BAD_ENCODE
#endif
#ifndef BAD_DECODE
#define BAD_DECODE
#endif
#ifndef BAD_ABI
#define BAD_ABI SOQ_ABI_MAJOR
#endif
#ifndef BAD_SUMMARY
#define BAD_SUMMARY "A codec with one thing wrong"
#endif
#ifndef BAD_OPTIONS
#define BAD_OPTIONS
#endif
#ifndef BAD_DESCRIPTOR
#define BAD_DESCRIPTOR
#endif

struct bad {
    const struct soq_host *host;
    void *memory;
};

static int bad_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct bad *bad = self;

    bad->host = host;
    BAD_INIT;
    return f32_init(self, host, config, err);
}

static void bad_shutdown(void *self)
{
    struct bad *bad = self;

    BAD_SHUTDOWN;
    bad->host->free(bad->host->ctx, bad->memory);
}

static int bad_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    BAD_DESCRIBE;
    return f32_describe(self, tile, format_out, err);
}

static int bad_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    int rc = f32_encode(self, tile, src, dst, err);

    BAD_ENCODE;
    return rc;
}

static int bad_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    int rc = f32_decode(self, tile, src, dst, err);

    BAD_DECODE;
    return rc;
}

static const struct soq_kv_codec_ops bad_ops = {
    .struct_size = sizeof bad_ops,
    .instance_size = sizeof(struct bad),
    .init = bad_init,
    .shutdown = bad_shutdown,
    .describe = bad_describe,
    .encode = bad_encode,
    .decode = bad_decode,
};

static const struct soq_role_entry bad_roles[] = {
    {.struct_size = sizeof bad_roles[0],
     .role = SOQ_ROLE_KV_CODEC,
     .minor = SOQ_KV_CODEC_MINOR,
     .min_minor = SOQ_KV_CODEC_MINOR,
     .ops = &bad_ops,
     BAD_OPTIONS},
};

BAD_DESCRIPTOR const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = BAD_ABI,
    .name = "bad",
    .variant = "",
    .version = "1",
    .summary = BAD_SUMMARY,
    .licence = "Apache-2.0",
    .n_roles = sizeof bad_roles / sizeof bad_roles[0],
    .role_stride = sizeof bad_roles[0],
    .roles = bad_roles,
};
