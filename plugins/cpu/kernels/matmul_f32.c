/* y = W x in F32: dense weights, and the reference mode of quantised ones.
 *
 * Sixteen outputs are two vectors. Their weights are expanded to F32 a tile of inputs at a time and meet up to four rows of x.
 * Each output is summed up in the order of the inputs, whatever the number of rows. */
#include "cpu.h"
#include "simd/vec.h"
#include "weights.h"

enum { ROWS = 4 };

/* sums[rows][16] += tile[n][16] * x[rows][n] */
VEC_INLINE void tile_rows(uint32_t rows, const float *tile, uint32_t n, const float *const x[ROWS], float *sums)
{
    f32x8 acc[ROWS][2];

    for (uint32_t r = 0; r < rows; r++) {
        acc[r][0] = f32x8_load(sums + r * CPU_GROUP_ROWS);
        acc[r][1] = f32x8_load(sums + r * CPU_GROUP_ROWS + CPU_LANES);
    }
    for (uint32_t k = 0; k < n; k++, tile += CPU_GROUP_ROWS) {
        f32x8 w0 = f32x8_load(tile), w1 = f32x8_load(tile + CPU_LANES);

        for (uint32_t r = 0; r < rows; r++) {
            f32x8 xs = f32x8_splat(x[r][k]);

            acc[r][0] = f32x8_madd(w0, xs, acc[r][0]);
            acc[r][1] = f32x8_madd(w1, xs, acc[r][1]);
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        f32x8_store(sums + r * CPU_GROUP_ROWS, acc[r][0]);
        f32x8_store(sums + r * CPU_GROUP_ROWS + CPU_LANES, acc[r][1]);
    }
}

static void tile_all_rows(const struct soq_view *x, const float *tile, uint32_t first_k, uint32_t n, float *sums)
{
    uint32_t r = 0;

    for (; r + ROWS <= x->rows; r += ROWS) {
        const float *rows[ROWS] = {cpu_view_row(x, r) + first_k, cpu_view_row(x, r + 1) + first_k,
                                   cpu_view_row(x, r + 2) + first_k, cpu_view_row(x, r + 3) + first_k};

        tile_rows(ROWS, tile, n, rows, sums + r * CPU_GROUP_ROWS);
    }
    for (; r < x->rows; r++) {
        const float *rows[ROWS] = {cpu_view_row(x, r) + first_k};

        tile_rows(1, tile, n, rows, sums + r * CPU_GROUP_ROWS);
    }
}

static size_t sums_bytes(const struct cpu *cpu)
{
    return (size_t)cpu->params.max_rows * CPU_GROUP_ROWS * sizeof(float);
}

/* Scratch of a thread: sums [max_rows][16], tile [CPU_TILE_K][16], and spans packed on the way. */
uint64_t cpu_matmul_scratch(const struct cpu *cpu)
{
    return sums_bytes(cpu) + CPU_TILE_K * CPU_GROUP_ROWS * sizeof(float) + CPU_SPANS_BYTES;
}

void cpu_run_matmul(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_matmul_args *args = &op->args.matmul;
    const struct cpu_weight *weight = cpu_weight(args->weight);
    uint32_t elements = weight->format->elements;
    float *sums = (float *)thread->scratch;
    float *tile = (float *)(thread->scratch + sums_bytes(cpu));
    uint8_t *spans = (uint8_t *)(tile + CPU_TILE_K * CPU_GROUP_ROWS);
    uint64_t first, last;

    cpu_share(thread, ((uint64_t)weight->rows + CPU_GROUP_ROWS - 1) / CPU_GROUP_ROWS, &first, &last);
    for (uint64_t group = first; group < last; group++) {
        memset(sums, 0, (size_t)args->x.rows * CPU_GROUP_ROWS * sizeof(float));
        for (uint32_t k = 0; k < weight->cols; k += CPU_TILE_K) {
            uint32_t n = weight->cols - k < CPU_TILE_K ? weight->cols - k : CPU_TILE_K;
            const uint8_t *packed = cpu_weight_spans(weight, group, k / elements, n / elements, spans);

            cpu_expand(weight->format, packed, n, tile);
            tile_all_rows(&args->x, tile, k, n, sums);
        }
        cpu_store_outputs(args, 0, args->x.rows, group, sums);
    }
}
