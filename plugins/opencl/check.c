/* What arguments of ops are checked with, and how a step fails. */
#include "opencl.h"

#include <stdarg.h>
#include <stdio.h>

const char *opencl_op_name(uint32_t op)
{
    static const char *const names[] = {
#define NAME(name, value, text) [value] = text,
        SOQ_OPS(NAME)
#undef NAME
    };

    return op < sizeof names / sizeof names[0] && names[op] ? names[op] : "begin";
}

int opencl_refuse(struct opencl *ocl, uint32_t op, enum soq_error_code code, const char *fmt, ...)
{
    char text[sizeof ocl->error.text - 64];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    ocl->failed = plugin_fail(&ocl->error, code, "opencl: %s: %s", opencl_op_name(op), text);
    return ocl->failed;
}

int opencl_check_view(struct opencl *ocl, uint32_t op, const char *what, const struct soq_view *view, uint32_t rows,
                      uint32_t cols)
{
    if (view->rows != rows || view->cols != cols)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "%s is %u x %u and must be %u x %u", what, view->rows, view->cols, rows,
                             cols);
    if (view->dtype != SOQ_DTYPE_F32)
        return opencl_refuse(ocl, op, SOQ_EUNSUPPORTED, "%s has type %u and must be F32", what, view->dtype);
    if (rows > ocl->params.max_rows)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "%s has %u rows, the most is %u", what, rows, ocl->params.max_rows);
    if (rows == 0 || cols == 0)
        return 0;
    if (!view->buffer)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "%s is in no buffer", what);
    if (rows > 1 && view->row_stride < cols)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "%s has rows of %u in a stride of %u", what, cols, view->row_stride);
    if (view->offset % sizeof(float))
        return opencl_refuse(ocl, op, SOQ_EINVAL, "%s begins at byte %llu, inside a number", what,
                             (unsigned long long)view->offset);
    return 0;
}

int opencl_check_vector(struct opencl *ocl, uint32_t op, const char *what, soq_weight handle, uint32_t length, bool optional)
{
    const struct opencl_weight *weight = opencl_weight(handle);

    if (!weight)
        return optional ? 0 : opencl_refuse(ocl, op, SOQ_EINVAL, "%s is missing", what);
    if (weight->program)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "%s (%s) was not prepared as a vector", what, weight->name);
    if (weight->cols != length)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "%s (%s) has %u elements and must have %u", what, weight->name, weight->cols,
                             length);
    return 0;
}
