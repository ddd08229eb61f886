/* Where both matrix kernels end: bias, accumulation, store. */
#include "cpu.h"
#include "simd/vec.h"

/* All lanes, or the first n of them: the last group's outputs may be fewer. */
VEC_INLINE vf load(const float *p, uint32_t n)
{
    return n < CPU_LANES ? vf_load_n(p, n) : vf_load(p);
}

VEC_INLINE void store(float *p, vf v, uint32_t n)
{
    if (n < CPU_LANES)
        vf_store_n(p, v, n);
    else
        vf_store(p, v);
}

void cpu_store_outputs(const struct soq_matmul_args *args, uint32_t first_row, uint32_t n_rows, uint64_t group,
                       const float *sums)
{
    const float *bias = cpu_vector(args->bias);
    uint32_t first = (uint32_t)group * CPU_LANES, n = args->y.cols - first;
    vf more = bias ? load(bias + first, n) : vf_splat(-0.0f);

    for (uint32_t r = 0; r < n_rows; r++) {
        float *y = cpu_view_row(&args->y, first_row + r) + first;
        vf sum = vf_load(sums + r * CPU_LANES) + more;

        store(y, args->accumulate ? load(y, n) + sum : sum, n);
    }
}
