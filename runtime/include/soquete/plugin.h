/* The plugin ABI of Soquete, major 0.
 *
 * A plugin is one shared object that exports exactly one symbol, the constant `soquete_plugin_v0`, and imports none from the
 * host: services come in struct soq_host. It fills one or more roles; each role is a table of functions below.
 *
 * Rules that hold everywhere (runtime/DESIGN.md gives the failure behind each):
 *  - Every struct begins with struct_size, set by whoever fills it; fields are appended only; a reader looks at no field beyond
 *    the size it was given. Arrays of structs carry a stride. While the major is 0 layouts may change and minors must be equal.
 *  - A call returns 0 or -SOQ_E... and then fills the caller's struct soq_error, if there is one: `err` may be NULL. No plugin
 *    prints, aborts, exits or throws.
 *  - Strings passed in either direction are copied by whoever keeps them. Who allocates frees.
 *  - Optional slots and tables are NULL; the host resolves the substitute once, at load. Each slot says required or optional.
 *  - Unless a slot says otherwise: it is called from one thread at a time per instance, any thread; it is synchronous.
 *  - `self` is the instance: `instance_size` zeroed bytes, aligned to 64, allocated and freed by the host.
 */
#ifndef SOQUETE_PLUGIN_H
#define SOQUETE_PLUGIN_H

#include "soquete/backend.h"
#include "soquete/dtype.h"
#include "soquete/error.h"
#include "soquete/host.h"
#include "soquete/kv.h"
#include "soquete/sampler.h"
#include "soquete/step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SOQ_ABI_MAJOR 0

/* ---- Roles ------------------------------------------------------------------------------------------------------- */

enum { SOQ_BACKEND_MINOR = 3, SOQ_KV_POLICY_MINOR = 3, SOQ_KV_CODEC_MINOR = 2, SOQ_SAMPLER_MINOR = 2 };

/* X(name, value, text, minor). Reserved roles have minor 0: a plugin that claims one is refused by this host. */
#define SOQ_ROLES(X)                                                                                                           \
    X(SOQ_ROLE_BACKEND, 1, "backend", SOQ_BACKEND_MINOR)                                                                       \
    X(SOQ_ROLE_KV_POLICY, 2, "kv_policy", SOQ_KV_POLICY_MINOR)                                                                 \
    X(SOQ_ROLE_KV_CODEC, 3, "kv_codec", SOQ_KV_CODEC_MINOR)                                                                    \
    X(SOQ_ROLE_SAMPLER, 4, "sampler", SOQ_SAMPLER_MINOR)                                                                       \
    X(SOQ_ROLE_KV_STORE, 5, "kv_store", 0)                                                                                     \
    X(SOQ_ROLE_DRAFTER, 6, "drafter", 0)                                                                                       \
    X(SOQ_ROLE_CONSTRAINT, 7, "constraint", 0)                                                                                 \
    X(SOQ_ROLE_SEARCH, 8, "search", 0)                                                                                         \
    X(SOQ_ROLE_COMM, 9, "comm", 0)

enum soq_role {
#define SOQ_ROLE_ENUM(name, value, text, minor) name = value,
    SOQ_ROLES(SOQ_ROLE_ENUM)
#undef SOQ_ROLE_ENUM
};

/* ---- The descriptor ---------------------------------------------------------------------------------------------- */

struct soq_role_entry {
    uint32_t struct_size;
    uint32_t role;      /* enum soq_role */
    uint32_t minor;     /* of the role, as built: SOQ_..._MINOR */
    uint32_t min_minor; /* oldest host minor it works with */
    const void *ops;    /* struct soq_<role>_ops */
    const struct soq_option *options;
    uint32_t n_options, option_stride;
};

struct soq_plugin {
    uint32_t struct_size;
    uint32_t abi_major;
    const char *name;    /* as in the manifest and the configuration */
    const char *variant; /* "" or as in the manifest */
    const char *version;
    const char *summary; /* one line */
    const char *licence; /* SPDX */
    uint32_t n_roles, role_stride;
    const struct soq_role_entry *roles;
};

#define SOQ_PLUGIN_SYMBOL "soquete_plugin_v0"
extern __attribute__((visibility("default"))) const struct soq_plugin soquete_plugin_v0;

#ifdef __cplusplus
}
#endif
#endif
