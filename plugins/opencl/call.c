/* Calling kernels. */
#include "opencl.h"

struct opencl_call opencl_call(struct opencl *ocl, uint32_t op, struct opencl_program *program, enum opencl_kernel kernel)
{
    return (struct opencl_call){
        .ocl = ocl,
        .op = op,
        .kernel = kernel,
        .handle = program->kernels[kernel],
        .time = &program->times[kernel],
        .status = CL_SUCCESS,
    };
}

void opencl_arg(struct opencl_call *call, const void *value, size_t bytes)
{
    cl_int status = clSetKernelArg(call->handle, call->n_args++, bytes, value);

    if (call->status == CL_SUCCESS)
        call->status = status;
}

void opencl_arg_u32(struct opencl_call *call, uint32_t value)
{
    opencl_arg(call, &value, sizeof value);
}

void opencl_arg_u64(struct opencl_call *call, uint64_t value)
{
    opencl_arg(call, &value, sizeof value);
}

void opencl_arg_f32(struct opencl_call *call, float value)
{
    opencl_arg(call, &value, sizeof value);
}

void opencl_arg_mem(struct opencl_call *call, cl_mem mem)
{
    opencl_arg(call, &mem, sizeof mem);
}

void opencl_arg_view(struct opencl_call *call, const struct soq_view *view)
{
    opencl_arg_mem(call, opencl_mem(view->buffer));
    opencl_arg_u64(call, view->offset / sizeof(float));
    opencl_arg_u32(call, view->row_stride);
}

void opencl_arg_vector(struct opencl_call *call, soq_weight weight)
{
    opencl_arg_mem(call, weight ? opencl_weight(weight)->data : NULL);
}

void opencl_arg_arenas(struct opencl_call *call, const struct opencl_group *group)
{
    for (int i = 0; i < OPENCL_ARENAS; i++)
        opencl_arg_mem(call, group->storage->arenas[i].handle);
}

/* Every OPENCL_RUN_AHEAD launches: waits until the device is that far, and asks whether to go on. */
static int keep_pace(struct opencl_call *call, cl_event event)
{
    struct opencl *ocl = call->ocl;

    if (ocl->fence) {
        clWaitForEvents(1, &ocl->fence);
        clReleaseEvent(ocl->fence);
    }
    clRetainEvent(event);
    ocl->fence = event;
    if (ocl->step && ocl->host->cancelled(ocl->host->ctx))
        return opencl_refuse(ocl, call->op, SOQ_ECANCELLED, "cancelled");
    return 0;
}

static int launch(struct opencl_call *call, const size_t *global)
{
    static const size_t local[3] = {OPENCL_ITEMS, 1, 1};
    struct opencl *ocl = call->ocl;
    bool mark = ocl->n_launches % OPENCL_RUN_AHEAD == 0;
    cl_event event = NULL;
    int rc = 0;

    if (global[0] == 0 || global[1] == 0 || global[2] == 0)
        return 0;
    if (call->status == CL_SUCCESS)
        call->status = clEnqueueNDRangeKernel(ocl->queue, call->handle, 3, NULL, global, local, 0, NULL,
                                              mark || ocl->profile ? &event : NULL);
    if (call->status != CL_SUCCESS)
        return opencl_refuse(ocl, call->op, opencl_status_code(call->status), "kernel %s on %s: %s",
                             opencl_kernel_name(call->kernel), ocl->device_name, opencl_status_name(call->status));
    ocl->n_launches++;
    if (mark)
        rc = keep_pace(call, event);
    if (event && ocl->profile)
        opencl_profile_add(ocl, event, call->time);
    else if (event)
        clReleaseEvent(event);
    return rc;
}

int opencl_launch_items(struct opencl_call *call, uint64_t n, uint64_t rows)
{
    return opencl_launch_groups(call, (n + OPENCL_ITEMS - 1) / OPENCL_ITEMS, rows, 1);
}

int opencl_launch_groups(struct opencl_call *call, uint64_t x, uint64_t y, uint64_t z)
{
    return launch(call, (const size_t[3]){x * OPENCL_ITEMS, y, z});
}

cl_int opencl_finish(struct opencl *ocl)
{
    cl_int status = clFinish(ocl->queue);

    if (ocl->fence) {
        clReleaseEvent(ocl->fence);
        ocl->fence = NULL;
    }
    ocl->n_launches = 0;
    opencl_profile_collect(ocl);
    return status;
}
