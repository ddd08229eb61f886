/* Arenas: few large pieces of device memory that buffers are cut from.
 *
 * OpenCL 1.2 has no pointers in memory, so the kernels of the KV cache can reach a block only through a kernel argument, and
 * there are OPENCL_ARENAS of those. Slabs come one by one, thousands of them; as sub-buffers of a few arenas they stay
 * reachable, and a handle is still a cl_mem of its own. Each arena is twice as large as the one before; one that is empty goes
 * back. */
#include "opencl.h"

static uint64_t round_up(uint64_t bytes, uint64_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

/* range -> its first `bytes`, used, and the rest, free. */
static int split(struct opencl *ocl, struct opencl_range *range, uint64_t bytes, struct soq_error *err)
{
    struct opencl_range *rest;

    if (range->bytes > bytes) {
        rest = ocl->host->alloc(ocl->host->ctx, sizeof *rest, 64);
        if (!rest)
            return plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory: a buffer of %llu bytes", (unsigned long long)bytes);
        *rest = (struct opencl_range){.offset = range->offset + bytes, .bytes = range->bytes - bytes, .next = range->next};
        range->next = rest;
        range->bytes = bytes;
    }
    range->used = true;
    return 0;
}

/* Joins range with free ranges behind it. */
static void join(struct opencl *ocl, struct opencl_range *range)
{
    while (!range->used && range->next && !range->next->used) {
        struct opencl_range *next = range->next;

        range->bytes += next->bytes;
        range->next = next->next;
        ocl->host->free(ocl->host->ctx, next);
    }
}

/* range is free again; an arena without used ranges goes back to the driver. */
static void give_back(struct opencl *ocl, struct opencl_arena *arena, struct opencl_range *range)
{
    struct opencl_arena **at = &ocl->arenas;

    range->used = false;
    for (struct opencl_range *r = arena->ranges; r; r = r->next)
        join(ocl, r);
    if (arena->ranges->used || arena->ranges->next)
        return;
    while (*at != arena)
        at = &(*at)->next;
    *at = arena->next;
    ocl->host->free(ocl->host->ctx, arena->ranges);
    opencl_mem_free(ocl, arena->handle);
    ocl->host->free(ocl->host->ctx, arena);
}

static int cut(struct opencl *ocl, struct opencl_arena *arena, struct opencl_range *range, uint64_t bytes, cl_mem *mem_out,
               struct soq_error *err)
{
    cl_buffer_region region = {.origin = range->offset, .size = bytes};
    int rc = split(ocl, range, bytes, err);
    cl_int status;
    cl_mem mem;

    if (rc) {
        give_back(ocl, arena, range);
        return rc;
    }
    mem = clCreateSubBuffer(arena->handle, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    if (status != CL_SUCCESS) {
        give_back(ocl, arena, range);
        return plugin_fail(err, opencl_status_code(status), "opencl: a buffer of %llu bytes: %s", (unsigned long long)bytes,
                           opencl_status_name(status));
    }
    *mem_out = mem;
    return 0;
}

/* An arena with room for bytes: of the wanted size, or of half of it, and so on, where that cannot be had. */
static int grow(struct opencl *ocl, uint64_t bytes, struct soq_error *err)
{
    struct opencl_arena *arena = ocl->host->alloc(ocl->host->ctx, sizeof *arena, 64), **end = &ocl->arenas;
    struct opencl_range *all = ocl->host->alloc(ocl->host->ctx, sizeof *all, 64);
    uint64_t size = ocl->arena_bytes;
    cl_mem handle = NULL;
    int rc = 0;

    if (!arena || !all)
        rc = plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory: an arena");
    for (; *end; end = &(*end)->next)
        size = size < ocl->max_alloc / 2 ? 2 * size : ocl->max_alloc / ocl->alignment * ocl->alignment;
    while (!rc && !handle) {
        size = size > bytes ? size : bytes;
        rc = opencl_mem_create(ocl, size, "an arena", &handle, err);
        if (rc == -SOQ_ENOMEM && size > bytes) {
            size = round_up(size / 2, ocl->alignment);
            rc = 0;
        }
    }
    if (rc) {
        ocl->host->free(ocl->host->ctx, all);
        ocl->host->free(ocl->host->ctx, arena);
        return rc;
    }
    *all = (struct opencl_range){.bytes = size};
    *arena = (struct opencl_arena){.handle = handle, .ranges = all};
    *end = arena;
    return 0;
}

int opencl_arena_alloc(struct opencl *ocl, uint64_t bytes, cl_mem *mem_out, struct soq_error *err)
{
    uint64_t size = round_up(bytes ? bytes : 1, ocl->alignment);
    int rc;

    for (struct opencl_arena *arena = ocl->arenas; arena; arena = arena->next)
        for (struct opencl_range *r = arena->ranges; r; r = r->next)
            if (!r->used && r->bytes >= size)
                return cut(ocl, arena, r, size, mem_out, err);
    rc = grow(ocl, size, err);
    return rc ? rc : opencl_arena_alloc(ocl, bytes, mem_out, err);
}

void opencl_arena_free(struct opencl *ocl, cl_mem parent, cl_mem mem)
{
    struct opencl_arena *arena = ocl->arenas;
    struct opencl_range *range;
    uint64_t offset;

    opencl_mem_parent(mem, &offset);
    while (arena->handle != parent)
        arena = arena->next;
    for (range = arena->ranges; range->offset != offset; range = range->next)
        ;
    clReleaseMemObject(mem);
    give_back(ocl, arena, range);
}
