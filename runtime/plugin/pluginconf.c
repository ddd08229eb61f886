/* struct soq_config over the settings. */
#include "plugin/pluginconf.h"

#include <stdio.h>
#include <string.h>

#include "config/settings.h"

static const struct soq__setting *lookup(void *ctx, const char *key)
{
    struct soq__plugin_config *c = ctx;
    const struct soq__setting *setting = key ? soq__settings_find(c->settings, c->section, key) : NULL;

    return setting && setting->known ? setting : NULL;
}

static int64_t get_int(void *ctx, const char *key)
{
    const struct soq__setting *s = lookup(ctx, key);

    switch (s ? s->spec.option.type : 0) {
    case SOQ_OPT_INT:
        return s->value.as.integer;
    case SOQ_OPT_SIZE:
        return (int64_t)s->value.as.size;
    case SOQ_OPT_BOOL:
        return s->value.as.flag;
    default:
        return 0;
    }
}

static double get_float(void *ctx, const char *key)
{
    const struct soq__setting *s = lookup(ctx, key);

    return s && s->spec.option.type == SOQ_OPT_FLOAT ? s->value.as.real : 0;
}

static const char *get_string(void *ctx, const char *key)
{
    const struct soq__setting *s = lookup(ctx, key);

    switch (s ? s->spec.option.type : 0) {
    case SOQ_OPT_STRING:
    case SOQ_OPT_ENUM:
    case SOQ_OPT_PATH:
        return s->value.text;
    default:
        return "";
    }
}

int soq__plugin_config_init(struct soq__plugin_config *c, const struct soq__plugin_role *plugin, struct soq__settings *settings,
                            struct soq_error *err)
{
    int rc = 0;

    *c = (struct soq__plugin_config){
        .view = {
            .struct_size = sizeof c->view, .ctx = c, .get_int = get_int, .get_float = get_float, .get_string = get_string}};
    snprintf(c->section, sizeof c->section, "%s.%s", soq__role_section(plugin->role), plugin->name);
    if (!settings) {
        rc = soq__settings_create(&c->defaults, err);
        settings = c->defaults;
    }
    if (!rc)
        rc = soq__settings_add_schema(settings, c->section, plugin->options, plugin->n_options, sizeof *plugin->options, err);
    if (rc)
        soq__plugin_config_done(c);
    c->settings = settings;
    return rc;
}

void soq__plugin_config_done(struct soq__plugin_config *c)
{
    soq__settings_free(c->defaults);
    c->defaults = NULL;
}
