/* Codecs: instances, the model's shape. */
#include "engine/codecs.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "config/settings.h"

/* `key`, or where that says nothing the one for both. */
static const char *key_of(const struct soq__settings *settings, const char *section, const char *key)
{
    return *soq__settings_string(settings, section, key) ? key : "codec";
}

const char *soq__codec_setting(const struct soq__settings *settings, const char *section, const char *key)
{
    return soq__settings_string(settings, section, key_of(settings, section, key));
}

/* ---- The model ----------------------------------------------------------------------------------------------------------- */

static int shape_init(struct soq__codec_shape *s, const struct soq__policies_params *p, bool windowed, struct soq_error *err)
{
    const struct soq__hparams *hp = p->hparams;
    const struct soq__rope_params *rope = windowed ? &hp->window_rope : &hp->rope;

    s->shape = soq__kv_shape_of(hp, p->context, (uint32_t)soq__settings_int(p->settings, "kv", "block_tokens"));
    if (p->fingerprint)
        memcpy(s->shape.fingerprint, p->fingerprint->bytes, sizeof s->shape.fingerprint);
    if (!hp->arch || !rope->n_rot)
        return 0;
    s->inv_freq = soq__alloc_array(rope->n_rot / 2, sizeof *s->inv_freq);
    if (!s->inv_freq)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for RoPE frequencies");
    s->shape.rope_kind = hp->arch->rope;
    s->shape.n_rot = rope->n_rot;
    s->shape.inv_freq = s->inv_freq;
    soq__rope_frequencies(rope, s->inv_freq, &s->shape.rope_mscale);
    return 0;
}

/* ---- Instances ----------------------------------------------------------------------------------------------------------- */

static int add_codec(struct soq__codecs *cs, const struct soq__policies_params *p, const char *words, bool windowed,
                     struct soq_error *err)
{
    struct soq__role_instance *role = &cs->roles[cs->n];
    struct soq__settings **overlay = &cs->overlays[cs->n];
    struct soq__role_text text;
    int rc = soq__role_text_init(&text, words, err);

    if (rc)
        return rc;
    cs->words[cs->n] = soq__strdup(words);
    cs->windowed[cs->n] = windowed;
    if (!cs->words[cs->n])
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (!rc && *text.options)
        rc = soq__role_overlay(p->registry, p->settings, SOQ_ROLE_KV_CODEC, &text, overlay, err);
    if (!rc)
        rc = soq__role_init(role, p->registry, *overlay ? *overlay : p->settings, SOQ_ROLE_KV_CODEC, text.name, p->host, err);
    cs->n++; /* done() is to see it, whatever there is of it */
    if (!rc && role->plugin->ops.kv_codec->prepare)
        rc = role->plugin->ops.kv_codec->prepare(role->self, &cs->shapes[windowed].shape, err);
    if (!rc)
        cs->kv[cs->n - 1] =
            (struct soq__kv_codec){.ops = role->plugin->ops.kv_codec, .self = role->self, .name = role->plugin->name};
    soq__role_text_done(&text);
    return rc;
}

static const struct soq__layer_rule *rule_of(const struct soq__policies_params *p, enum soq__kv_view view, uint32_t layer,
                                             enum soq__layer_part part)
{
    return view == SOQ__KV_FULL ? p->layers->of[part][layer] : NULL;
}

/* What names it. */
static struct soq__kv_codec_origin origin_of(const struct soq__policies_params *p, enum soq__kv_view view, uint32_t layer,
                                             enum soq__layer_part part)
{
    const struct soq__layer_rule *rule = rule_of(p, view, layer, part);
    const char *section = soq__kv_section(view), *key;

    if (rule)
        return (struct soq__kv_codec_origin){"kv.layers", rule->key, rule->value};
    key = key_of(p->settings, section, part == SOQ__LAYER_CODEC_K ? "codec_k" : "codec_v");
    return (struct soq__kv_codec_origin){section, key, soq__settings_string(p->settings, section, key)};
}

