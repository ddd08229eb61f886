/* The host that plugins meet in a check: it counts, guards what it hands out, and fails on demand. */
#ifndef SOQ_CHECK_HOST_H
#define SOQ_CHECK_HOST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/pool.h"
#include "soquete/plugin.h"

struct soq__kit;
struct soq__kit_block;

struct soq__kit_host {
    struct soq__kit *kit;
    const struct soq_host *services; /* what plugins get */
    struct soq__pool *pool;

    pthread_mutex_t lock;
    struct soq__kit_block *blocks; /* live ones */
    uint64_t n_live, n_allocs;
    uint64_t fail_at;    /* this allocation fails, counted from n_allocs = 1; 0: none */
    bool fails_for_good; /* and all after it */
    bool no_alloc;       /* a call is running that must not allocate */

    int parallel_fails;    /* what parallel returns, 0: it works */
    uint32_t cpu_count;    /* what cpu_count says, 0: the truth */
    atomic_uint n_polls;   /* of cancelled */
    atomic_uint cancel_at; /* cancelled says yes from this poll on, 0: never */
};

void soq__kit_host_init(struct soq__kit *kit);
/* Guards of everything that is live; fails the check where one was written over. */
void soq__kit_host_verify(struct soq__kit *kit);

#endif
