/* Device memory: within the instance's limit, allocated when it is asked for; buffers in and out. */
#include "opencl.h"

static int fail(struct soq_error *err, cl_int status, const char *what, uint64_t bytes)
{
    return plugin_fail(err, opencl_status_code(status), "opencl: %s: %llu bytes: %s", what, (unsigned long long)bytes,
                       opencl_status_name(status));
}

/* Drivers allocate late: a buffer that is moved to the device is there, or cannot be had. */
static cl_int create(struct opencl *ocl, uint64_t bytes, cl_mem *mem_out)
{
    cl_int status;
    cl_mem mem = clCreateBuffer(ocl->context, CL_MEM_READ_WRITE, bytes, NULL, &status);

    if (status == CL_SUCCESS) {
        status = clEnqueueMigrateMemObjects(ocl->queue, 1, &mem, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0, NULL, NULL);
        if (status == CL_SUCCESS)
            status = clFinish(ocl->queue);
        if (status != CL_SUCCESS)
            clReleaseMemObject(mem);
    }
    if (status == CL_SUCCESS)
        *mem_out = mem;
    return status;
}

int opencl_mem_create(struct opencl *ocl, uint64_t bytes, const char *what, cl_mem *mem_out, struct soq_error *err)
{
    cl_int status;

    bytes = bytes ? bytes : 1;
    if (bytes > ocl->max_alloc)
        return plugin_fail(err, SOQ_ENOMEM, "opencl: %s: %llu bytes, but %s allocates at most %llu at a time", what,
                           (unsigned long long)bytes, ocl->device_name, (unsigned long long)ocl->max_alloc);
    if (ocl->memory_limit && (bytes > ocl->memory_limit || ocl->memory_used > ocl->memory_limit - bytes))
        return plugin_fail(
            err, SOQ_ENOMEM, "opencl: %s: %llu bytes, beside %llu in use, are above [backend.opencl] memory = %llu", what,
            (unsigned long long)bytes, (unsigned long long)ocl->memory_used, (unsigned long long)ocl->memory_limit);
    status = create(ocl, bytes, mem_out);
    if (status != CL_SUCCESS)
        return fail(err, status, what, bytes);
    ocl->memory_used += bytes;
    return 0;
}

void opencl_mem_free(struct opencl *ocl, cl_mem mem)
{
    size_t bytes = 0;

    if (!mem)
        return;
    clGetMemObjectInfo(mem, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    ocl->memory_used -= bytes;
    clReleaseMemObject(mem);
}

int opencl_reserve(struct opencl *ocl, struct opencl_scratch *scratch, uint64_t bytes, const char *what, struct soq_error *err)
{
    int rc;

    if (bytes <= scratch->bytes)
        return 0;
    opencl_mem_free(ocl, scratch->mem);
    *scratch = (struct opencl_scratch){NULL, 0};
    rc = opencl_mem_create(ocl, bytes, what, &scratch->mem, err);
    scratch->bytes = rc ? 0 : bytes;
    return rc;
}

cl_mem opencl_mem_parent(cl_mem mem, uint64_t *offset_out)
{
    cl_mem parent = NULL;
    size_t offset = 0;

    clGetMemObjectInfo(mem, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof parent, &parent, NULL);
    if (parent)
        clGetMemObjectInfo(mem, CL_MEM_OFFSET, sizeof offset, &offset, NULL);
    *offset_out = offset;
    return parent ? parent : mem;
}

int opencl_write(struct opencl *ocl, cl_mem mem, uint64_t offset, const void *src, uint64_t bytes, const char *what,
                 struct soq_error *err)
{
    cl_int status = bytes ? clEnqueueWriteBuffer(ocl->queue, mem, CL_TRUE, offset, bytes, src, 0, NULL, NULL) : CL_SUCCESS;

    return status == CL_SUCCESS ? 0 : fail(err, status, what, bytes);
}

int opencl_read(struct opencl *ocl, cl_mem mem, uint64_t offset, void *dst, uint64_t bytes, const char *what,
                struct soq_error *err)
{
    cl_int status = bytes ? clEnqueueReadBuffer(ocl->queue, mem, CL_TRUE, offset, bytes, dst, 0, NULL, NULL) : CL_SUCCESS;

    return status == CL_SUCCESS ? 0 : fail(err, status, what, bytes);
}

int opencl_reserve_room(struct opencl *ocl, struct opencl_room *room, uint64_t bytes, const char *what, struct soq_error *err)
{
    if (bytes <= room->capacity)
        return 0;
    ocl->host->free(ocl->host->ctx, room->bytes);
    room->bytes = ocl->host->alloc(ocl->host->ctx, bytes, 64);
    room->capacity = room->bytes ? bytes : 0;
    return room->bytes ? 0
                       : plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory: %s: %llu bytes", what, (unsigned long long)bytes);
}

static int buffer_alloc(void *self, uint64_t bytes, soq_buffer *buffer_out, struct soq_error *err)
{
    struct opencl *ocl = self;
    cl_mem mem = NULL;
    int rc = bytes < ocl->arena_bytes ? opencl_arena_alloc(ocl, bytes, &mem, err)
                                      : opencl_mem_create(ocl, bytes, "a buffer", &mem, err);

    if (!rc)
        *buffer_out = (soq_buffer)(uintptr_t)mem;
    return rc;
}

static void buffer_free(void *self, soq_buffer buffer)
{
    struct opencl *ocl = self;
    cl_mem mem = opencl_mem(buffer), parent;
    uint64_t offset;

    if (!mem)
        return;
    parent = opencl_mem_parent(mem, &offset);
    if (parent == mem)
        opencl_mem_free(ocl, mem);
    else
        opencl_arena_free(ocl, parent, mem);
}

static int buffer_write(void *self, soq_buffer dst, uint64_t offset, const void *src, uint64_t bytes, struct soq_error *err)
{
    if (!dst)
        return plugin_fail(err, SOQ_EINVAL, "opencl: write to buffer 0");
    return opencl_write(self, opencl_mem(dst), offset, src, bytes, "write to a buffer", err);
}

static int buffer_read(void *self, soq_buffer src, uint64_t offset, void *dst, uint64_t bytes, struct soq_error *err)
{
    if (!src)
        return plugin_fail(err, SOQ_EINVAL, "opencl: read from buffer 0");
    return opencl_read(self, opencl_mem(src), offset, dst, bytes, "read from a buffer", err);
}

const struct soq_memory_ops opencl_memory_ops = {
    .struct_size = sizeof opencl_memory_ops,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .buffer_write = buffer_write,
    .buffer_read = buffer_read,
    .weight_prepare = opencl_weight_prepare,
    .weight_free = opencl_weight_free,
};
