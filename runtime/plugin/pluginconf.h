/* A plugin's section of the configuration, [backend.cpu] for example, as the struct soq_config that its init gets. */
#ifndef SOQ_PLUGIN_PLUGINCONF_H
#define SOQ_PLUGIN_PLUGINCONF_H

#include "plugin/load.h"

struct soq__settings;

struct soq__plugin_config {
    struct soq_config
        view; /* what the plugin gets: &config->view; valid while the struct and the settings stay where they are */
    const struct soq__plugin_role *plugin;
    const struct soq__settings *settings; /* NULL: the option table's defaults */
    char section[64];                     /* "backend.cpu" */
};

/* Adds the plugin's option table to the settings, which checks what was written there so far. settings may be NULL. Allocates
 * nothing that needs a done. */
int soq__plugin_config_init(struct soq__plugin_config *config, const struct soq__plugin_role *plugin,
                            struct soq__settings *settings, struct soq_error *err);

#endif
