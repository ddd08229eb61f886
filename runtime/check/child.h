/* One check in one process: started, watched, and taken away. */
#ifndef SOQ_CHECK_CHILD_H
#define SOQ_CHECK_CHILD_H

#include "base/buf.h"
#include "check/kit.h"

/* A folder of our own, in TMPDIR, with a place for each thing that a process may write to by default. */
struct soq__sandbox {
    char root[256];
};

int soq__sandbox_create(struct soq__sandbox *sandbox, struct soq_error *err);
/* The first file in it that should not be there, as "cwd/core"; NULL: none. Static storage. Files of device drivers' caches
 * (XDG_CACHE_HOME) may be. */
const char *soq__sandbox_found(const struct soq__sandbox *sandbox);
void soq__sandbox_remove(struct soq__sandbox *sandbox);

/* Runs run(kit) in a child and writes verdict, seconds and reason. What the child says on standard output and error is appended
 * to output, the first 64 KiB. Fails only without a process. */
int soq__child_run(struct soq__kit *kit, void (*run)(struct soq__kit *kit), const struct soq__sandbox *sandbox, double limit,
                   struct soq_buf *output, struct soq__check_result *result, struct soq_error *err);

#endif
