/* The small ops: arguments checked and recorded. */
#include "cpu.h"

static int embed(void *self, const struct soq_embed_args *args)
{
    struct cpu *cpu = self;
    const struct cpu_weight *weight = cpu_weight(args->weight);

    if (cpu->failed)
        return cpu->failed;
    if (!weight || weight->vector || !(weight->uses & SOQ_USE_EMBED))
        return cpu_refuse(cpu, SOQ_OP_EMBED, SOQ_EINVAL, "%s was not prepared for look-up", weight ? weight->name : "weight 0");
    if (cpu_check_view(cpu, SOQ_OP_EMBED, "y", &args->y, cpu->step->n_rows, weight->cols))
        return cpu->failed;
    for (uint32_t i = 0; i < cpu->step->n_rows; i++)
        if (step_rows(cpu->step)[i].token < 0 || (uint32_t)step_rows(cpu->step)[i].token >= weight->rows)
            return cpu_refuse(cpu, SOQ_OP_EMBED, SOQ_EINVAL, "row %u has token %d, the vocabulary has %u", i,
                              step_rows(cpu->step)[i].token, weight->rows);
    return cpu_record(cpu, SOQ_OP_EMBED, cpu_run_embed, args, sizeof *args);
}

static int norm(void *self, const struct soq_norm_args *args)
{
    struct cpu *cpu = self;

    if (cpu->failed)
        return cpu->failed;
    if (args->kind != SOQ_NORM_RMS && args->kind != SOQ_NORM_LAYER)
        return cpu_refuse(cpu, SOQ_OP_NORM, SOQ_EUNSUPPORTED, "kind %u", args->kind);
    if (args->width == 0 || args->x.cols % args->width)
        return cpu_refuse(cpu, SOQ_OP_NORM, SOQ_EINVAL, "%u columns are no multiple of the width %u", args->x.cols,
                          args->width);
    if (cpu_check_view(cpu, SOQ_OP_NORM, "x", &args->x, args->x.rows, args->x.cols) ||
        cpu_check_view(cpu, SOQ_OP_NORM, "y", &args->y, args->x.rows, args->x.cols) ||
        cpu_check_vector(cpu, SOQ_OP_NORM, "weight", args->weight, args->width, true) ||
        cpu_check_vector(cpu, SOQ_OP_NORM, "bias", args->bias, args->width, true))
        return cpu->failed;
    return cpu_record(cpu, SOQ_OP_NORM, cpu_run_norm, args, sizeof *args);
}

static int rope_table(void *self, const struct soq_rope_table_args *args)
{
    struct cpu *cpu = self;

    if (cpu->failed)
        return cpu->failed;
    if (args->table.cols % 2)
        return cpu_refuse(cpu, SOQ_OP_ROPE_TABLE, SOQ_EINVAL, "n_rot must be even, not %u", args->table.cols);
    if (cpu_check_view(cpu, SOQ_OP_ROPE_TABLE, "table", &args->table, cpu->step->n_rows, args->table.cols) ||
        cpu_check_view(cpu, SOQ_OP_ROPE_TABLE, "inv_freq", &args->inv_freq, 1, args->table.cols / 2))
        return cpu->failed;
    return cpu_record(cpu, SOQ_OP_ROPE_TABLE, cpu_run_rope_table, args, sizeof *args);
}

static int rope(void *self, const struct soq_rope_args *args)
{
    struct cpu *cpu = self;

    if (cpu->failed)
        return cpu->failed;
    if (args->kind != SOQ_ROPE_INTERLEAVED && args->kind != SOQ_ROPE_HALF)
        return cpu_refuse(cpu, SOQ_OP_ROPE, SOQ_EUNSUPPORTED, "kind %u", args->kind);
    if (args->table.cols % 2 || args->table.cols > args->head_dim)
        return cpu_refuse(cpu, SOQ_OP_ROPE, SOQ_EINVAL, "n_rot %u must be even and at most the head's %u", args->table.cols,
                          args->head_dim);
    if ((uint64_t)args->n_heads * args->head_dim != args->x.cols)
        return cpu_refuse(cpu, SOQ_OP_ROPE, SOQ_EINVAL, "%u heads of %u are not %u columns", args->n_heads, args->head_dim,
                          args->x.cols);
    if (cpu_check_view(cpu, SOQ_OP_ROPE, "x", &args->x, args->x.rows, args->x.cols) ||
        cpu_check_view(cpu, SOQ_OP_ROPE, "table", &args->table, args->x.rows, args->table.cols))
        return cpu->failed;
    return cpu_record(cpu, SOQ_OP_ROPE, cpu_run_rope, args, sizeof *args);
}

static int activation(void *self, const struct soq_activation_args *args)
{
    struct cpu *cpu = self;
    uint32_t rows = args->gate.rows, cols = args->gate.cols;

    if (cpu->failed)
        return cpu->failed;
    if (args->kind < SOQ_ACT_SILU || args->kind > SOQ_ACT_RELU)
        return cpu_refuse(cpu, SOQ_OP_ACTIVATION, SOQ_EUNSUPPORTED, "kind %u", args->kind);
    if (cpu_check_view(cpu, SOQ_OP_ACTIVATION, "gate", &args->gate, rows, cols) ||
        (args->up.buffer && cpu_check_view(cpu, SOQ_OP_ACTIVATION, "up", &args->up, rows, cols)) ||
        cpu_check_view(cpu, SOQ_OP_ACTIVATION, "y", &args->y, rows, cols))
        return cpu->failed;
    return cpu_record(cpu, SOQ_OP_ACTIVATION, cpu_run_activation, args, sizeof *args);
}

static int add(void *self, const struct soq_add_args *args)
{
    struct cpu *cpu = self;
    uint32_t rows = args->y.rows, cols = args->y.cols;

    if (cpu->failed)
        return cpu->failed;
    if (cpu_check_view(cpu, SOQ_OP_ADD, "a", &args->a, rows, cols) ||
        cpu_check_view(cpu, SOQ_OP_ADD, "b", &args->b, rows, cols) ||
        cpu_check_view(cpu, SOQ_OP_ADD, "y", &args->y, rows, cols))
        return cpu->failed;
    return cpu_record(cpu, SOQ_OP_ADD, cpu_run_add, args, sizeof *args);
}

static int scale(void *self, const struct soq_scale_args *args)
{
    struct cpu *cpu = self;

    if (cpu->failed)
        return cpu->failed;
    if (cpu_check_view(cpu, SOQ_OP_SCALE, "x", &args->x, args->x.rows, args->x.cols))
        return cpu->failed;
    return cpu_record(cpu, SOQ_OP_SCALE, cpu_run_scale, args, sizeof *args);
}

static int gather(void *self, const struct soq_gather_args *args)
{
    struct cpu *cpu = self;

    if (cpu->failed)
        return cpu->failed;
    if (cpu_check_view(cpu, SOQ_OP_GATHER, "x", &args->x, cpu->step->n_rows, args->x.cols) ||
        cpu_check_view(cpu, SOQ_OP_GATHER, "y", &args->y, cpu->step->n_outputs, args->x.cols))
        return cpu->failed;
    return cpu_record(cpu, SOQ_OP_GATHER, cpu_run_gather, args, sizeof *args);
}

const struct soq_elementwise_ops cpu_elementwise_ops = {
    .struct_size = sizeof cpu_elementwise_ops,
    .embed = embed,
    .norm = norm,
    .rope_table = rope_table,
    .rope = rope,
    .activation = activation,
    .add = add,
    .scale = scale,
    .gather = gather,
};
