/* The thread pool: workers sleep on a condition variable, a region is published under the lock, and one barrier serves both the
 * plugin's own synchronisation and the end of the region.
 *
 * Invariants: `regions` is held for the whole of a region, so its data and the list of workers change only between regions. A
 * worker reads the region under `lock` and takes part if its index is below the count; a worker that slept through regions
 * which it was no part of just catches up with the serial. After the final barrier a worker touches the region no more. */
#include "base/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/alloc.h"
#include "base/clock.h"

#define SPIN_SECONDS 50e-6 /* a barrier of busy threads is shorter than a system call; one of descheduled threads is not */
#define SPINS_PER_LOOK 64

struct worker {
    struct soq__pool *pool;
    pthread_t thread;
    uint64_t serial; /* of the last region seen */
    uint32_t index;  /* 1 .. */
};

struct soq__pool {
    pthread_mutex_t regions; /* held during a region: they take turns */
    pthread_mutex_t lock;    /* guards what follows up to the barrier */
    pthread_cond_t start;
    uint64_t serial; /* of the current region */
    bool stop;
    uint32_t count; /* threads of the region */
    void (*fn)(void *arg, const struct soq_worker *worker);
    void *arg;

    pthread_cond_t passed; /* with `lock`: the barrier's phase has changed */
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint phase;
    atomic_uint sleepers;

    struct worker **workers; /* [n_workers] */
    uint32_t n_workers;
};

static _Thread_local bool inside; /* this thread is in a region, of whatever pool */

#if defined(__x86_64__) || defined(__i386__)
static void relax(void)
{
    __builtin_ia32_pause();
}
#else
static void relax(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}
#endif

/* True if the phase changed within the time that spinning is worth. */
static bool spin(struct soq__pool *pool, unsigned phase)
{
    double deadline = soq__clock_now() + SPIN_SECONDS;

    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (atomic_load(&pool->phase) != phase)
                return true;
            relax();
        }
    } while (soq__clock_now() < deadline);
    return false;
}

static void barrier_sleep(struct soq__pool *pool, unsigned phase)
{
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1); /* before the look at the phase: whoever changes it looks here afterwards */
    while (atomic_load(&pool->phase) == phase)
        pthread_cond_wait(&pool->passed, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

void soq__pool_barrier(const struct soq_worker *worker)
{
    struct soq__pool *pool = worker->region;
    unsigned phase;

    if (worker->count == 1)
        return;
    phase = atomic_load(&pool->phase);
    if (atomic_fetch_add(&pool->arrived, 1) + 1 < worker->count) {
        if (!spin(pool, phase))
            barrier_sleep(pool, phase);
        return;
    }
    atomic_store(&pool->arrived, 0);
    atomic_store(&pool->phase, phase + 1);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->passed);
        pthread_mutex_unlock(&pool->lock);
    }
}

static struct soq_worker describe(struct soq__pool *pool, uint32_t index, uint32_t count)
{
    return (struct soq_worker){.struct_size = sizeof(struct soq_worker), .index = index, .count = count, .region = pool};
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    struct soq__pool *pool = self->pool;

    inside = true;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->serial == self->serial && !pool->stop)
            pthread_cond_wait(&pool->start, &pool->lock);
        if (pool->stop)
            break;
        self->serial = pool->serial;
        if (self->index < pool->count) {
            struct soq_worker worker = describe(pool, self->index, pool->count);
            void (*fn)(void *, const struct soq_worker *) = pool->fn;
            void *fn_arg = pool->arg;

            pthread_mutex_unlock(&pool->lock);
            fn(fn_arg, &worker);
            soq__pool_barrier(&worker);
            pthread_mutex_lock(&pool->lock);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Signals are for the program's own threads. */
static int start_thread(struct worker *w)
{
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? -SOQ_ENOMEM : 0;
}

/* Called between regions. Workers that could be created stay, for a later try. */
static int grow(struct soq__pool *pool, uint32_t n_workers)
{
    struct worker **workers;

    if (pool->n_workers >= n_workers)
        return 0;
    workers = soq__realloc_array(pool->workers, n_workers, sizeof *workers);
    if (!workers)
        return -SOQ_ENOMEM;
    pool->workers = workers;
    while (pool->n_workers < n_workers) {
        struct worker *w = soq__alloc_zero(1, sizeof *w);

        if (!w)
            return -SOQ_ENOMEM;
        w->pool = pool;
        w->serial = pool->serial;
        w->index = pool->n_workers + 1;
        if (start_thread(w)) {
            soq__free(w);
            return -SOQ_ENOMEM;
        }
        pool->workers[pool->n_workers++] = w;
    }
    return 0;
}

static void publish(struct soq__pool *pool, uint32_t threads, void (*fn)(void *, const struct soq_worker *), void *arg)
{
    pthread_mutex_lock(&pool->lock);
    pool->serial++;
    pool->count = threads;
    pool->fn = fn;
    pool->arg = arg;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
}

int soq__pool_run(struct soq__pool *pool, uint32_t threads, void (*fn)(void *arg, const struct soq_worker *worker), void *arg)
{
    struct soq_worker self = describe(pool, 0, threads);
    int rc;

    if (!threads || inside)
        return -SOQ_EINVAL;
    if (threads > SOQ_POOL_THREADS_MAX)
        return -SOQ_ELIMIT;
    pthread_mutex_lock(&pool->regions);
    rc = grow(pool, threads - 1);
    if (!rc) {
        if (threads > 1)
            publish(pool, threads, fn, arg);
        inside = true;
        fn(arg, &self);
        soq__pool_barrier(&self);
        inside = false;
    }
    pthread_mutex_unlock(&pool->regions);
    return rc;
}

int soq__pool_create(struct soq__pool **pool_out, struct soq_error *err)
{
    struct soq__pool *pool = soq__alloc_aligned(_Alignof(struct soq__pool), sizeof *pool);

    if (!pool)
        return soq__fail(err, SOQ_ENOMEM, "thread pool: out of memory");
    *pool = (struct soq__pool){.serial = 0};
    pthread_mutex_init(&pool->regions, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->passed, NULL);
    *pool_out = pool;
    return 0;
}

void soq__pool_free(struct soq__pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_workers; i++) {
        pthread_join(pool->workers[i]->thread, NULL);
        soq__free(pool->workers[i]);
    }
    soq__free(pool->workers);
    pthread_cond_destroy(&pool->passed);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->regions);
    soq__free(pool);
}
