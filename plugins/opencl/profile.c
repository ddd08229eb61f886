/* How long kernels took, by the device's own clock. */
#include "opencl.h"

#include <stdio.h>

void opencl_profile_collect(struct opencl *ocl)
{
    for (uint32_t i = 0; i < ocl->n_events; i++) {
        struct opencl_event *event = &ocl->events[i];
        cl_ulong start = 0, end = 0;

        if (clGetEventProfilingInfo(event->handle, CL_PROFILING_COMMAND_START, sizeof start, &start, NULL) == CL_SUCCESS &&
            clGetEventProfilingInfo(event->handle, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL) == CL_SUCCESS)
            event->time->ns += end - start;
        event->time->calls++;
        clReleaseEvent(event->handle);
    }
    ocl->n_events = 0;
}

void opencl_profile_add(struct opencl *ocl, cl_event event, struct opencl_time *time)
{
    if (ocl->n_events == OPENCL_EVENTS_MAX) {
        clFinish(ocl->queue);
        opencl_profile_collect(ocl);
    }
    ocl->events[ocl->n_events++] = (struct opencl_event){event, time};
}

void opencl_profile_log(struct opencl *ocl)
{
    opencl_log(ocl->host, SOQ_LOG_INFO, "opencl: kernel                    calls       ms total    us each");
    for (const struct opencl_program *program = ocl->programs; program; program = program->next)
        for (int k = 0; k < OPENCL_N_KERNELS; k++) {
            const struct opencl_time *time = &program->times[k];
            char name[64];

            if (!time->calls)
                continue;
            snprintf(name, sizeof name, "%s %s", opencl_kernel_name((enum opencl_kernel)k), program->label);
            opencl_log(ocl->host, SOQ_LOG_INFO, "opencl: %-22s %8llu %14.3f %10.2f", name, (unsigned long long)time->calls,
                       (double)time->ns / 1e6, (double)time->ns / 1e3 / (double)time->calls);
        }
}
