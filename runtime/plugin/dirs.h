/* Where manifests are looked for. */
#ifndef SOQ_PLUGIN_DIRS_H
#define SOQ_PLUGIN_DIRS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"
#include "plugin/registry.h"

#define SOQ_PLUGIN_PATH_ENV "SOQUETE_PLUGIN_PATH"

struct soq__dirs {
    char **paths; /* owned; absolute, without links, each once */
    size_t count;
    struct soq_buf searched; /* "/usr/lib/soquete, /opt/x (No such file or directory)": those that are not there, too */
};

/* The search order of registry.h. privileged: the process has rights that its caller lacks (set-user-id, file capabilities);
 * then neither the environment nor the build tree counts. */
int soq__dirs_init(struct soq__dirs *dirs, const struct soq__registry_params *params, bool privileged, struct soq_error *err);
void soq__dirs_done(struct soq__dirs *dirs);
bool soq__is_privileged(void);

#endif
