/* The codecs that store a model's cache: those of [kv] codec, codec_k and codec_v, what [kv.layers] puts in their place, and
 * where there is a lossy view, those of [draft]. */
#ifndef SOQ_ENGINE_CODECS_H
#define SOQ_ENGINE_CODECS_H

#include "engine/policies.h"
#include "kv/codec.h"

/* What the codecs learn of the layers that one instance stores: a model whose windowed layers have a RoPE of their own has two
 * kinds. */
struct soq__codec_shape {
    struct soq_kv_shape shape;
    float *inv_freq; /* owned */
};

/* One instance for each codec, options and kind of layers. The struct must not move. */
struct soq__codecs {
    struct soq__role_instance roles[SOQ__KV_CODECS_MAX];
    struct soq__settings *overlays[SOQ__KV_CODECS_MAX]; /* NULL: the settings */
    char *words[SOQ__KV_CODECS_MAX];                    /* "NAME key:value ..." */
    bool windowed[SOQ__KV_CODECS_MAX];
    struct soq__kv_codec kv[SOQ__KV_CODECS_MAX]; /* as the layout takes them */
    uint32_t n;
    struct soq__kv_codec_pair *of_layer[SOQ__KV_VIEWS];  /* [n_layers] owned; NULL: there is no such view */
    struct soq__kv_codec_origin *origins[SOQ__KV_VIEWS]; /* [n_layers][2] of keys, values; the same */
    struct soq__codec_shape shapes[2];                   /* by `windowed` */
};

/* Initialises the codecs and tells them the model. Needs done() even if it fails. */
int soq__codecs_init(struct soq__codecs *codecs, const struct soq__policies_params *params, struct soq_error *err);
void soq__codecs_done(struct soq__codecs *codecs);

/* codec_k or codec_v of [kv] or [draft], which is codec unless it says more. */
const char *soq__codec_setting(const struct soq__settings *settings, const char *section, const char *key);

#endif
