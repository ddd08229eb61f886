/* The thread pool, the barrier, the host's services over them, and the CPU count. Meant to run under ThreadSanitizer too. */
#include <criterion/criterion.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cpucount.h"
#include "base/log.h"
#include "base/pool.h"
#include "plugin/host.h"

#define THREADS_MAX 16
#define ROUNDS 200

static struct soq__pool *pool_new(void)
{
    struct soq__pool *pool;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(soq__pool_create(&pool, &err), 0);
    return pool;
}

/* ---- Regions */

struct seen {
    atomic_uint calls[THREADS_MAX];
    atomic_uint wrong;
    uint32_t threads;
};

static void count_call(void *arg, const struct soq_worker *w)
{
    struct seen *seen = arg;

    if (w->struct_size != sizeof *w || w->count != seen->threads || w->index >= seen->threads)
        atomic_fetch_add(&seen->wrong, 1);
    else
        atomic_fetch_add(&seen->calls[w->index], 1);
}

Test(pool, exactly_n_threads, .timeout = 20)
{
    static const uint32_t sizes[] = {1, 4, 2, 16, 3, 16, 1};
    int64_t live = soq__alloc_live();
    struct soq__pool *pool = pool_new();

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct seen seen = {.threads = sizes[i]};

        cr_assert_eq(soq__pool_run(pool, sizes[i], count_call, &seen), 0);
        cr_assert_eq(seen.wrong, 0);
        for (uint32_t t = 0; t < THREADS_MAX; t++)
            cr_assert_eq(seen.calls[t], t < sizes[i], "thread %u of %u", t, sizes[i]);
    }
    soq__pool_free(pool);
    cr_assert_eq(soq__alloc_live(), live);
}

/* Plain data: only the barrier orders it. */
struct sums {
    uint32_t value[THREADS_MAX];
    uint32_t wrong[THREADS_MAX];
};

static void neighbours(void *arg, const struct soq_worker *w)
{
    struct sums *s = arg;

    for (uint32_t round = 1; round <= ROUNDS; round++) {
        s->value[w->index] = round;
        soq__pool_barrier(w);
        for (uint32_t t = 0; t < w->count; t++)
            s->wrong[w->index] += s->value[t] != round;
        soq__pool_barrier(w);
    }
}

Test(pool, barrier_orders_memory, .timeout = 60)
{
    struct soq__pool *pool = pool_new();

    for (uint32_t threads = 1; threads <= 8; threads++) {
        struct sums s = {{0}, {0}};

        cr_assert_eq(soq__pool_run(pool, threads, neighbours, &s), 0);
        for (uint32_t t = 0; t < threads; t++)
            cr_assert_eq(s.wrong[t], 0);
    }
    soq__pool_free(pool);
}

/* A late thread makes the others sleep in the barrier. */
static void one_is_late(void *arg, const struct soq_worker *w)
{
    struct sums *s = arg;

    if (w->index == w->count - 1)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    s->value[w->index] = 1;
    soq__pool_barrier(w);
    for (uint32_t t = 0; t < w->count; t++)
        s->wrong[w->index] += s->value[t] != 1;
}

Test(pool, barrier_wakes_sleepers, .timeout = 60)
{
    struct soq__pool *pool = pool_new();

    for (int i = 0; i < 20; i++) {
        struct sums s = {{0}, {0}};

        cr_assert_eq(soq__pool_run(pool, 4, one_is_late, &s), 0);
        for (uint32_t t = 0; t < 4; t++)
            cr_assert_eq(s.wrong[t], 0);
    }
    soq__pool_free(pool);
}

static void add_one(void *arg, const struct soq_worker *w)
{
    if (w->index == 0)
        ++*(int *)arg; /* no atomic: regions take turns */
}

struct caller {
    struct soq__pool *pool;
    int *counter;
    int rc;
};

static void *call_often(void *arg)
{
    struct caller *c = arg;

    for (int i = 0; i < ROUNDS && !c->rc; i++)
        c->rc = soq__pool_run(c->pool, 3, add_one, c->counter);
    return NULL;
}

