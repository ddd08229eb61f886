/* A plugin's section of the configuration, [backend.cpu] for example, as the struct soq_config that its init gets. */
#ifndef SOQ_PLUGIN_PLUGINCONF_H
#define SOQ_PLUGIN_PLUGINCONF_H

#include "plugin/load.h"

struct soq__settings;

struct soq__plugin_config {
    struct soq_config view; /* what the plugin gets */
    const struct soq__settings *settings;
    struct soq__settings *defaults; /* owned, where the caller had no settings */
    char section[64];               /* "backend.cpu" */
};

/* Adds the plugin's option table to the settings, which checks what was written there. settings NULL: the defaults. The struct
 * must not move and the settings must not change while the view is in use; after a failure it needs no done. */
int soq__plugin_config_init(struct soq__plugin_config *config, const struct soq__plugin_role *plugin,
                            struct soq__settings *settings, struct soq_error *err);
void soq__plugin_config_done(struct soq__plugin_config *config);

#endif
