/* Instances of plugins: their life, options of their own. */
#include "engine/role.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "config/settings.h"

/* ---- Life ---------------------------------------------------------------------------------------------------------------- */

struct role_table {
    size_t instance_size;
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err);
    void (*shutdown)(void *self);
};

static struct role_table table_of(const struct soq__plugin_role *p)
{
    switch (p->role) {
    case SOQ_ROLE_KV_POLICY:
        return (struct role_table){p->ops.kv_policy->instance_size, p->ops.kv_policy->init, p->ops.kv_policy->shutdown};
    case SOQ_ROLE_KV_CODEC:
        return (struct role_table){p->ops.kv_codec->instance_size, p->ops.kv_codec->init, p->ops.kv_codec->shutdown};
    default:
        return (struct role_table){p->ops.sampler->instance_size, p->ops.sampler->init, p->ops.sampler->shutdown};
    }
}

int soq__role_init(struct soq__role_instance *in, struct soq__registry *registry, struct soq__settings *settings,
                   enum soq_role role, const char *spec, const struct soq_host *host, struct soq_error *err)
{
    struct role_table table;
    void *self;
    int rc = soq__registry_find(registry, role, spec, &in->plugin, err);

    if (!rc)
        rc = soq__plugin_config_init(&in->config, in->plugin, settings, err);
    if (rc)
        return rc;
    table = table_of(in->plugin);
    self = soq__alloc_aligned(64, table.instance_size);
    if (!self)
        return soq__fail(err, SOQ_ENOMEM, "plugin %s: out of memory", in->plugin->id);
    memset(self, 0, table.instance_size);
    rc = table.init(self, host, &in->config.view, err);
    if (rc) {
        soq__free(self);
        soq__fail_prefix(err, "plugin %s", in->plugin->id);
        return rc;
    }
    in->self = self;
    return 0;
}

void soq__role_done(struct soq__role_instance *in)
{
    if (!in->self)
        return;
    table_of(in->plugin).shutdown(in->self);
    soq__free(in->self);
    in->self = NULL;
}

/* ---- Options ------------------------------------------------------------------------------------------------------------- */

int soq__role_text_init(struct soq__role_text *text, const char *words, struct soq_error *err)
{
    size_t n = strcspn(words, " \t");

    *text = (struct soq__role_text){soq__strndup(words, n), soq__strdup(words + n + strspn(words + n, " \t"))};
    if (text->name && text->options)
        return 0;
    soq__role_text_done(text);
    return soq__fail(err, SOQ_ENOMEM, "out of memory");
}

void soq__role_text_done(struct soq__role_text *text)
{
    soq__free(text->name);
    soq__free(text->options);
    *text = (struct soq__role_text){0};
}

/* The section of the plugin as it is in the settings. */
static int copy_section(const struct soq__settings *from, const char *section, struct soq__settings *to, struct soq_error *err)
{
    const struct soq__setting *s;
    int rc = 0;

    for (size_t i = 0; !rc && (s = soq__settings_at(from, i)); i++)
        if (strcmp(s->section, section) == 0 && s->known)
            rc = soq__settings_set(to, section, s->spec.option.key, s->value.text, err);
    return rc;
}

/* Puts "key:value key:value" into the section. */
static int put_options(struct soq__settings *settings, const char *section, const char *options, struct soq_error *err)
{
    int rc = 0;

    while (!rc && *(options += strspn(options, " \t"))) {
        size_t n = strcspn(options, " \t"), key_len = strcspn(options, ": \t");
        char *key = soq__strndup(options, key_len),
             *value = key_len < n ? soq__strndup(options + key_len + 1, n - key_len - 1) : NULL;

        if (key_len == n)
            rc = soq__fail(err, SOQ_EINVAL, "\"%.*s\": expected KEY:VALUE", (int)n, options);
        else if (!key || !value)
            rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
        else
            rc = soq__settings_set(settings, section, key, value, err);
        soq__free(key);
        soq__free(value);
        options += n;
    }
    return rc;
}

int soq__role_overlay(struct soq__registry *registry, struct soq__settings *settings, enum soq_role role,
                      const struct soq__role_text *text, struct soq__settings **out, struct soq_error *err)
{
    const struct soq__plugin_role *plugin;
    struct soq__plugin_config base, over;
    int rc = soq__registry_find(registry, role, text->name, &plugin, err);

    if (!rc)
        rc = soq__plugin_config_init(&base, plugin, settings, err);
    if (!rc)
        rc = soq__settings_create(out, err);
    if (!rc)
        rc = soq__plugin_config_init(&over, plugin, *out, err);
    if (!rc)
        rc = copy_section(settings, base.section, *out, err);
    return rc ? rc : put_options(*out, base.section, text->options, err);
}
