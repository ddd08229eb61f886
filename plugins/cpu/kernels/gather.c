/* y[i] = x[outputs[i]]: the rows whose logits are wanted. */
#include <string.h>

#include "cpu.h"

void cpu_run_gather(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_gather_args *args = &op->args.gather;
    uint64_t first, last;

    cpu_share(thread, args->y.rows, &first, &last);
    for (uint64_t i = first; i < last; i++)
        memcpy(cpu_view_row(&args->y, (uint32_t)i), cpu_view_row(&args->x, step_outputs(cpu->step)[i]),
               args->y.cols * sizeof(float));
}
