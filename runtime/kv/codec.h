/* Instances of codecs, as the layout asks them: several may store different layers of a model. */
#ifndef SOQ_KV_CODEC_H
#define SOQ_KV_CODEC_H

#include "soquete/plugin.h"

#define SOQ__KV_CODECS_MAX 32

struct soq__kv_codec {
    const struct soq_kv_codec_ops *ops;
    void *self;
    const char *name; /* for messages */
};

/* The setting that names the codec of a layer's keys or values, for messages: [section] key = value. The strings belong to the
 * settings. */
struct soq__kv_codec_origin {
    const char *section, *key, *value;
};

/* Who stores a layer: indices. */
struct soq__kv_codec_pair {
    uint32_t key, value;
};

#endif
