/* Rotary position embedding: the step's table of angles, and the rotation. Angles are taken in F64: at position 100,000 an F32
 * angle would be off by 0.004. */
#include <math.h>

#include "cpu.h"

void cpu_run_rope_table(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_rope_table_args *args = &op->args.rope_table;
    const float *inv_freq = cpu_view_row(&args->inv_freq, 0);
    uint64_t first, last;

    cpu_share(thread, args->table.rows, &first, &last);
    for (uint64_t r = first; r < last; r++) {
        double position = step_rows(cpu->step)[r].position;
        float *table = cpu_view_row(&args->table, (uint32_t)r);

        for (uint32_t i = 0; i < args->table.cols / 2; i++) {
            double sine, cosine;

            sincos(position * (double)inv_freq[i], &sine, &cosine);
            table[2 * i] = (float)(args->mscale * cosine);
            table[2 * i + 1] = (float)(args->mscale * sine);
        }
    }
}

/* x[a(i)], x[b(i)] for pair i, a(i) = i * step, b(i) = a(i) + apart. */
static void rotate(float *x, const float *table, uint32_t n_pairs, uint32_t step, uint32_t apart)
{
    for (uint32_t i = 0; i < n_pairs; i++) {
        float *a = x + i * step, *b = a + apart;
        float cosine = table[2 * i], sine = table[2 * i + 1], x0 = *a, x1 = *b;

        *a = x0 * cosine - x1 * sine;
        *b = x0 * sine + x1 * cosine;
    }
}

void cpu_run_rope(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_rope_args *args = &op->args.rope;
    uint32_t n_pairs = args->table.cols / 2;
    bool half = args->kind == SOQ_ROPE_HALF;
    uint64_t first, last;

    (void)cpu;
    cpu_share(thread, args->x.rows, &first, &last);
    for (uint64_t r = first; r < last; r++)
        for (uint32_t h = 0; h < args->n_heads; h++)
            rotate(cpu_view_row(&args->x, (uint32_t)r) + (size_t)h * args->head_dim, cpu_view_row(&args->table, (uint32_t)r),
                   n_pairs, half ? 1 : 2, half ? n_pairs : 1);
}
