/* One plugin's shared object: opened, checked before any of its code runs, and copied into tables of the host's size.
 *
 * Objects are never closed again: threads, thread-local data and strings of a plugin may outlive its last use. */
#ifndef SOQ_PLUGIN_LOAD_H
#define SOQ_PLUGIN_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "plugin/manifest.h"

/* One role of a loaded plugin. Everything here is valid until the registry is freed.
 *
 * The tables have the size that this host was built with. A slot that the plugin left NULL, or that is newer than the plugin,
 * holds a stub that fails with SOQ_EUNSUPPORTED (or does nothing, for free and shutdown), so callers never test a slot for
 * NULL. The exceptions: the tables `memory`, `matmul`, `attention` and `elementwise` of a backend are NULL where it has none,
 * and on_commit of a policy is NULL where everything stays. */
struct soq__plugin_role {
    const char *id;      /* "cpu/avx2", or "cpu" without a variant */
    const char *name;    /* "cpu": the section is [backend.cpu] */
    const char *variant; /* "" if there is none */
    const char *version, *summary, *licence;
    const char *provides; /* list, see soq__plugin_provides */
    enum soq_role role;
    union {
        const void *any;
        const struct soq_backend_ops *backend;
        const struct soq_kv_policy_ops *kv_policy;
        const struct soq_kv_codec_ops *kv_codec;
        const struct soq_sampler_ops *sampler;
    } ops;
    uint32_t native_ops;              /* backend: bit 1 << enum soq_op for each op that the plugin itself has a slot for */
    const struct soq_option *options; /* [n_options], contiguous, each of the host's size */
    uint32_t n_options;
};

struct soq__plugin {
    struct soq__plugin_role *roles; /* [n_roles] */
    uint32_t n_roles;
    char *id;                            /* owned; the other strings belong to the plugin or the manifest */
    const struct soq_plugin *descriptor; /* the plugin's */
    void *owned[2 * SOQ_ROLE_COMM];      /* tables and options of the roles */
    uint32_t n_owned;
};

/* path: absolute. The manifest must outlive the plugin. Each way to fail has its own message. */
int soq__plugin_load(const char *path, const struct soq__manifest *manifest, struct soq__plugin **plugin_out,
                     struct soq_error *err);
void soq__plugin_free(struct soq__plugin *plugin);

/* "name/variant", or "name"; NULL when out of memory; the caller frees. */
char *soq__plugin_id(const struct soq__manifest *manifest);
const struct soq__plugin_role *soq__plugin_find_role(const struct soq__plugin *plugin, enum soq_role role);
/* Whether the manifest's `provides` has the word ("host-ops"). */
bool soq__plugin_provides(const struct soq__plugin_role *plugin, const char *word);

#endif
