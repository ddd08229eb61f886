/* What checks share. Everything here runs in a check's own process, which is thrown away afterwards: so a failed expectation
 * ends the process then and there, and nothing is given back but what the check itself counts. */
#ifndef SOQ_CHECK_KIT_H
#define SOQ_CHECK_KIT_H

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "check/check.h"
#include "check/host.h"
#include "plugin/load.h"
#include "plugin/pluginconf.h"

#define SOQ__COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Between the child and its parent: anonymous shared memory, so that it says what was in hand when a child dies. */
struct soq__kit_shared {
    int verdict;                     /* enum soq__verdict; -1 until one is known */
    char at[160];                    /* what is in hand: "Q4_K, 21 x 512" */
    char reason[SOQ_ERROR_TEXT_MAX]; /* of a failure or a skip */
    struct soq__check_facts facts;
};

struct soq__kit {
    const char *library;  /* absolute */
    const char *manifest; /* absolute, or NULL */
    uint32_t role_id;     /* enum soq_role, or 0 */
    struct soq__kit_shared *shared;
    bool relaxed; /* structs have a little readable memory behind them, so that only skew.exact finds who reads it */
    bool newer;   /* structs are presented as by a host built from later headers */

    /* After soq__kit_open. */
    struct soq__manifest identity; /* as the descriptor says */
    struct soq__plugin *plugin;
    const struct soq__plugin_role *role; /* role_id's, the host's copy of its tables */
    struct soq__kit_host host;
};

/* ---- Verdicts ---------------------------------------------------------------------------------------------------------- */

_Noreturn void soq__kit_fail(struct soq__kit *kit, const char *fmt, ...) SOQ_PRINTF(2, 3);
_Noreturn void soq__kit_skip(struct soq__kit *kit, const char *fmt, ...) SOQ_PRINTF(2, 3);
_Noreturn void soq__kit_pass(struct soq__kit *kit);
/* What is in hand from here on: put in front of a failure's reason, and all that is known of a crash or a hang. */
void soq__kit_at(struct soq__kit *kit, const char *fmt, ...) SOQ_PRINTF(2, 3);

#define SOQ__EXPECT(kit, condition, ...)                                                                                       \
    do {                                                                                                                       \
        if (!(condition))                                                                                                      \
            soq__kit_fail(kit, __VA_ARGS__);                                                                                   \
    } while (0)

/* The call succeeded; `what` names it. */
void soq__kit_ok(struct soq__kit *kit, const char *what, int rc, const struct soq_error *err);
/* It failed as calls must: a known code (code: that one; 0: any), the same in err, and a message. */
void soq__kit_refused(struct soq__kit *kit, const char *what, int rc, int code, const struct soq_error *err);

/* ---- Memory ------------------------------------------------------------------------------------------------------------ */

/* bytes zeroed bytes between inaccessible pages: what lies behind the last byte cannot be touched, and the few bytes between
 * the page's begin and the first are looked at by soq__kit_guard_intact. Alignment: `align`, and no better. */
void *soq__kit_guard(struct soq__kit *kit, size_t bytes, size_t align);
void soq__kit_guard_intact(struct soq__kit *kit, const void *p, const char *what);

/* A copy of a struct of the ABI, directly before an inaccessible page. With kit->newer 64 bytes of a later version follow it,
 * which its struct_size counts and nothing may touch; with kit->relaxed they follow and do not count. Valid until the 64th next
 * call. */
void *soq__kit_box(struct soq__kit *kit, const void *src, size_t size);
/* Copies the struct back, with the size that it went in with, and makes the box useless. */
void soq__kit_unbox(struct soq__kit *kit, void *box, void *dst, size_t size);
/* An err for one call: boxed. Read it at once. */
struct soq_error *soq__kit_error(struct soq__kit *kit);

/* ---- The plugin -------------------------------------------------------------------------------------------------------- */

/* Opens the plugin under the name that it gives itself, and finds the role; fails the check otherwise. */
void soq__kit_open(struct soq__kit *kit);
/* The descriptor, after dlopen and before any look at it. */
const struct soq_plugin *soq__kit_descriptor(struct soq__kit *kit);
/* The path of its manifest: the given one, or that beside the library which names it; false: there is none. */
bool soq__kit_manifest(const struct soq__kit *kit, char path[PATH_MAX]);

/* A configuration of the plugin's section over the real settings. Keys that are not in the option table, or are asked for with
 * another type, fail the check; strings become useless when the call that got the configuration returns. */
struct soq__kit_config {
    struct soq__kit *kit;
    struct soq__plugin_config real;
    struct soq__settings *settings;
    const struct soq_config *view; /* what the plugin gets */
    char *strings[64];             /* handed out */
    size_t n_strings;
};

/* settings: "key=value", NULL-terminated; NULL: defaults. */
int soq__kit_config_init(struct soq__kit *kit, struct soq__kit_config *config, const char *const *settings,
                         struct soq_error *err);
void soq__kit_config_done(struct soq__kit_config *config);

enum { SOQ__KIT_MAX_ROWS = 64, SOQ__KIT_MAX_SLOTS = 4 };

/* instance_size zeroed bytes for `self`. */
void *soq__kit_self(struct soq__kit *kit);
/* init and shutdown of the role, whichever it is; init with the default configuration, or the given settings. */
int soq__kit_init(struct soq__kit *kit, void *self, const char *const *settings, struct soq_error *err);
void soq__kit_shutdown(struct soq__kit *kit, void *self);
/* A new instance with defaults; skips the check where the machine is not one for the plugin, fails where init does. */
void *soq__kit_instance(struct soq__kit *kit);
/* A little of everything that the role does, with an instance that is ready; gives back what it made. The first failure. */
int soq__kit_work(struct soq__kit *kit, void *self, struct soq_error *err);
/* Skips the check where the machine lacks what the manifest asks for: none of the plugin's code may run there. */
void soq__kit_need_machine(struct soq__kit *kit);
/* The same, and where devices() of a backend lists none. */
void soq__kit_need_device(struct soq__kit *kit);

int soq__kit_backend_work(struct soq__kit *kit, void *self, struct soq_error *err);
int soq__kit_policy_work(struct soq__kit *kit, void *self, struct soq_error *err);
int soq__kit_codec_work(struct soq__kit *kit, void *self, struct soq_error *err);
int soq__kit_sampler_work(struct soq__kit *kit, void *self, struct soq_error *err);

/* Runs fn on n threads at once, outside the plugin's pool, and waits for them. */
void soq__kit_threads(struct soq__kit *kit, uint32_t n, void (*fn)(void *arg, uint32_t index), void *arg);

/* ---- Random numbers ---------------------------------------------------------------------------------------------------- */

/* In about [-1, 1], from a seed that moves on. */
static inline float soq__kit_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(*seed >> 32)) * 0x1p-31f;
}

static inline uint32_t soq__kit_random_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 32) * n >> 32);
}

static inline void soq__kit_fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = soq__kit_random(&seed);
}

#endif