Test(pool, regions_take_turns, .timeout = 60)
{
    struct soq__pool *pool = pool_new();
    int counter = 0;
    struct caller callers[3];
    pthread_t threads[3];

    for (int i = 0; i < 3; i++) {
        callers[i] = (struct caller){pool, &counter, 0};
        cr_assert_eq(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(callers[i].rc, 0);
    }
    cr_assert_eq(counter, 3 * ROUNDS);
    soq__pool_free(pool);
}

struct nested {
    struct soq__pool *pool;
    atomic_int refused;
};

static void run_inside(void *arg, const struct soq_worker *w)
{
    struct nested *n = arg;
    int counter = 0;

    (void)w;
    if (soq__pool_run(n->pool, 2, add_one, &counter) == -SOQ_EINVAL)
        atomic_fetch_add(&n->refused, 1);
}

Test(pool, refusals, .timeout = 20)
{
    struct nested n = {.pool = pool_new()};
    int counter = 0;

    cr_assert_eq(soq__pool_run(n.pool, 0, add_one, &counter), -SOQ_EINVAL);
    cr_assert_eq(soq__pool_run(n.pool, SOQ_POOL_THREADS_MAX + 1, add_one, &counter), -SOQ_ELIMIT);
    cr_assert_eq(soq__pool_run(n.pool, 3, run_inside, &n), 0);
    cr_assert_eq(n.refused, 3);
    cr_assert_eq(counter, 0);
    soq__pool_free(n.pool);
    soq__pool_free(NULL);
}

Test(pool, idle_costs_nothing, .timeout = 20)
{
    struct soq__pool *pool = pool_new();
    struct timespec before, after;
    int counter = 0;
    double spent;

    cr_assert_eq(soq__pool_run(pool, 8, add_one, &counter), 0);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    spent = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    cr_assert_lt(spent, 0.05, "%f s of CPU in 0.3 s of idleness", spent);
    soq__pool_free(pool);
}

Test(pool, allocations_fail, .timeout = 20)
{
    int64_t live = soq__alloc_live();
    uint64_t n = 0;
    int rc;

    do {
        struct soq__pool *pool = NULL;
        struct soq_error err = SOQ_ERROR_INIT;
        int counter = 0;

        soq__alloc_fail_at(++n, false);
        rc = soq__pool_create(&pool, &err);
        if (!rc) {
            rc = soq__pool_run(pool, 4, add_one, &counter);
            cr_assert_eq(counter, rc == 0);
            soq__alloc_fail_at(0, false);
            cr_assert_eq(soq__pool_run(pool, 4, add_one, &counter), 0, "a pool that ran short once does not recover");
        }
        soq__alloc_fail_at(0, false);
        soq__pool_free(pool);
        cr_assert(rc == 0 || rc == -SOQ_ENOMEM);
        cr_assert_eq(soq__alloc_live(), live);
    } while (rc);
    cr_assert_eq(n, 6, "pool, list and three workers: %lu", (unsigned long)n);
}

/* ---- The host's services */

static char last_log[SOQ_LOG_TEXT_MAX];
static int last_level;

static void remember(void *user, int level, const char *text)
{
    (void)user;
    last_level = level;
    strcpy(last_log, text);
}

Test(host, log)
{
    struct soq__host host;
    const struct soq_host *s = &host.services;
    char text[SOQ_LOG_TEXT_MAX + 100];

    soq__host_init(&host, NULL);
    s->log(s->ctx, SOQ_LOG_ERROR, "nobody listens");
    soq__log_install(remember, NULL, SOQ_LOG_INFO);
    s->log(s->ctx, SOQ_LOG_WARN, "100 %s");
    cr_assert_str_eq(last_log, "100 %s");
    cr_assert_eq(last_level, SOQ_LOG_WARN);
    s->log(s->ctx, SOQ_LOG_DEBUG, "too fine");
    s->log(s->ctx, 99, "finer still");
    s->log(s->ctx, SOQ_LOG_WARN, NULL);
    cr_assert_str_eq(last_log, "100 %s");
    s->log(s->ctx, -5, "graver than an error");
    cr_assert_eq(last_level, SOQ_LOG_ERROR);
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    s->log(s->ctx, SOQ_LOG_INFO, text);
    cr_assert_eq(strlen(last_log), SOQ_LOG_TEXT_MAX - 1);
    cr_assert_str_eq(last_log + SOQ_LOG_TEXT_MAX - 4, "...");
}

Test(host, alloc)
{
    struct soq__host host;
    const struct soq_host *s = &host.services;
    int64_t live = soq__alloc_live();
    void *p;

    soq__host_init(&host, NULL);
    for (size_t align = 8; align <= 4096; align *= 2) {
        p = s->alloc(s->ctx, 100, align);
        cr_assert_not_null(p);
        cr_assert_eq((uintptr_t)p % align, 0);
        s->free(s->ctx, p);
    }
    cr_assert_null(s->alloc(s->ctx, 100, 0));
    cr_assert_null(s->alloc(s->ctx, 100, 24));
    s->free(s->ctx, NULL);
    soq__alloc_fail_at(1, false);
    cr_assert_null(s->alloc(s->ctx, 100, 64));
    cr_assert_eq(soq__alloc_live(), live);
}

static void through_services(void *arg, const struct soq_worker *w)
{
    const struct soq_host *s = arg;

    s->barrier(s->ctx, w);
}

Test(host, parallel, .timeout = 20)
{
    struct soq__host host;
    const struct soq_host *s = &host.services;
    struct soq__pool *pool = pool_new();

    soq__host_init(&host, pool);
    cr_assert_eq(s->parallel(s->ctx, 4, through_services, &host.services), 0);
    soq__host_init(&host, NULL);
    cr_assert_eq(s->parallel(s->ctx, 1, through_services, &host.services), 0);
    cr_assert_eq(s->parallel(s->ctx, 4, through_services, &host.services), -SOQ_ELIMIT);
    soq__pool_free(pool);
}

static int ask(void *arg)
{
    return *(int *)arg;
}

Test(host, cancelled)
{
    struct soq__host host;
    const struct soq_host *s = &host.services;
    int answer = 0;

    soq__host_init(&host, NULL);
    cr_assert_eq(s->cancelled(s->ctx), 0);
    soq__host_cancel(&host, true);
    cr_assert(s->cancelled(s->ctx));
    soq__host_cancel(&host, false);
    host.cancel_test = ask;
    host.cancel_arg = &answer;
    cr_assert_eq(s->cancelled(s->ctx), 0);
    answer = 1;
    cr_assert(s->cancelled(s->ctx));
}

/* ---- CPUs */

static void put(const char *root, const char *dir, const char *file, const char *text)
{
    char command[1024], path[1024];
    FILE *f;

    snprintf(command, sizeof command, "mkdir -p '%s%s'", root, dir);
    cr_assert_eq(system(command), 0);
    snprintf(path, sizeof path, "%s%s/%s", root, dir, file);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

static void new_root(char root[64])
{
    snprintf(root, 64, "%s/soquete-test-XXXXXX", P_tmpdir);
    cr_assert_not_null(mkdtemp(root));
}

static void remove_root(const char *root)
{
    char command[128];

    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
}

Test(cpus, affinity)
{
    cpu_set_t set;

    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    cr_assert_geq(soq__cpu_count(), 1);
    cr_assert_leq(soq__cpu_count(), (uint32_t)CPU_COUNT(&set));
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &set)) {
            CPU_ZERO(&set);
            CPU_SET(i, &set);
        }
    }
    cr_assert_eq(sched_setaffinity(0, sizeof set, &set), 0);
    cr_assert_eq(soq__cpu_count(), 1);
}

