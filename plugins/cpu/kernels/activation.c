/* y = act(gate) * up. The tanh form of GELU is x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
#include <math.h>

#include "cpu.h"
#include "simd/vec.h"

/* x * sigmoid(u) */
VEC_INLINE f32x8 gated(f32x8 x, f32x8 u)
{
    return x / (f32x8_splat(1.0f) + f32x8_exp(-u));
}

static f32x8 gelu_erf(f32x8 v)
{
    float x[8];

    f32x8_store(x, v);
    for (int i = 0; i < 8; i++)
        x[i] = 0.5f * x[i] * erfcf(-0.70710678f * x[i]);
    return f32x8_load(x);
}

VEC_INLINE f32x8 activate(uint32_t kind, f32x8 x)
{
    switch (kind) {
    case SOQ_ACT_SILU:
        return gated(x, x);
    case SOQ_ACT_GELU_TANH:
        return gated(x, x * f32x8_madd(x * x, f32x8_splat(2.0f * 0.79788456f * 0.044715f), f32x8_splat(2.0f * 0.79788456f)));
    case SOQ_ACT_GELU_ERF:
        return gelu_erf(x);
    default:
        return f32x8_max(f32x8_splat(0.0f), x);
    }
}

static void activate_row(uint32_t kind, const float *gate, const float *up, float *y, uint32_t n)
{
    uint32_t i = 0;
    f32x8 v;

    for (; i + 8 <= n; i += 8) {
        v = activate(kind, f32x8_load(gate + i));
        f32x8_store(y + i, up ? v * f32x8_load(up + i) : v);
    }
    if (i < n) {
        v = activate(kind, f32x8_load_n(gate + i, n - i));
        f32x8_store_n(y + i, up ? v * f32x8_load_n(up + i, n - i) : v, n - i);
    }
}

void cpu_run_activation(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_activation_args *args = &op->args.activation;
    uint64_t first, last;

    (void)cpu;
    cpu_share(thread, args->y.rows, &first, &last);
    for (uint64_t r = first; r < last; r++)
        activate_row(args->kind, cpu_view_row(&args->gate, (uint32_t)r),
                     args->up.buffer ? cpu_view_row(&args->up, (uint32_t)r) : NULL, cpu_view_row(&args->y, (uint32_t)r),
                     args->y.cols);
}
