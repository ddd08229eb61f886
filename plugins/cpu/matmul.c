/* Matrix products: arguments checked, kernel chosen. */
#include "cpu.h"

static int matmul(void *self, const struct soq_matmul_args *args)
{
    struct cpu *cpu = self;
    const struct cpu_weight *weight = cpu_weight(args->weight);

    if (cpu->failed)
        return cpu->failed;
    if (!weight || weight->vector || !(weight->uses & SOQ_USE_MATMUL))
        return cpu_refuse(cpu, SOQ_OP_MATMUL, SOQ_EINVAL, "%s was not prepared as a matrix",
                          weight ? weight->name : "weight 0");
    if (cpu_check_view(cpu, SOQ_OP_MATMUL, "x", &args->x, args->x.rows, weight->cols) ||
        cpu_check_view(cpu, SOQ_OP_MATMUL, "y", &args->y, args->x.rows, weight->rows) ||
        cpu_check_vector(cpu, SOQ_OP_MATMUL, "bias", args->bias, weight->rows, true))
        return cpu->failed;
    if (args->x.rows == 0)
        return 0;
    return cpu_record(cpu, SOQ_OP_MATMUL, cpu->q8 && weight->format->decode ? cpu_run_matmul_q8 : cpu_run_matmul, args,
                      sizeof *args);
}

const struct soq_matmul_ops cpu_matmul_ops = {
    .struct_size = sizeof cpu_matmul_ops,
    .matmul = matmul,
};
