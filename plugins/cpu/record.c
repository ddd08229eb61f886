/* Recording ops, and what their arguments are checked with. */
#include "cpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *cpu_op_name(uint32_t op)
{
    static const char *const names[] = {
#define NAME(name, value, text) [value] = text,
        SOQ_OPS(NAME)
#undef NAME
    };

    return op < sizeof names / sizeof names[0] && names[op] ? names[op] : "op";
}

int cpu_refuse(struct cpu *cpu, uint32_t op, enum soq_error_code code, const char *fmt, ...)
{
    char text[sizeof cpu->error.text - 64];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    cpu->failed = plugin_fail(&cpu->error, code, "cpu: %s: %s", cpu_op_name(op), text);
    return cpu->failed;
}

int cpu_record(struct cpu *cpu, uint32_t kind, cpu_run_fn *run, const void *args, size_t size)
{
    struct cpu_op *op;

    if (cpu->n_ops == CPU_OPS_MAX && cpu_run(cpu))
        return cpu->failed;
    atomic_store_explicit(&cpu->taken[cpu->n_ops], 0, memory_order_relaxed);
    op = &cpu->ops[cpu->n_ops++];
    *op = (struct cpu_op){.run = run, .op = kind, .head = true, .sync = true, .quantise = true};
    memcpy(&op->args, args, size);
    cpu_order(cpu->ops, op);
    return 0;
}

int cpu_check_view(struct cpu *cpu, uint32_t op, const char *what, const struct soq_view *view, uint32_t rows, uint32_t cols)
{
    if (view->rows != rows || view->cols != cols)
        return cpu_refuse(cpu, op, SOQ_EINVAL, "%s is %u x %u and must be %u x %u", what, view->rows, view->cols, rows, cols);
    if (view->dtype != SOQ_DTYPE_F32)
        return cpu_refuse(cpu, op, SOQ_EUNSUPPORTED, "%s has type %u and must be F32", what, view->dtype);
    if (rows > cpu->params.max_rows)
        return cpu_refuse(cpu, op, SOQ_EINVAL, "%s has %u rows, the most is %u", what, rows, cpu->params.max_rows);
    if (rows == 0 || cols == 0)
        return 0;
    if (!view->buffer)
        return cpu_refuse(cpu, op, SOQ_EINVAL, "%s is in no buffer", what);
    if (rows > 1 && view->row_stride < cols)
        return cpu_refuse(cpu, op, SOQ_EINVAL, "%s has rows of %u in a stride of %u", what, cols, view->row_stride);
    if ((view->buffer + view->offset) % sizeof(float))
        return cpu_refuse(cpu, op, SOQ_EINVAL, "%s begins at byte %llu, inside a number", what,
                          (unsigned long long)view->offset);
    return 0;
}

int cpu_check_vector(struct cpu *cpu, uint32_t op, const char *what, soq_weight weight, uint32_t length, bool optional)
{
    if (!weight)
        return optional ? 0 : cpu_refuse(cpu, op, SOQ_EINVAL, "%s is missing", what);
    if (!cpu_weight(weight)->vector)
        return cpu_refuse(cpu, op, SOQ_EINVAL, "%s (%s) was not prepared as a vector", what, cpu_weight(weight)->name);
    if (cpu_weight(weight)->cols != length)
        return cpu_refuse(cpu, op, SOQ_EINVAL, "%s (%s) has %u elements and must have %u", what, cpu_weight(weight)->name,
                          cpu_weight(weight)->cols, length);
    return 0;
}
