/* For tests of plugins: opens one as the host does, and gives it a configuration made of its defaults and a few overrides. */
#ifndef SOQ_TESTS_PLUGIN_OPEN_H
#define SOQ_TESTS_PLUGIN_OPEN_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soquete/plugin.h"

/* SOQ_TEST_PLUGINS, set by the build, is the folder of the shared objects. */
static inline const struct soq_role_entry *open_plugin(const char *name, enum soq_role role)
{
    const char *dir = getenv("SOQ_TEST_PLUGINS");
    const struct soq_plugin *plugin;
    char path[4096];
    void *object;

    snprintf(path, sizeof path, "%s/%s.so", dir ? dir : "plugins/stage", name);
    object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    plugin = dlsym(object, SOQ_PLUGIN_SYMBOL);
    if (!plugin || plugin->abi_major != SOQ_ABI_MAJOR || strcmp(plugin->name, name) != 0 || plugin->roles->role != role)
        abort();
    return plugin->roles;
}

struct override {
    const char *key, *value;
};

/* The context of a soq_config: the entry's option table under overrides, which end with a NULL key. */
struct plugin_values {
    const struct soq_role_entry *entry;
    const struct override *overrides;
};

static inline const char *plugin_value(void *ctx, const char *key)
{
    const struct plugin_values *values = ctx;

    for (const struct override *o = values->overrides; o && o->key; o++)
        if (strcmp(o->key, key) == 0)
            return o->value;
    for (uint32_t i = 0; i < values->entry->n_options; i++) {
        const struct soq_option *o =
            (const void *)((const char *)values->entry->options + (size_t)i * values->entry->option_stride);

        if (strcmp(o->key, key) == 0)
            return o->default_value;
    }
    fprintf(stderr, "the plugin asked for the key %s, which is not in its table\n", key);
    abort();
}

static inline int64_t plugin_int(void *ctx, const char *key)
{
    return strtoll(plugin_value(ctx, key), NULL, 10);
}

static inline double plugin_float(void *ctx, const char *key)
{
    return strtod(plugin_value(ctx, key), NULL);
}

static inline struct soq_config plugin_config(struct plugin_values *values)
{
    return (struct soq_config){
        .struct_size = sizeof(struct soq_config),
        .ctx = values,
        .get_int = plugin_int,
        .get_float = plugin_float,
        .get_string = plugin_value,
    };
}

#endif
