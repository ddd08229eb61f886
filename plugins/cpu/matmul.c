/* Matrix products: arguments checked, kernel chosen. */
#include "cpu.h"

static bool same_view(const struct soq_view *a, const struct soq_view *b)
{
    return a->buffer == b->buffer && a->offset == b->offset && a->rows == b->rows && a->cols == b->cols &&
           a->row_stride == b->row_stride;
}

/* Whether the two may share an element. Columns of one matrix side by side do not. */
static bool overlap(const struct soq_view *a, const struct soq_view *b)
{
    uint64_t first_a = a->buffer + a->offset, first_b = b->buffer + b->offset;
    uint64_t stride = (uint64_t)a->row_stride * sizeof(float);

    if (first_a > first_b)
        return overlap(b, a);
    if (a->row_stride == b->row_stride && first_b - first_a < stride)
        return first_b - first_a < a->cols * sizeof(float) || first_b - first_a + b->cols * sizeof(float) > stride;
    return first_b < first_a + (a->rows - 1) * stride + a->cols * sizeof(float);
}

/* q, k and v, or gate and up: products of one x need not wait for each other, and round it to 8 bits once. */
static void join_previous(struct cpu *cpu, struct cpu_op *op)
{
    const struct cpu_op *other = op;
    bool rounded = false;

    do {
        if (other-- == cpu->ops || other->op != SOQ_OP_MATMUL || !same_view(&other->args.matmul.x, &op->args.matmul.x) ||
            overlap(&other->args.matmul.y, &op->args.matmul.y))
            return;
        rounded |= other->run == op->run;
    } while (!other->sync);
    op->sync = false;
    op->quantise = !rounded;
}

static int matmul(void *self, const struct soq_matmul_args *args)
{
    struct cpu *cpu = self;
    const struct cpu_weight *weight = cpu_weight(args->weight);
    struct cpu_op *op;
    bool q8;

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
    q8 = cpu->q8 && weight->format->decode;
    op = cpu_record(cpu, SOQ_OP_MATMUL, q8 ? cpu_run_matmul_q8 : cpu_run_matmul);
    if (!op)
        return cpu->failed;
    op->args.matmul = *args;
    join_previous(cpu, op);
    return 0;
}

const struct soq_matmul_ops cpu_matmul_ops = {
    .struct_size = sizeof cpu_matmul_ops,
    .matmul = matmul,
};
