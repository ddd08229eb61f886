/* Where both matrix kernels end: bias, accumulation, store. */
#include "cpu.h"
#include "simd/vec.h"

static void store_part(float *y, f32x8 sum, const float *bias, bool accumulate, uint32_t n)
{
    if (bias)
        sum += n < CPU_LANES ? f32x8_load_n(bias, n) : f32x8_load(bias);
    if (accumulate)
        sum = (n < CPU_LANES ? f32x8_load_n(y, n) : f32x8_load(y)) + sum;
    if (n < CPU_LANES)
        f32x8_store_n(y, sum, n);
    else
        f32x8_store(y, sum);
}

void cpu_store_outputs(const struct soq_matmul_args *args, uint32_t first_row, uint32_t n_rows, uint64_t group,
                       const float *sums)
{
    const float *bias = cpu_vector(args->bias);
    uint32_t first = (uint32_t)group * CPU_GROUP_ROWS;

    for (uint32_t part = 0; part < 2 && first < args->y.cols; part++, first += CPU_LANES, sums += CPU_LANES) {
        uint32_t n = args->y.cols - first < CPU_LANES ? args->y.cols - first : CPU_LANES;

        for (uint32_t r = 0; r < n_rows; r++)
            store_part(cpu_view_row(&args->y, first_row + r) + first, f32x8_load(sums + r * CPU_GROUP_ROWS),
                       bias ? bias + first : NULL, args->accumulate, n);
    }
}
