/* The instance: a context and a queue on one device, and the proof that it computes. */
#include "opencl.h"

#include <stdio.h>
#include <string.h>

static int open_device(struct opencl *ocl, struct soq_error *err)
{
    cl_command_queue_properties properties = ocl->profile ? CL_QUEUE_PROFILING_ENABLE : 0;
    struct opencl_found found[OPENCL_DEVICES_MAX];
    uint32_t n = 0;
    cl_int status;
    int rc = opencl_find_devices(found, &n, err);

    if (rc)
        return rc;
    if (ocl->params.device >= n)
        return plugin_fail(err, SOQ_ENOTFOUND, "opencl: there is no device %u, only %u of them", ocl->params.device, n);
    ocl->device = found[ocl->params.device].handle;
    memcpy(ocl->device_name, found[ocl->params.device].about.name, sizeof ocl->device_name);
    ocl->max_alloc = opencl_device_number(ocl->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(cl_ulong));
    ocl->local_bytes = opencl_device_number(ocl->device, CL_DEVICE_LOCAL_MEM_SIZE, sizeof(cl_ulong));
    ocl->alignment = opencl_device_number(ocl->device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof(cl_uint)) / 8;
    ocl->alignment = ocl->alignment < 64 ? 64 : ocl->alignment;
    ocl->context = clCreateContext(NULL, 1, &ocl->device, NULL, NULL, &status);
    if (status == CL_SUCCESS)
        ocl->queue = clCreateCommandQueue(ocl->context, ocl->device, properties, &status);
    if (status != CL_SUCCESS)
        return plugin_fail(err, opencl_status_code(status), "opencl: %s cannot be opened: %s", ocl->device_name,
                           opencl_status_name(status));
    return 0;
}

static int take_options(struct opencl *ocl, const struct soq_config *config, struct soq_error *err)
{
    const char *cache_dir = config->get_string(config->ctx, "cache_dir");
    size_t n = strlen(cache_dir) + 1;

    ocl->memory_limit = (uint64_t)config->get_int(config->ctx, "memory");
    ocl->arena_bytes = (uint64_t)config->get_int(config->ctx, "arena");
    ocl->decoded_bytes = (uint64_t)config->get_int(config->ctx, "decoded");
    ocl->profile = config->get_int(config->ctx, "profile") != 0;
    if (n > 1)
        ocl->cache_dir = ocl->host->alloc(ocl->host->ctx, n, 64);
    if (ocl->profile)
        ocl->events = ocl->host->alloc(ocl->host->ctx, OPENCL_EVENTS_MAX * sizeof *ocl->events, 64);
    if ((n > 1 && !ocl->cache_dir) || (ocl->profile && !ocl->events))
        return plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory");
    if (n > 1)
        memcpy(ocl->cache_dir, cache_dir, n);
    return 0;
}

/* A first launch: some drivers list devices, build programs and then fail. */
static int probe(struct opencl *ocl, struct soq_error *err)
{
    struct opencl_call call = opencl_call(ocl, SOQ_OP_SCALE, ocl->ops, OPENCL_K_scale);
    float number = 1.5f;
    cl_mem mem = NULL;
    int rc = opencl_mem_create(ocl, sizeof number, "the first buffer", &mem, err);

    if (!rc)
        rc = opencl_write(ocl, mem, 0, &number, sizeof number, "the first buffer", err);
    if (!rc) {
        struct soq_view view = {.buffer = (soq_buffer)(uintptr_t)mem, .row_stride = 1};

        opencl_arg_u32(&call, 1);
        opencl_arg_f32(&call, 2.0f);
        opencl_arg_f32(&call, 0.0f);
        opencl_arg_view(&call, &view);
        if (opencl_launch_items(&call, 1, 1) || opencl_finish(ocl) != CL_SUCCESS ||
            clEnqueueReadBuffer(ocl->queue, mem, CL_TRUE, 0, sizeof number, &number, 0, NULL, NULL) != CL_SUCCESS ||
            number != 3.0f)
            rc = plugin_fail(err, SOQ_EDEVICE, "opencl: %s does not compute: its first kernel failed%s%s", ocl->device_name,
                             ocl->failed ? ": " : "", ocl->failed ? ocl->error.text : "");
    }
    opencl_mem_free(ocl, mem);
    ocl->failed = 0;
    return rc;
}

int opencl_init(void *self, const struct soq_host *host, const struct soq_config *config,
                const struct soq_backend_params *params, struct soq_error *err)
{
    struct opencl *ocl = self;
    int rc;

    if (params->max_rows == 0 || params->max_slots == 0)
        return plugin_fail(err, SOQ_EINVAL, "opencl: max_rows and max_slots must be positive, not %u and %u", params->max_rows,
                           params->max_slots);
    ocl->host = host;
    memcpy(&ocl->params, params, params->struct_size < sizeof *params ? params->struct_size : sizeof *params);
    rc = take_options(ocl, config, err);
    if (!rc)
        rc = open_device(ocl, err);
    if (!rc)
        rc = opencl_program(ocl, OPENCL_OPS, "", "", &ocl->ops, err);
    if (!rc)
        rc = probe(ocl, err);
    if (rc) {
        ocl->profile = false;
        opencl_shutdown(self);
    }
    return rc;
}

void opencl_shutdown(void *self)
{
    struct opencl *ocl = self;
    const struct soq_host *host = ocl->host;

    if (!host)
        return;
    if (ocl->queue)
        opencl_finish(ocl);
    if (ocl->profile)
        opencl_profile_log(ocl);
    opencl_mem_free(ocl, ocl->device_step);
    opencl_mem_free(ocl, ocl->partials.mem);
    opencl_mem_free(ocl, ocl->shares.mem);
    opencl_mem_free(ocl, ocl->lines.mem);
    opencl_mem_free(ocl, ocl->lists.mem);
    opencl_mem_free(ocl, ocl->decoded.mem);
    opencl_programs_free(ocl);
    if (ocl->queue)
        clReleaseCommandQueue(ocl->queue);
    if (ocl->context)
        clReleaseContext(ocl->context);
    host->free(host->ctx, ocl->step_bytes);
    host->free(host->ctx, ocl->host_lines.bytes);
    host->free(host->ctx, ocl->packed_room.bytes);
    host->free(host->ctx, ocl->plain_room.bytes);
    host->free(host->ctx, ocl->events);
    host->free(host->ctx, ocl->cache_dir);
    memset(ocl, 0, sizeof *ocl);
}
