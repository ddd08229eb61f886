/* Which plugins there are, which one is taken, and why not the others.
 *
 * Directories, in this order: those of --plugin-dir; [runtime] plugin_dir; SOQUETE_PLUGIN_PATH (colon-separated absolute
 * directories; ignored in a privileged process); the build tree when the running program lies in it, else the directory
 * compiled in. Never the current directory, never the model's. Each directory's *.ini are manifests.
 *
 * Candidates are ordered by priority (high first), name, variant, directory: never by how a directory happens to list them. A
 * name stands for its best variant that this machine can run; name/variant forces one. Each candidate keeps a state and a
 * reason, which `soquete plugins --why` shows. A bad manifest or library spoils its own candidate only.
 *
 * Used from one thread at a time. Names of plugins are data: none is known here. */
#ifndef SOQ_PLUGIN_REGISTRY_H
#define SOQ_PLUGIN_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "plugin/load.h"
#include "plugin/manifest.h"

struct soq__registry;
struct soq__settings;

struct soq__registry_params {
    const char *const *dirs; /* --plugin-dir, in order; one that cannot be read is an error */
    size_t n_dirs;
    const char *const *config_dirs; /* [runtime] plugin_dir; likewise */
    size_t n_config_dirs;
    bool only_dirs; /* leave out the environment and what is compiled in */
};

/* params NULL: the defaults. Reads the manifests; opens no library. Strings are copied. */
int soq__registry_create(const struct soq__registry_params *params, struct soq__registry **registry_out, struct soq_error *err);
void soq__registry_free(struct soq__registry *registry);

/* spec: "name" or "name/variant"; a trailing ! is allowed and means nothing here. Loads the best usable candidate, and says
 * so in the log (info). The failure names what was looked for with every candidate's reason, or the nearest name and the
 * directories that were searched. The result lives as long as the registry. */
int soq__registry_find(struct soq__registry *registry, enum soq_role role, const char *spec,
                       const struct soq__plugin_role **plugin_out, struct soq_error *err);

#define SOQ_BACKENDS_MAX 8
#define SOQ_DEVICES_MAX 16

struct soq__backend_choice {
    const struct soq__plugin_role *plugin;
    bool required;      /* NAME! */
    uint32_t n_devices; /* 1 .. SOQ_DEVICES_MAX */
    struct soq_device devices[SOQ_DEVICES_MAX];
};

/* use: "cuda", "opencl/intel", "cpu!" ([backend] use). Every backend of the list that has a device, in the list's order: the
 * first is the primary one, the others are its fallbacks. One that fails is left out with a warning in the log, unless it is
 * required (!): then, or when none is left, this fails with the reasons. Adds the schema of each plugin that it asks for
 * devices to the settings (NULL: defaults apply); what is wrong in its section always fails. choices: room for
 * SOQ_BACKENDS_MAX. */
int soq__registry_choose_backends(struct soq__registry *registry, const char *const *use, size_t n_use,
                                  struct soq__settings *settings, const struct soq_host *host,
                                  struct soq__backend_choice *choices, size_t *count_out, struct soq_error *err);

/* Accepts the sections of all plugins that are installed, so that soq__settings_check_unclaimed finds the misspelt ones. */
int soq__registry_claim_sections(const struct soq__registry *registry, struct soq__settings *settings, struct soq_error *err);

/* ---- The report -------------------------------------------------------------------------------------------------------- */

enum soq__candidate_state {
    SOQ_CANDIDATE_UNTRIED, /* nothing asked for it yet */
    SOQ_CANDIDATE_CHOSEN,
    SOQ_CANDIDATE_USABLE,  /* loads, but nothing asks for it */
    SOQ_CANDIDATE_LOWER,   /* another candidate of its name was taken */
    SOQ_CANDIDATE_ABSENT,  /* loads, but has no device */
    SOQ_CANDIDATE_REFUSED, /* the reason says why; final */
};

struct soq__candidate {
    char *id;            /* "cpu/avx2"; the manifest's path where that is unreadable */
    char *manifest_path; /* absolute */
    char *library_path;  /* absolute; NULL where the manifest is unreadable */
    size_t dir;          /* rank of its directory */
    bool readable;       /* manifest is set */
    struct soq__manifest manifest;
    struct soq__plugin *plugin; /* NULL while not loaded */
    enum soq__candidate_state state;
    char reason[SOQ_ERROR_TEXT_MAX]; /* one line */
};

size_t soq__registry_count(const struct soq__registry *registry);
/* In order of preference; lives as long as the registry, its state changes with each find. */
const struct soq__candidate *soq__registry_candidate(const struct soq__registry *registry, size_t index);
/* "chosen", "not needed", ... */
const char *soq__candidate_state_text(enum soq__candidate_state state);
/* Loads what can be loaded, chosen or not, so that the report is complete. */
int soq__registry_try_all(struct soq__registry *registry, struct soq_error *err);

#endif
