/* The services that a plugin gets: struct soq_host over log, allocator, thread pool and a cancel flag.
 *
 * One struct soq__host per owner of work (an engine); several may share a pool. It must outlive the instances that got it. */
#ifndef SOQ_PLUGIN_HOST_H
#define SOQ_PLUGIN_HOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "soquete/plugin.h"

struct soq__host {
    struct soq_host services; /* what plugins get: &host->services */
    struct soq__pool *pool;   /* not owned */
    atomic_bool cancelled;
    int (*cancel_test)(void *arg); /* asked too, unless NULL; any thread */
    void *cancel_arg;
};

/* Allocates nothing, needs no done. pool may be NULL where nothing computes (listing plugins): regions then have one thread. */
void soq__host_init(struct soq__host *host, struct soq__pool *pool);

/* Any thread, and signal handlers. The flag stays until it is cleared. */
void soq__host_cancel(struct soq__host *host, bool cancelled);

#endif
