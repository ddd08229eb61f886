#include "check/host.h"

#include <stdlib.h>

#include "base/cpucount.h"
#include "check/kit.h"

/* More than that nobody gets, whatever the C library would say. */
#define BYTES_MAX ((size_t)1 << 40)

enum { GUARD = 64, GUARD_BYTE = 0xc7, FRESH_BYTE = 0xd3, STALE_BYTE = 0xde };

/* Lies in front of what the plugin got, behind a guard. */
struct soq__kit_block {
    struct soq__kit_block *next, *prev;
    size_t bytes;
    void *raw;
};

static unsigned char *data_of(const struct soq__kit_block *block)
{
    return (unsigned char *)(uintptr_t)(block + 1) + GUARD;
}

static void verify(struct soq__kit *kit, const struct soq__kit_block *block)
{
    const unsigned char *data = data_of(block);

    for (size_t i = 0; i < GUARD; i++) {
        SOQ__EXPECT(kit, data[-1 - (ptrdiff_t)i] == GUARD_BYTE, "wrote %zu bytes in front of an allocation of %zu bytes", i + 1,
                    block->bytes);
        SOQ__EXPECT(kit, data[block->bytes + i] == GUARD_BYTE, "wrote behind an allocation of %zu bytes, at its byte %zu",
                    block->bytes, block->bytes + i);
    }
}

void soq__kit_host_verify(struct soq__kit *kit)
{
    pthread_mutex_lock(&kit->host.lock);
    for (const struct soq__kit_block *block = kit->host.blocks; block; block = block->next)
        verify(kit, block);
    pthread_mutex_unlock(&kit->host.lock);
}

static void host_log(void *ctx, int level, const char *text)
{
    struct soq__kit_host *host = ctx;

    SOQ__EXPECT(host->kit, text && level >= SOQ_LOG_ERROR && level <= SOQ_LOG_DEBUG, "log: level %d, text %s", level,
                text ? text : "NULL");
}

/* Aligned as asked, and no better, so that nothing relies on more. */
static void *host_alloc(void *ctx, size_t bytes, size_t align)
{
    struct soq__kit_host *host = ctx;
    struct soq__kit_block *block;
    uintptr_t data;
    void *raw;

    SOQ__EXPECT(host->kit, !host->no_alloc, "allocates in a call that must not: %zu bytes", bytes);
    SOQ__EXPECT(host->kit, align >= 8 && !(align & (align - 1)), "alloc: align is %zu; a power of two, at least 8", align);
    pthread_mutex_lock(&host->lock);
    host->n_allocs++;
    if (host->fail_at && (host->n_allocs == host->fail_at || (host->fails_for_good && host->n_allocs > host->fail_at))) {
        pthread_mutex_unlock(&host->lock);
        return NULL;
    }
    raw = bytes <= BYTES_MAX ? malloc(bytes + 3 * align + sizeof *block + 2 * GUARD) : NULL;
    if (raw) {
        data = (uintptr_t)raw + sizeof *block + GUARD;
        data = (data + 2 * align - 1) / (2 * align) * (2 * align) + align;
        block = (struct soq__kit_block *)(data - GUARD) - 1;
        *block = (struct soq__kit_block){.next = host->blocks, .bytes = bytes, .raw = raw};
        memset(data_of(block) - GUARD, GUARD_BYTE, GUARD);
        memset(data_of(block), FRESH_BYTE, bytes);
        memset(data_of(block) + bytes, GUARD_BYTE, GUARD);
        if (host->blocks)
            host->blocks->prev = block;
        host->blocks = block;
        host->n_live++;
    }
    pthread_mutex_unlock(&host->lock);
    return raw ? (void *)data : NULL;
}

static void host_free(void *ctx, void *p)
{
    struct soq__kit_host *host = ctx;
    struct soq__kit_block *block;

    if (!p)
        return;
    pthread_mutex_lock(&host->lock);
    for (block = host->blocks; block && data_of(block) != p;)
        block = block->next;
    SOQ__EXPECT(host->kit, block, "frees what the host did not allocate, or frees it twice");
    verify(host->kit, block);
    if (block->prev)
        block->prev->next = block->next;
    else
        host->blocks = block->next;
    if (block->next)
        block->next->prev = block->prev;
    host->n_live--;
    pthread_mutex_unlock(&host->lock);
    memset(p, STALE_BYTE, block->bytes);
    free(block->raw);
}

static uint32_t host_cpu_count(void *ctx)
{
    const struct soq__kit_host *host = ctx;

    return host->cpu_count ? host->cpu_count : soq__cpu_count();
}

static int host_parallel(void *ctx, uint32_t threads, void (*fn)(void *arg, const struct soq_worker *worker), void *arg)
{
    struct soq__kit_host *host = ctx;

    SOQ__EXPECT(host->kit, fn, "parallel: fn is NULL");
    return host->parallel_fails ? host->parallel_fails : soq__pool_run(host->pool, threads, fn, arg);
}

static void host_barrier(void *ctx, const struct soq_worker *worker)
{
    (void)ctx;
    soq__pool_barrier(worker);
}

static int host_cancelled(void *ctx)
{
    struct soq__kit_host *host = ctx;
    unsigned poll = atomic_fetch_add(&host->n_polls, 1) + 1, at = atomic_load(&host->cancel_at);

    return at && poll >= at;
}

void soq__kit_host_init(struct soq__kit *kit)
{
    struct soq__kit_host *host = &kit->host;
    struct soq_host services = {
        .struct_size = sizeof services,
        .abi_major = SOQ_ABI_MAJOR,
        .ctx = host,
        .log = host_log,
        .alloc = host_alloc,
        .free = host_free,
        .cpu_count = host_cpu_count,
        .parallel = host_parallel,
        .barrier = host_barrier,
        .cancelled = host_cancelled,
    };
    size_t later = kit->newer ? 64 : 0;
    struct soq_host *presented;
    struct soq_error err = SOQ_ERROR_INIT;

    *host = (struct soq__kit_host){.kit = kit, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (soq__pool_create(&host->pool, &err))
        soq__kit_fail(kit, "the kit's own thread pool: %s", err.text);
    /* Not a box: it lives as long as the instances. */
    presented = soq__kit_guard(kit, sizeof services + later, sizeof(void *));
    memset(presented, 0xa5, sizeof services + later);
    memcpy(presented, &services, sizeof services);
    presented->struct_size += (uint32_t)later;
    host->services = presented;
}
