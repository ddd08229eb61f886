/* y = W x in F32: dense weights, and the reference mode of quantised ones.
 *
 * Eight outputs are the lanes. Their weights are expanded to F32 a tile of inputs at a time and meet up to four rows of x. Each
 * output has two sums, of the even and the odd inputs, added up in order whatever the number of rows. */
#include "cpu.h"
#include "simd/vec.h"
#include "weights.h"

enum { ROWS = 4 };

/* sums[rows][2][8] += tile[n][8] * x[rows][n] */
VEC_INLINE void tile_rows(uint32_t rows, const float *tile, uint32_t n, const float *const x[ROWS], float *sums)
{
    f32x8 even[ROWS], odd[ROWS];

    for (uint32_t r = 0; r < rows; r++) {
        even[r] = f32x8_load(sums + r * 16);
        odd[r] = f32x8_load(sums + r * 16 + 8);
    }
    for (uint32_t k = 0; k + 1 < n; k += 2)
        for (uint32_t r = 0; r < rows; r++) {
            even[r] = f32x8_madd(f32x8_load(tile + k * 8), f32x8_splat(x[r][k]), even[r]);
            odd[r] = f32x8_madd(f32x8_load(tile + k * 8 + 8), f32x8_splat(x[r][k + 1]), odd[r]);
        }
    for (uint32_t r = 0; r < rows; r++) {
        if (n % 2)
            even[r] = f32x8_madd(f32x8_load(tile + (n - 1) * 8), f32x8_splat(x[r][n - 1]), even[r]);
        f32x8_store(sums + r * 16, even[r]);
        f32x8_store(sums + r * 16 + 8, odd[r]);
    }
}

static void tile_all_rows(const struct soq_view *x, const float *tile, uint32_t first_k, uint32_t n, float *sums)
{
    uint32_t r = 0;

    for (; r + ROWS <= x->rows; r += ROWS) {
        const float *rows[ROWS] = {cpu_view_row(x, r) + first_k, cpu_view_row(x, r + 1) + first_k,
                                   cpu_view_row(x, r + 2) + first_k, cpu_view_row(x, r + 3) + first_k};

        tile_rows(ROWS, tile, n, rows, sums + r * 16);
    }
    for (; r < x->rows; r++) {
        const float *rows[ROWS] = {cpu_view_row(x, r) + first_k};

        tile_rows(1, tile, n, rows, sums + r * 16);
    }
}

/* [rows][2][8] -> [rows][8] */
static void add_pairs(float *sums, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++)
        f32x8_store(sums + r * 8, f32x8_load(sums + r * 16) + f32x8_load(sums + r * 16 + 8));
}

static size_t round_up(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Scratch of a thread: sums [max_rows][2][8], tile [CPU_TILE_K][8], and spans packed on the way. */
uint64_t cpu_matmul_scratch(const struct cpu *cpu)
{
    size_t rows = cpu->params.max_rows > 132 ? cpu->params.max_rows : 132;

    return round_up(rows * 16 * sizeof(float)) + CPU_TILE_K * 8 * sizeof(float) + CPU_TILE_K * 8 * 5;
}

void cpu_run_matmul(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_matmul_args *args = &op->args.matmul;
    const struct cpu_weight *weight = cpu_weight(args->weight);
    uint32_t elements = weight->format->elements;
    float *sums = (float *)thread->scratch;
    float *tile = (float *)(thread->scratch + round_up((size_t)cpu->params.max_rows * 16 * sizeof(float)));
    uint8_t *spans = (uint8_t *)(tile + CPU_TILE_K * 8);
    uint64_t first, last;

    cpu_share(thread, ((uint64_t)weight->rows + CPU_GROUP_ROWS - 1) / CPU_GROUP_ROWS, &first, &last);
    for (uint64_t group = first; group < last; group++) {
        memset(sums, 0, (size_t)args->x.rows * 16 * sizeof(float));
        for (uint32_t k = 0; k < weight->cols; k += CPU_TILE_K) {
            uint32_t n = weight->cols - k < CPU_TILE_K ? weight->cols - k : CPU_TILE_K;
            const uint8_t *packed = cpu_weight_spans(weight, group, k / elements, n / elements, spans);

            cpu_expand(weight->format, packed, n, tile);
            tile_all_rows(&args->x, tile, k, n, sums);
        }
        add_pairs(sums, args->x.rows);
        cpu_store_outputs(args, 0, args->x.rows, (uint32_t)group * CPU_GROUP_ROWS, sums);
    }
}
