/* Instances of plugins that are one of a kind: policies, codecs, samplers. */
#ifndef SOQ_ENGINE_ROLE_H
#define SOQ_ENGINE_ROLE_H

#include "plugin/host.h"
#include "plugin/pluginconf.h"
#include "plugin/registry.h"

struct soq__role_instance {
    const struct soq__plugin_role *plugin;
    void *self; /* owned */
    struct soq__plugin_config config;
};

/* Loads and initialises the plugin that `spec` names; done() undoes it. */
int soq__role_init(struct soq__role_instance *instance, struct soq__registry *registry, struct soq__settings *settings,
                   enum soq_role role, const char *spec, const struct soq_host *host, struct soq_error *err);
void soq__role_done(struct soq__role_instance *instance);

/* "NAME key:value ...": a plugin and options that it gets in place of those of [kv.NAME]. */
struct soq__role_text {
    char *name;
    char *options; /* "": none */
};

int soq__role_text_init(struct soq__role_text *text, const char *words, struct soq_error *err);
void soq__role_text_done(struct soq__role_text *text);

/* Settings that have nothing but [kv.NAME], with those options in it. The caller frees them, after the instance, and after a
 * failure if *out is not NULL. */
int soq__role_overlay(struct soq__registry *registry, struct soq__settings *settings, enum soq_role role,
                      const struct soq__role_text *text, struct soq__settings **out, struct soq_error *err);

#endif
