/* The small ops: arguments checked, kernels called. */
#include "opencl.h"

static int embed(void *self, const struct soq_embed_args *args)
{
    struct opencl *ocl = self;
    const struct opencl_weight *weight = opencl_weight(args->weight);
    struct opencl_call call;

    if (ocl->failed)
        return ocl->failed;
    if (!weight || !weight->program || !(weight->uses & SOQ_USE_EMBED))
        return opencl_refuse(ocl, SOQ_OP_EMBED, SOQ_EINVAL, "%s was not prepared for look-up",
                             weight ? weight->name : "weight 0");
    if (opencl_check_view(ocl, SOQ_OP_EMBED, "y", &args->y, ocl->step->n_rows, weight->cols))
        return ocl->failed;
    for (uint32_t i = 0; i < ocl->step->n_rows; i++)
        if (step_rows(ocl->step)[i].token < 0 || (uint32_t)step_rows(ocl->step)[i].token >= weight->rows)
            return opencl_refuse(ocl, SOQ_OP_EMBED, SOQ_EINVAL, "row %u has token %d, the vocabulary has %u", i,
                                 step_rows(ocl->step)[i].token, weight->rows);
    call = opencl_call(ocl, SOQ_OP_EMBED, weight->program, OPENCL_K_embed);
    opencl_arg_mem(&call, ocl->device_step);
    opencl_arg_mem(&call, weight->data);
    opencl_arg_u64(&call, weight->row_bytes);
    opencl_arg_u32(&call, weight->cols);
    opencl_arg_f32(&call, args->scale);
    opencl_arg_view(&call, &args->y);
    return opencl_launch_items(&call, ((uint64_t)weight->cols + 3) / 4, ocl->step->n_rows);
}

static int norm(void *self, const struct soq_norm_args *args)
{
    struct opencl *ocl = self;
    struct opencl_call call;

    if (ocl->failed)
        return ocl->failed;
    if (args->kind != SOQ_NORM_RMS && args->kind != SOQ_NORM_LAYER)
        return opencl_refuse(ocl, SOQ_OP_NORM, SOQ_EUNSUPPORTED, "kind %u", args->kind);
    if (args->width == 0 || args->x.cols % args->width)
        return opencl_refuse(ocl, SOQ_OP_NORM, SOQ_EINVAL, "%u columns are no multiple of the width %u", args->x.cols,
                             args->width);
    if (opencl_check_view(ocl, SOQ_OP_NORM, "x", &args->x, args->x.rows, args->x.cols) ||
        opencl_check_view(ocl, SOQ_OP_NORM, "y", &args->y, args->x.rows, args->x.cols) ||
        opencl_check_vector(ocl, SOQ_OP_NORM, "weight", args->weight, args->width, true) ||
        opencl_check_vector(ocl, SOQ_OP_NORM, "bias", args->bias, args->width, true))
        return ocl->failed;
    call = opencl_call(ocl, SOQ_OP_NORM, ocl->ops, OPENCL_K_norm);
    opencl_arg_u32(&call, args->kind);
    opencl_arg_u32(&call, args->width);
    opencl_arg_f32(&call, args->eps);
    opencl_arg_vector(&call, args->weight);
    opencl_arg_vector(&call, args->bias);
    opencl_arg_view(&call, &args->x);
    opencl_arg_view(&call, &args->y);
    return opencl_launch_groups(&call, args->x.cols / args->width, args->x.rows, 1);
}

static int rope_table(void *self, const struct soq_rope_table_args *args)
{
    struct opencl *ocl = self;
    struct opencl_call call;

    if (ocl->failed)
        return ocl->failed;
    if (args->table.cols % 2)
        return opencl_refuse(ocl, SOQ_OP_ROPE_TABLE, SOQ_EINVAL, "n_rot must be even, not %u", args->table.cols);
    if (opencl_check_view(ocl, SOQ_OP_ROPE_TABLE, "table", &args->table, ocl->step->n_rows, args->table.cols) ||
        opencl_check_view(ocl, SOQ_OP_ROPE_TABLE, "inv_freq", &args->inv_freq, 1, args->table.cols / 2))
        return ocl->failed;
    call = opencl_call(ocl, SOQ_OP_ROPE_TABLE, ocl->ops, OPENCL_K_rope_table);
    opencl_arg_mem(&call, ocl->device_step);
    opencl_arg_u32(&call, args->table.cols / 2);
    opencl_arg_f32(&call, args->mscale);
    opencl_arg_mem(&call, opencl_mem(args->inv_freq.buffer));
    opencl_arg_u64(&call, args->inv_freq.offset / sizeof(float));
    opencl_arg_view(&call, &args->table);
    return opencl_launch_items(&call, args->table.cols / 2, ocl->step->n_rows);
}

