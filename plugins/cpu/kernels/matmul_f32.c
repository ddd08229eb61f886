/* y = W x in F32: dense weights, and the reference mode of quantised ones.
 *
 * Outputs are the lanes of a vector. Weights are widened as they are loaded (quantised ones a tile of inputs at a time, before)
 * and meet up to eight rows of x. Each output is summed up in the order of the inputs, whatever the number of rows. */
#include "cpu.h"
#include "simd/vec.h"
#include "soquete/dtype.h"
#include "weights.h"

enum { ROWS = 8 };

VEC_INLINE vf load_weights(uint32_t dtype, const uint8_t *p)
{
    return dtype == SOQ_DTYPE_F16 ? vf_from_f16(p) : dtype == SOQ_DTYPE_BF16 ? vf_from_bf16(p) : vf_load((const float *)p);
}

/* sums[rows][CPU_LANES] += w[n][CPU_LANES] * x[rows][n] */
VEC_INLINE void inputs_rows(uint32_t dtype, uint32_t rows, const uint8_t *w, uint32_t n, const float *const x[ROWS],
                            float *sums)
{
    size_t bytes = CPU_LANES * (dtype == SOQ_DTYPE_F32 ? 4 : 2);
    vf acc[ROWS];

    for (uint32_t r = 0; r < rows; r++)
        acc[r] = vf_load(sums + r * CPU_LANES);
    for (uint32_t k = 0; k < n; k++, w += bytes) {
        vf v = load_weights(dtype, w);

        for (uint32_t r = 0; r < rows; r++)
            acc[r] = vf_madd(v, vf_splat(x[r][k]), acc[r]);
    }
    for (uint32_t r = 0; r < rows; r++)
        vf_store(sums + r * CPU_LANES, acc[r]);
}

typedef void kernel(const uint8_t *w, uint32_t n, const float *const x[ROWS], float *sums);

#define KERNEL(name, dtype, rows)                                                                                              \
    static void name(const uint8_t *w, uint32_t n, const float *const x[ROWS], float *sums)                                    \
    {                                                                                                                          \
        inputs_rows(dtype, rows, w, n, x, sums);                                                                               \
    }
#define KERNELS(type)                                                                                                          \
    KERNEL(one_##type, SOQ_DTYPE_##type, 1)                                                                                    \
    KERNEL(full_##type, SOQ_DTYPE_##type, ROWS)
KERNELS(F32)
KERNELS(F16)
KERNELS(BF16)

static kernel *choose(uint32_t dtype, bool full)
{
    switch (dtype) {
    case SOQ_DTYPE_F16:
        return full ? full_F16 : one_F16;
    case SOQ_DTYPE_BF16:
        return full ? full_BF16 : one_BF16;
    default: /* F32, and what was expanded */
        return full ? full_F32 : one_F32;
    }
}

/* All rows of x, inputs [k, k + n). sums is [rows][CPU_LANES] with room for a whole number of ROWS. */
static void all_rows(const struct soq_view *x, uint32_t dtype, const uint8_t *w, uint32_t k, uint32_t n, float *sums)
{
    for (uint32_t r = 0; r < x->rows; r += ROWS) {
        const float *rows[ROWS];

        for (uint32_t i = 0; i < ROWS; i++)
            rows[i] = cpu_view_row(x, r + i < x->rows ? r + i : r) + k;
        choose(dtype, x->rows - r > 1)(w, n, rows, sums + (size_t)r * CPU_LANES);
    }
}

static size_t sums_bytes(const struct cpu *cpu)
{
    return ((size_t)cpu->params.max_rows + ROWS) * CPU_LANES * sizeof(float);
}

/* Scratch of a thread: sums [max_rows + ROWS][CPU_LANES], tile [CPU_TILE_K][CPU_LANES], and spans packed on the way. */
uint64_t cpu_matmul_scratch(const struct cpu *cpu)
{
    return sums_bytes(cpu) + CPU_TILE_K * CPU_LANES * sizeof(float) + CPU_SPANS_BYTES;
}

void cpu_run_matmul(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_matmul_args *args = &op->args.matmul;
    const struct cpu_weight *weight = cpu_weight(args->weight);
    const struct cpu_format *format = weight->format;
    float *sums = (float *)thread->scratch;
    float *tile = (float *)(thread->scratch + sums_bytes(cpu));
    uint8_t *spans = (uint8_t *)(tile + CPU_TILE_K * CPU_LANES);
    uint64_t first, last;

    cpu_share(thread, ((uint64_t)weight->rows + CPU_LANES - 1) / CPU_LANES, &first, &last);
    for (uint64_t group = first; group < last; group++) {
        memset(sums, 0, ((size_t)args->x.rows + ROWS) * CPU_LANES * sizeof(float));
        for (uint32_t k = 0; k < weight->cols; k += CPU_TILE_K) {
            uint32_t n = weight->cols - k < CPU_TILE_K ? weight->cols - k : CPU_TILE_K;
            const uint8_t *packed = cpu_weight_spans(weight, group, k / format->elements, n / format->elements, spans);

            if (format->decode) {
                cpu_expand(format, packed, n, tile);
                packed = (const uint8_t *)tile;
            }
            all_rows(&args->x, format->dtype, packed, k, n, sums);
        }
        cpu_store_outputs(args, 0, args->x.rows, group, sums);
    }
}