/* What stores the keys or the values of a layer. */
static int codec_of(struct soq__codecs *cs, const struct soq__policies_params *p, enum soq__kv_view view, uint32_t layer,
                    enum soq__layer_part part, uint32_t *index_out, struct soq_error *err)
{
    struct soq__kv_codec_origin origin = origin_of(p, view, layer, part);
    const struct soq__layer_rule *rule = rule_of(p, view, layer, part);
    const char *words = rule ? rule->words[part] : origin.value;
    bool windowed = soq__layer_is_windowed(p->hparams, layer);
    uint32_t i = 0;
    int rc = 0;

    while (i < cs->n && (cs->windowed[i] != windowed || strcmp(cs->words[i], words) != 0))
        i++;
    if (i == SOQ__KV_CODECS_MAX)
        rc = soq__fail(err, SOQ_ELIMIT, "more than %d different codecs", SOQ__KV_CODECS_MAX);
    else if (i == cs->n)
        rc = add_codec(cs, p, words, windowed, err);
    *index_out = i;
    cs->origins[view][2 * layer + (part == SOQ__LAYER_CODEC_V)] = origin;
    if (rc && rule)
        soq__layer_rule_blame(rule, err);
    else if (rc)
        soq__fail_prefix(err, "[%s] %s = %s", origin.section, origin.key, origin.value);
    return rc;
}

/* ---- All ----------------------------------------------------------------------------------------------------------------- */

/* Policies leave layers with a window of the model's own alone, and the lossy view has nothing of its own there. */
static int init_layer(struct soq__codecs *cs, const struct soq__policies_params *p, enum soq__kv_view view, uint32_t layer,
                      struct soq_error *err)
{
    bool windowed = soq__layer_is_windowed(p->hparams, layer);
    struct soq__kv_codec_pair *pair = &cs->of_layer[view][layer];
    int rc;

    if (windowed && view == SOQ__KV_LOSSY) {
        *pair = cs->of_layer[SOQ__KV_FULL][layer];
        memcpy(&cs->origins[view][2 * layer], &cs->origins[SOQ__KV_FULL][2 * layer], 2 * sizeof *cs->origins[view]);
        return 0;
    }
    rc = codec_of(cs, p, view, layer, SOQ__LAYER_CODEC_K, &pair->key, err);
    if (!rc)
        rc = codec_of(cs, p, view, layer, SOQ__LAYER_CODEC_V, &pair->value, err);
    return rc;
}

int soq__codecs_init(struct soq__codecs *cs, const struct soq__policies_params *p, struct soq_error *err)
{
    uint32_t n_layers = p->hparams->n_layers;
    int n_views = p->lossy ? 2 : 1, rc = 0;

    *cs = (struct soq__codecs){0};
    for (int view = 0; view < n_views; view++) {
        cs->of_layer[view] = soq__alloc_zero(n_layers, sizeof *cs->of_layer[view]);
        cs->origins[view] = soq__alloc_zero(n_layers, 2 * sizeof *cs->origins[view]);
        if (!cs->of_layer[view] || !cs->origins[view])
            return soq__fail(err, SOQ_ENOMEM, "out of memory");
    }
    for (int windowed = 0; !rc && windowed < 2; windowed++)
        rc = shape_init(&cs->shapes[windowed], p, windowed, err);
    for (int view = 0; view < n_views; view++)
        for (uint32_t l = 0; !rc && l < n_layers; l++)
            rc = init_layer(cs, p, (enum soq__kv_view)view, l, err);
    return rc;
}

void soq__codecs_done(struct soq__codecs *cs)
{
    for (uint32_t i = 0; i < cs->n; i++) {
        soq__role_done(&cs->roles[i]);
        soq__settings_free(cs->overlays[i]);
        soq__free(cs->words[i]);
    }
    for (int windowed = 0; windowed < 2; windowed++)
        soq__free(cs->shapes[windowed].inv_freq);
    for (int view = 0; view < SOQ__KV_VIEWS; view++) {
        soq__free(cs->of_layer[view]);
        soq__free(cs->origins[view]);
    }
    *cs = (struct soq__codecs){0};
}
