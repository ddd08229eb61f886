/* Manifests: the INI file beside a plugin that says what it is and needs, so that the choice is made before any of its code
 * is mapped.
 *
 *     [plugin]
 *     name = cpu                     ; as in the configuration: a letter, then letters, digits, - and _
 *     variant = avx2                 ; optional: several plugins of one name, the best that this machine can run wins
 *     roles = backend                ; backend, kv_policy, kv_codec, sampler
 *     library = soq_cpu_avx2.so      ; a file in the manifest's directory
 *     abi = 0                        ; SOQ_ABI_MAJOR that it was built for
 *     provides = host-ops            ; optional: words that others may ask for
 *     requires-cpu = avx2, fma, f16c ; optional: all of them; names in cpuid.h
 *     requires-device = /dev/kfd     ; optional: one of these device files must exist
 *     priority = 20                  ; optional, -1000 .. 1000, 0
 *
 * Anything else is an error that names the file, the line and the key. */
#ifndef SOQ_PLUGIN_MANIFEST_H
#define SOQ_PLUGIN_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "soquete/plugin.h"

#define SOQ_MANIFEST_SIZE_MAX (16u * 1024)
#define SOQ_MANIFEST_PRIORITY_MAX 1000

/* Strings are owned. Lists are as written, separated by commas. */
struct soq__manifest {
    char *name;
    char *variant;                                   /* "" if there is none */
    char *library;                                   /* file name */
    char *provides, *requires_cpu, *requires_device; /* "" if not given */
    uint32_t roles;                                  /* bit 1 << enum soq_role */
    int abi;
    int priority;
};

/* Parses text[0..size), which messages call `path`. After a failure manifest_out is as it was. */
int soq__manifest_parse(const char *path, const char *text, size_t size, struct soq__manifest *manifest_out,
                        struct soq_error *err);
int soq__manifest_read(const char *path, struct soq__manifest *manifest_out, struct soq_error *err);
/* A name that plugins may have. */
bool soq__manifest_is_name(const char *s);
void soq__manifest_done(struct soq__manifest *manifest);

/* The next element of a comma-separated list without blanks around it: advances *list, false at the end. */
bool soq__list_next(const char **list, const char **item_out, size_t *n_out);
bool soq__list_has(const char *list, const char *word);

/* "backend"; NULL for a number that is no role. */
const char *soq__role_name(uint32_t role);
/* The minor that this host speaks; 0 for a role that is reserved or unknown. */
uint32_t soq__role_minor(uint32_t role);
/* Where the configuration keeps the role's sections: "backend" in [backend.cpu]. */
const char *soq__role_section(enum soq_role role);

#endif