Test(cpus, cgroup_v2)
{
    char root[64];

    new_root(root);
    cr_assert_eq(soq__cpu_quota(root), 0);
    put(root, "/proc/self", "cgroup", "0::/a/b\n");
    cr_assert_eq(soq__cpu_quota(root), 0);
    put(root, "/sys/fs/cgroup/a/b", "cpu.max", "max 100000\n");
    cr_assert_eq(soq__cpu_quota(root), 0);
    put(root, "/sys/fs/cgroup/a", "cpu.max", "250000 100000\n");
    cr_assert_eq(soq__cpu_quota(root), 3, "the parent's quota, rounded up");
    put(root, "/sys/fs/cgroup/a/b", "cpu.max", "50000 100000\n");
    cr_assert_eq(soq__cpu_quota(root), 1);
    put(root, "/sys/fs/cgroup/a/b", "cpu.max", "nonsense\n");
    cr_assert_eq(soq__cpu_quota(root), 3);
    put(root, "/sys/fs/cgroup/a", "cpu.max", "100000 0\n");
    cr_assert_eq(soq__cpu_quota(root), 0);
    put(root, "/proc/self", "cgroup", "0::/not/here\n");
    put(root, "/sys/fs/cgroup", "cpu.max", "400000 100000\n");
    cr_assert_eq(soq__cpu_quota(root), 4, "the path is one of outside, the mount is the container's");
    remove_root(root);
}

Test(cpus, cgroup_v1)
{
    char root[64];

    new_root(root);
    put(root, "/proc/self", "cgroup", "4:memory:/x\n3:cpu,cpuacct:/x\n2:cpuset:/y\nrubbish\n0::/\n");
    put(root, "/sys/fs/cgroup/cpu/x", "cpu.cfs_quota_us", "-1\n");
    put(root, "/sys/fs/cgroup/cpu/x", "cpu.cfs_period_us", "100000\n");
    cr_assert_eq(soq__cpu_quota(root), 0);
    put(root, "/sys/fs/cgroup/cpu/x", "cpu.cfs_quota_us", "200000\n");
    cr_assert_eq(soq__cpu_quota(root), 2);
    put(root, "/proc/self", "cgroup", "2:cpuset:/x\n");
    cr_assert_eq(soq__cpu_quota(root), 0);
    remove_root(root);
}
