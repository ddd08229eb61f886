/* Matrix products: arguments checked, kernel chosen. */
#include "opencl.h"

static int matmul(void *self, const struct soq_matmul_args *args)
{
    struct opencl *ocl = self;
    const struct opencl_weight *weight = opencl_weight(args->weight);
    bool few = args->x.rows <= OPENCL_MATVEC_ROWS;
    struct opencl_call call;

    if (ocl->failed)
        return ocl->failed;
    if (!weight || !weight->program || !(weight->uses & SOQ_USE_MATMUL))
        return opencl_refuse(ocl, SOQ_OP_MATMUL, SOQ_EINVAL, "%s was not prepared as a matrix",
                             weight ? weight->name : "weight 0");
    if (opencl_check_view(ocl, SOQ_OP_MATMUL, "x", &args->x, args->x.rows, weight->cols) ||
        opencl_check_view(ocl, SOQ_OP_MATMUL, "y", &args->y, args->x.rows, weight->rows) ||
        opencl_check_vector(ocl, SOQ_OP_MATMUL, "bias", args->bias, weight->rows, true))
        return ocl->failed;
    call = opencl_call(ocl, SOQ_OP_MATMUL, weight->program, few ? OPENCL_K_matvec : OPENCL_K_matmul);
    opencl_arg_mem(&call, weight->data);
    opencl_arg_u64(&call, weight->row_bytes);
    opencl_arg_u32(&call, weight->rows);
    opencl_arg_u32(&call, weight->cols);
    opencl_arg_view(&call, &args->x);
    opencl_arg_vector(&call, args->bias);
    opencl_arg_view(&call, &args->y);
    opencl_arg_u32(&call, args->accumulate);
    if (few)
        return opencl_launch_groups(&call, (weight->rows + OPENCL_TILE - 1) / OPENCL_TILE, args->x.rows, 1);
    opencl_arg_u32(&call, args->x.rows);
    return opencl_launch_groups(&call, (weight->rows + OPENCL_TILE - 1) / OPENCL_TILE,
                                (args->x.rows + OPENCL_TILE - 1) / OPENCL_TILE, 1);
}

const struct soq_matmul_ops opencl_matmul_ops = {
    .struct_size = sizeof opencl_matmul_ops,
    .matmul = matmul,
};
