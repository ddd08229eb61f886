/* The one thread pool: parallel regions of exactly n concurrent threads.
 *
 * Workers are created on demand, sleep between regions and are joined by free. Regions of one pool take turns. The caller of a
 * region is its thread 0. Not usable across fork. */
#ifndef SOQ_BASE_POOL_H
#define SOQ_BASE_POOL_H

#include <stdint.h>

#include "base/error.h"
#include "soquete/plugin.h"

#define SOQ_POOL_THREADS_MAX 1024u

struct soq__pool;

int soq__pool_create(struct soq__pool **pool_out, struct soq_error *err);
void soq__pool_free(struct soq__pool *pool); /* no region may be running */

/* Runs fn(arg, worker) on `threads` threads at once and returns when all have returned. Any thread, not from inside a region.
 * 0, -SOQ_EINVAL (no threads), -SOQ_ELIMIT (more than SOQ_POOL_THREADS_MAX) or -SOQ_ENOMEM (no further thread could be created:
 * nothing ran). */
int soq__pool_run(struct soq__pool *pool, uint32_t threads, void (*fn)(void *arg, const struct soq_worker *worker), void *arg);

/* Waits until every thread of the worker's region has called it; a full fence. Only inside a region. */
void soq__pool_barrier(const struct soq_worker *worker);

#endif
