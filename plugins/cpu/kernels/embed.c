/* y[r] = scale * W[token of row r], from the source or from one lane of the packed weights. */
#include "cpu.h"
#include "simd/vec.h"

/* Inputs [k, k + n) of a row, as tile[n][16], at the lane that is returned. */
static uint32_t expand_row(const struct cpu_weight *weight, uint32_t row, uint32_t k, uint32_t n, uint8_t *spans, float *tile)
{
    const struct cpu_format *format = weight->format;
    const uint8_t *rows[CPU_LANES] = {NULL};

    if (weight->packed) {
        cpu_expand(format,
                   weight->packed + row / CPU_LANES * weight->group_bytes + k / format->elements * cpu_span_bytes(format), n,
                   tile);
        return row % CPU_LANES;
    }
    rows[0] = weight->source + row * weight->row_bytes + (size_t)(k / format->elements) * format->bytes;
    cpu_pack(format, rows, n / format->elements, spans);
    cpu_expand(format, spans, n, tile);
    return 0;
}

void cpu_run_embed(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_embed_args *args = &op->args.embed;
    const struct cpu_weight *weight = cpu_weight(args->weight);
    float *tile = (float *)thread->scratch;
    uint8_t *spans = (uint8_t *)(tile + CPU_TILE_K * CPU_LANES);
    uint64_t first, last;

    cpu_share(thread, args->y.rows, &first, &last);
    for (uint64_t r = first; r < last; r++) {
        uint32_t token = (uint32_t)step_rows(cpu->step)[r].token;
        float *y = cpu_view_row(&args->y, (uint32_t)r);

        for (uint32_t k = 0; k < weight->cols; k += CPU_TILE_K) {
            uint32_t n = weight->cols - k < CPU_TILE_K ? weight->cols - k : CPU_TILE_K;
            uint32_t lane = expand_row(weight, token, k, n, spans, tile);

            for (uint32_t i = 0; i < n; i++)
                y[k + i] = args->scale * tile[i * CPU_LANES + lane];
        }
    }
}
