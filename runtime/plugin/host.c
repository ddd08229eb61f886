/* struct soq_host: each service hands over to the module of base that owns the matter. */
#include "plugin/host.h"

#include "base/alloc.h"
#include "base/cpucount.h"
#include "base/log.h"

static void host_log(void *ctx, int level, const char *text)
{
    (void)ctx;
    if (text)
        soq__log(level < SOQ_LOG_ERROR   ? SOQ_LOG_ERROR
                 : level > SOQ_LOG_DEBUG ? SOQ_LOG_DEBUG
                                         : (enum soq_log_level)level,
                 "%s", text);
}

static void *host_alloc(void *ctx, size_t bytes, size_t align)
{
    (void)ctx;
    if (align < sizeof(void *) || (align & (align - 1)))
        return NULL;
    return soq__alloc_aligned(align, bytes);
}

static void host_free(void *ctx, void *p)
{
    (void)ctx;
    soq__free(p);
}

static uint32_t host_cpu_count(void *ctx)
{
    (void)ctx;
    return soq__cpu_count();
}

static int host_parallel(void *ctx, uint32_t threads, void (*fn)(void *arg, const struct soq_worker *worker), void *arg)
{
    struct soq__host *host = ctx;
    struct soq_worker alone = {.struct_size = sizeof alone, .count = 1};

    if (host->pool)
        return soq__pool_run(host->pool, threads, fn, arg);
    if (threads != 1)
        return threads ? -SOQ_ELIMIT : -SOQ_EINVAL;
    fn(arg, &alone);
    return 0;
}

static void host_barrier(void *ctx, const struct soq_worker *worker)
{
    (void)ctx;
    soq__pool_barrier(worker);
}

static int host_cancelled(void *ctx)
{
    struct soq__host *host = ctx;

    return atomic_load_explicit(&host->cancelled, memory_order_relaxed) ||
           (host->cancel_test && host->cancel_test(host->cancel_arg));
}

void soq__host_init(struct soq__host *host, struct soq__pool *pool)
{
    static const struct soq_host services = {
        .struct_size = sizeof(struct soq_host),
        .abi_major = SOQ_ABI_MAJOR,
        .log = host_log,
        .alloc = host_alloc,
        .free = host_free,
        .cpu_count = host_cpu_count,
        .parallel = host_parallel,
        .barrier = host_barrier,
        .cancelled = host_cancelled,
    };

    host->services = services;
    host->services.ctx = host;
    host->pool = pool;
    atomic_init(&host->cancelled, false);
    host->cancel_test = NULL;
    host->cancel_arg = NULL;
}

void soq__host_cancel(struct soq__host *host, bool cancelled)
{
    atomic_store_explicit(&host->cancelled, cancelled, memory_order_relaxed);
}
