/* y = a + b */
#include "cpu.h"

void cpu_run_add(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_add_args *args = &op->args.add;
    uint64_t first, last;

    (void)cpu;
    cpu_share(thread, args->y.rows, &first, &last);
    for (uint64_t r = first; r < last; r++) {
        const float *a = cpu_view_row(&args->a, (uint32_t)r), *b = cpu_view_row(&args->b, (uint32_t)r);
        float *y = cpu_view_row(&args->y, (uint32_t)r);

        for (uint32_t i = 0; i < args->y.cols; i++)
            y[i] = a[i] + b[i];
    }
}