static int rope(void *self, const struct soq_rope_args *args)
{
    struct opencl *ocl = self;
    uint32_t n_pairs = args->table.cols / 2;
    struct opencl_call call;

    if (ocl->failed)
        return ocl->failed;
    if (args->kind != SOQ_ROPE_INTERLEAVED && args->kind != SOQ_ROPE_HALF)
        return opencl_refuse(ocl, SOQ_OP_ROPE, SOQ_EUNSUPPORTED, "kind %u", args->kind);
    if (args->table.cols % 2 || args->table.cols > args->head_dim)
        return opencl_refuse(ocl, SOQ_OP_ROPE, SOQ_EINVAL, "n_rot %u must be even and at most the head's %u", args->table.cols,
                             args->head_dim);
    if (opencl_check_view(ocl, SOQ_OP_ROPE, "x", &args->x, args->x.rows, args->n_heads * args->head_dim) ||
        opencl_check_view(ocl, SOQ_OP_ROPE, "table", &args->table, args->x.rows, args->table.cols))
        return ocl->failed;
    call = opencl_call(ocl, SOQ_OP_ROPE, ocl->ops, OPENCL_K_rope);
    opencl_arg_u32(&call, args->kind);
    opencl_arg_u32(&call, args->n_heads);
    opencl_arg_u32(&call, args->head_dim);
    opencl_arg_u32(&call, n_pairs);
    opencl_arg_view(&call, &args->x);
    opencl_arg_view(&call, &args->table);
    return opencl_launch_items(&call, (uint64_t)args->n_heads * n_pairs, args->x.rows);
}

static int activation(void *self, const struct soq_activation_args *args)
{
    struct opencl *ocl = self;
    uint32_t rows = args->y.rows, cols = args->y.cols;
    struct opencl_call call;

    if (ocl->failed)
        return ocl->failed;
    if (args->kind < SOQ_ACT_SILU || args->kind > SOQ_ACT_RELU)
        return opencl_refuse(ocl, SOQ_OP_ACTIVATION, SOQ_EUNSUPPORTED, "kind %u", args->kind);
    if (opencl_check_view(ocl, SOQ_OP_ACTIVATION, "gate", &args->gate, rows, cols) ||
        (args->up.buffer && opencl_check_view(ocl, SOQ_OP_ACTIVATION, "up", &args->up, rows, cols)) ||
        opencl_check_view(ocl, SOQ_OP_ACTIVATION, "y", &args->y, rows, cols))
        return ocl->failed;
    call = opencl_call(ocl, SOQ_OP_ACTIVATION, ocl->ops, OPENCL_K_activation);
    opencl_arg_u32(&call, args->kind);
    opencl_arg_u32(&call, cols);
    opencl_arg_view(&call, &args->gate);
    opencl_arg_view(&call, &args->up);
    opencl_arg_view(&call, &args->y);
    return opencl_launch_items(&call, cols, rows);
}

static int add(void *self, const struct soq_add_args *args)
{
    struct opencl *ocl = self;
    uint32_t rows = args->y.rows, cols = args->y.cols;
    struct opencl_call call;

    if (ocl->failed)
        return ocl->failed;
    if (opencl_check_view(ocl, SOQ_OP_ADD, "a", &args->a, rows, cols) ||
        opencl_check_view(ocl, SOQ_OP_ADD, "b", &args->b, rows, cols) ||
        opencl_check_view(ocl, SOQ_OP_ADD, "y", &args->y, rows, cols))
        return ocl->failed;
    call = opencl_call(ocl, SOQ_OP_ADD, ocl->ops, OPENCL_K_add);
    opencl_arg_u32(&call, cols);
    opencl_arg_view(&call, &args->a);
    opencl_arg_view(&call, &args->b);
    opencl_arg_view(&call, &args->y);
    return opencl_launch_items(&call, cols, rows);
}

static int scale(void *self, const struct soq_scale_args *args)
{
    struct opencl *ocl = self;
    struct opencl_call call;

    if (ocl->failed)
        return ocl->failed;
    if (opencl_check_view(ocl, SOQ_OP_SCALE, "x", &args->x, args->x.rows, args->x.cols))
        return ocl->failed;
    call = opencl_call(ocl, SOQ_OP_SCALE, ocl->ops, OPENCL_K_scale);
    opencl_arg_u32(&call, args->x.cols);
    opencl_arg_f32(&call, args->scale);
    opencl_arg_f32(&call, args->cap);
    opencl_arg_view(&call, &args->x);
    return opencl_launch_items(&call, args->x.cols, args->x.rows);
}

static int gather(void *self, const struct soq_gather_args *args)
{
    struct opencl *ocl = self;
    struct opencl_call call;

    if (ocl->failed)
        return ocl->failed;
    if (opencl_check_view(ocl, SOQ_OP_GATHER, "x", &args->x, ocl->step->n_rows, args->x.cols) ||
        opencl_check_view(ocl, SOQ_OP_GATHER, "y", &args->y, ocl->step->n_outputs, args->x.cols))
        return ocl->failed;
    call = opencl_call(ocl, SOQ_OP_GATHER, ocl->ops, OPENCL_K_gather);
    opencl_arg_mem(&call, ocl->device_step);
    opencl_arg_u32(&call, args->x.cols);
    opencl_arg_view(&call, &args->x);
    opencl_arg_view(&call, &args->y);
    return opencl_launch_items(&call, args->x.cols, ocl->step->n_outputs);
}

const struct soq_elementwise_ops opencl_elementwise_ops = {
    .struct_size = sizeof opencl_elementwise_ops,
    .embed = embed,
    .norm = norm,
    .rope_table = rope_table,
    .rope = rope,
    .activation = activation,
    .add = add,
    .scale = scale,
    .gather = gather,
};
