/* What a plugin gets from the host: its configuration section and services. Part of the plugin ABI: include soquete/plugin.h.
 */
#ifndef SOQUETE_HOST_H
#define SOQUETE_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "soquete/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Options: the typed configuration section of a plugin -------------------------------------------------------- */

enum soq_option_type {
    SOQ_OPT_INT = 1,
    SOQ_OPT_FLOAT = 2,
    SOQ_OPT_BOOL = 3, /* on|off, true|false, yes|no, 1|0 */
    SOQ_OPT_STRING = 4,
    SOQ_OPT_ENUM = 5, /* one of choices */
    SOQ_OPT_SIZE = 6, /* bytes; suffixes KiB MiB GiB TiB, kB MB GB TB */
    SOQ_OPT_PATH = 7, /* relative to the file that sets it */
};

/* One key of [backend.NAME], [kv.NAME] or [decoding.NAME]. The INI parser, --help, the man page and `soquete plugins NAME` read
 * it. */
struct soq_option {
    uint32_t struct_size;
    uint32_t type; /* enum soq_option_type */
    const char *key;
    const char *default_value; /* as written in the INI */
    double min, max;           /* inclusive, for INT, FLOAT and SIZE; no limit where min > max */
    const char *choices;       /* "a|b|c" for ENUM, else NULL */
    const char *help;          /* one sentence */
};

/* The section's values, already checked against the option table. Asking for a key that is not in the table gives 0 or "".
 * Strings are valid until the call that received the soq_config returns. */
struct soq_config {
    uint32_t struct_size;
    uint32_t reserved;
    void *ctx;
    int64_t (*get_int)(void *ctx, const char *key); /* INT, SIZE, BOOL */
    double (*get_float)(void *ctx, const char *key);
    const char *(*get_string)(void *ctx, const char *key); /* STRING, ENUM, PATH */
};

/* ---- Host services ----------------------------------------------------------------------------------------------- */

enum soq_log_level { SOQ_LOG_ERROR = 0, SOQ_LOG_WARN = 1, SOQ_LOG_INFO = 2, SOQ_LOG_DEBUG = 3 };

/* One thread of a parallel region. */
struct soq_worker {
    uint32_t struct_size;
    uint32_t index; /* 0 .. count - 1; 0 is the calling thread */
    uint32_t count;
    uint32_t reserved;
    void *region; /* the host's */
};

/* Valid from init until shutdown returns. Every function may be called from any thread unless it says otherwise. */
struct soq_host {
    uint32_t struct_size;
    uint32_t abi_major;
    void *ctx; /* first argument of every service */

    void (*log)(void *ctx, int level, const char *text);

    /* align: a power of two, at least 8. NULL when out of memory: the plugin then fails with SOQ_ENOMEM. free(NULL) is a no-op.
     */
    void *(*alloc)(void *ctx, size_t bytes, size_t align);
    void (*free)(void *ctx, void *p);

    /* CPUs that this process may use (affinity and cgroup quota). */
    uint32_t (*cpu_count)(void *ctx);

    /* Runs fn(arg, worker) on `threads` threads at once (the caller is one of them) and returns when all have returned. All of
     * them run concurrently, so they may wait for each other with barrier. Regions do not nest; two instances that ask at once
     * take turns. Between regions the threads sleep. Fails (nothing ran) with SOQ_ENOMEM or SOQ_ELIMIT. */
    int (*parallel)(void *ctx, uint32_t threads, void (*fn)(void *arg, const struct soq_worker *worker), void *arg);
    /* Waits until every thread of the region has arrived; full memory fence. Only inside a region. */
    void (*barrier)(void *ctx, const struct soq_worker *worker);

    /* Nonzero when the work in hand should stop: poll between ops, return SOQ_ECANCELLED from `end`. */
    int (*cancelled)(void *ctx);
};

#ifdef __cplusplus
}
#endif
#endif
