/* x = x * scale, then cap * tanh(x / cap): logit scaling and soft caps. */
#include "cpu.h"
#include "simd/vec.h"

VEC_INLINE f32x8 scaled(f32x8 x, float scale, float cap)
{
    x *= f32x8_splat(scale);
    return cap > 0.0f ? f32x8_splat(cap) * f32x8_tanh(x / f32x8_splat(cap)) : x;
}

static void scale_row(float *x, uint32_t n, float scale, float cap)
{
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        f32x8_store(x + i, scaled(f32x8_load(x + i), scale, cap));
    if (i < n)
        f32x8_store_n(x + i, scaled(f32x8_load_n(x + i, n - i), scale, cap), n - i);
}

void cpu_run_scale(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_scale_args *args = &op->args.scale;
    uint64_t first, last;

    (void)cpu;
    cpu_share(thread, args->x.rows, &first, &last);
    for (uint64_t r = first; r < last; r++)
        scale_row(cpu_view_row(&args->x, (uint32_t)r), args->x.cols, args->scale, args->cap);
}
