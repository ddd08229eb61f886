/* RMS and layer norm over runs of `width` columns: y = (x - mean) / sqrt(mean square + eps) * weight + bias. Sums are taken in
 * eight lanes, in order, the rest one by one. */
#include <math.h>

#include "cpu.h"
#include "simd/vec.h"

static float sum_of(const float *x, uint32_t n)
{
    f32x8 sum = f32x8_splat(0.0f);
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        sum += f32x8_load(x + i);
    return f32x8_sum(sum + f32x8_load_n(x + i, n - i));
}

static float squares_of(const float *x, uint32_t n, float mean)
{
    f32x8 sum = f32x8_splat(0.0f), m = f32x8_splat(mean);
    float rest = 0.0f;
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        f32x8 v = f32x8_load(x + i) - m;

        sum = f32x8_madd(v, v, sum);
    }
    for (; i < n; i++)
        rest += (x[i] - mean) * (x[i] - mean);
    return f32x8_sum(sum) + rest;
}

/* (x - mean) * factor * weight + bias of eight columns, or of n < 8 of them. */
VEC_INLINE f32x8 normalise(f32x8 x, float mean, float factor, const float *weight, const float *bias, uint32_t n)
{
    f32x8 v = (x - f32x8_splat(mean)) * f32x8_splat(factor);

    if (weight)
        v *= n < 8 ? f32x8_load_n(weight, n) : f32x8_load(weight);
    if (bias)
        v += n < 8 ? f32x8_load_n(bias, n) : f32x8_load(bias);
    return v;
}

static void norm_run(const struct soq_norm_args *args, const float *x, float *y)
{
    const float *weight = cpu_vector(args->weight), *bias = cpu_vector(args->bias);
    uint32_t n = args->width, i = 0;
    float mean = args->kind == SOQ_NORM_LAYER ? sum_of(x, n) / (float)n : 0.0f;
    float factor = 1.0f / sqrtf(squares_of(x, n, mean) / (float)n + args->eps);

    for (; i + 8 <= n; i += 8)
        f32x8_store(y + i, normalise(f32x8_load(x + i), mean, factor, weight ? weight + i : NULL, bias ? bias + i : NULL, 8));
    if (i < n)
        f32x8_store_n(
            y + i,
            normalise(f32x8_load_n(x + i, n - i), mean, factor, weight ? weight + i : NULL, bias ? bias + i : NULL, n - i),
            n - i);
}

void cpu_run_norm(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_norm_args *args = &op->args.norm;
    uint64_t first, last;

    (void)cpu;
    cpu_share(thread, args->x.rows, &first, &last);
    for (uint64_t r = first; r < last; r++)
        for (uint32_t c = 0; c < args->x.cols; c += args->width)
            norm_run(args, cpu_view_row(&args->x, (uint32_t)r) + c, cpu_view_row(&args->y, (uint32_t)r) + c);
}
