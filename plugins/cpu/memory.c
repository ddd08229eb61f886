/* Buffers: host memory, the handle is the address. */
#include <string.h>
#include <sys/mman.h>

#include "cpu.h"
#include "weights.h"

enum { HUGE_PAGE = 2 << 20 };

static int buffer_alloc(void *self, uint64_t bytes, soq_buffer *buffer_out, struct soq_error *err)
{
    struct cpu *cpu = self;
    size_t align = bytes < HUGE_PAGE ? 64 : HUGE_PAGE;
    void *p = bytes <= SIZE_MAX - align ? cpu->host->alloc(cpu->host->ctx, bytes ? bytes : 1, align) : NULL;

    if (!p)
        return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory: a buffer of %llu bytes", (unsigned long long)bytes);
    if (align == HUGE_PAGE)
        madvise(p, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    *buffer_out = (soq_buffer)(uintptr_t)p;
    return 0;
}

static void buffer_free(void *self, soq_buffer buffer)
{
    struct cpu *cpu = self;

    cpu->host->free(cpu->host->ctx, (void *)(uintptr_t)buffer);
}

static int buffer_write(void *self, soq_buffer dst, uint64_t offset, const void *src, uint64_t bytes, struct soq_error *err)
{
    (void)self;
    if (!dst)
        return plugin_fail(err, SOQ_EINVAL, "cpu: write to buffer 0");
    if (bytes)
        memcpy((uint8_t *)(uintptr_t)dst + offset, src, bytes);
    return 0;
}

static int buffer_read(void *self, soq_buffer src, uint64_t offset, void *dst, uint64_t bytes, struct soq_error *err)
{
    (void)self;
    if (!src)
        return plugin_fail(err, SOQ_EINVAL, "cpu: read from buffer 0");
    if (bytes)
        memcpy(dst, (const uint8_t *)(uintptr_t)src + offset, bytes);
    return 0;
}

const struct soq_memory_ops cpu_memory_ops = {
    .struct_size = sizeof cpu_memory_ops,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .buffer_write = buffer_write,
    .buffer_read = buffer_read,
    .weight_prepare = cpu_weight_prepare,
    .weight_free = cpu_weight_free,
};
