/* OpenCL's status codes: their names, and what the host is told. */
#include "opencl.h"

static const struct {
    cl_int status;
    const char *name;
    enum soq_error_code code;
} statuses[] = {
#define STATUS(name, code)                                                                                                     \
    {                                                                                                                          \
        name, #name, code                                                                                                      \
    }
    STATUS(CL_DEVICE_NOT_FOUND, SOQ_ENOTFOUND),
    STATUS(CL_DEVICE_NOT_AVAILABLE, SOQ_EDEVICE),
    STATUS(CL_COMPILER_NOT_AVAILABLE, SOQ_EUNSUPPORTED),
    STATUS(CL_MEM_OBJECT_ALLOCATION_FAILURE, SOQ_ENOMEM),
    STATUS(CL_OUT_OF_RESOURCES, SOQ_ENOMEM),
    STATUS(CL_OUT_OF_HOST_MEMORY, SOQ_ENOMEM),
    STATUS(CL_BUILD_PROGRAM_FAILURE, SOQ_EDEVICE),
    STATUS(CL_INVALID_VALUE, SOQ_EINTERNAL),
    STATUS(CL_INVALID_PLATFORM, SOQ_EDEVICE),
    STATUS(CL_INVALID_DEVICE, SOQ_EDEVICE),
    STATUS(CL_INVALID_CONTEXT, SOQ_EINTERNAL),
    STATUS(CL_INVALID_COMMAND_QUEUE, SOQ_EINTERNAL),
    STATUS(CL_INVALID_MEM_OBJECT, SOQ_EINVAL),
    STATUS(CL_INVALID_BINARY, SOQ_ECORRUPT),
    STATUS(CL_INVALID_BUILD_OPTIONS, SOQ_EINTERNAL),
    STATUS(CL_INVALID_PROGRAM_EXECUTABLE, SOQ_EDEVICE),
    STATUS(CL_INVALID_KERNEL_NAME, SOQ_EINTERNAL),
    STATUS(CL_INVALID_KERNEL_ARGS, SOQ_EINTERNAL),
    STATUS(CL_INVALID_ARG_INDEX, SOQ_EINTERNAL),
    STATUS(CL_INVALID_ARG_VALUE, SOQ_EINVAL),
    STATUS(CL_INVALID_ARG_SIZE, SOQ_EINTERNAL),
    STATUS(CL_INVALID_WORK_GROUP_SIZE, SOQ_EDEVICE),
    STATUS(CL_INVALID_BUFFER_SIZE, SOQ_ENOMEM),
    STATUS(CL_INVALID_OPERATION, SOQ_EINTERNAL),
    STATUS(CL_MISALIGNED_SUB_BUFFER_OFFSET, SOQ_EINTERNAL),
    STATUS(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, SOQ_EDEVICE),
#undef STATUS
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR", SOQ_ENOTFOUND},
};

const char *opencl_status_name(cl_int status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        if (statuses[i].status == status)
            return statuses[i].name;
    return "an error unknown to OpenCL";
}

enum soq_error_code opencl_status_code(cl_int status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        if (statuses[i].status == status)
            return statuses[i].code;
    return SOQ_EDEVICE;
}
