/* Packed weights -> F32, [input][outputs]: the reference mode's weights, and rows of an embedding. */
#include "formats.h"
#include "simd/vec.h"
#include "soquete/dtype.h"

enum { VECTOR = sizeof(vb) };

/* The bytes of one step (4 inputs of all outputs) of a block. */
static vb step_codes(const struct cpu_format *format, const uint8_t *codes, uint32_t step)
{
    vb low;
    uint32_t extra, plane;

    if (format->code_bits == 8)
        return vb_load(codes + step * VECTOR);
    low = vb_load(codes + step % 4 * VECTOR);
    low = step < 4 ? low & 15 : vb_high_nibbles(low);
    if (format->lookup)
        return vb_lookup(cpu_iq4_values, low);
    extra = format->code_bits - 4u;
    if (!extra)
        return low;
    plane = 4 + step * extra / 8;
    return low | (vb_shift_to_4(vb_load(codes + plane * VECTOR), step * extra % 8) & (uint8_t)(((1 << extra) - 1) << 4));
}

static void expand_block(const struct cpu_format *format, const uint8_t *block, vf d, vf m, float *tile)
{
    const uint8_t *mins = block + CPU_LANES * format->n_sub;
    const uint8_t *codes = mins + (format->has_min ? CPU_LANES * format->n_sub : 0);

    for (uint32_t step = 0; step < 8; step++) {
        vi bytes = (vi)step_codes(format, codes, step);
        vf scale = d, offset = m;

        if (format->n_sub) {
            uint32_t sub = step * format->n_sub / 8;

            scale = d * vf_from_i32(vi_from_i8(block + CPU_LANES * sub));
            if (format->has_min)
                offset = -(m * vf_from_i32(vi_from_u8(mins + CPU_LANES * sub)));
        }
        for (uint32_t j = 0; j < 4; j++) {
            vf w = scale * vf_from_i32((bytes >> 8 * j & 255) - vi_splat(format->zero));

            vf_store(tile + (step * 4 + j) * CPU_LANES, format->has_min ? w + offset : w);
        }
    }
}

static void expand_plain(const struct cpu_format *format, const uint8_t *packed, uint32_t n, float *tile)
{
    if (format->dtype == SOQ_DTYPE_F32)
        memcpy(tile, packed, (size_t)n * CPU_LANES * sizeof *tile);
    else if (format->dtype == SOQ_DTYPE_F16)
        for (uint32_t i = 0; i < n * CPU_LANES; i += CPU_LANES)
            vf_store(tile + i, vf_from_f16(packed + i * 2));
    else
        for (uint32_t i = 0; i < n * CPU_LANES; i += CPU_LANES)
            vf_store(tile + i, vf_from_bf16(packed + i * 2));
}

static void expand_span(const struct cpu_format *format, const uint8_t *span, float *tile)
{
    size_t block_bytes = cpu_block_bytes(format);
    vf d = vf_from_f16(span);
    vf m = format->has_min ? vf_from_f16(span + 2 * CPU_LANES) : vf_splat(0.0f);
    const uint8_t *block = span + CPU_LANES * (format->has_min ? 4 : 2);

    for (uint32_t b = 0; b < format->elements / CPU_BLOCK; b++)
        expand_block(format, block + b * block_bytes, d, m, tile + b * CPU_BLOCK * CPU_LANES);
}

void cpu_expand(const struct cpu_format *format, const uint8_t *packed, uint32_t n, float *tile)
{
    size_t span_bytes = cpu_span_bytes(format);

    if (!format->decode) {
        expand_plain(format, packed, n, tile);
        return;
    }
    for (uint32_t k = 0; k < n; k += format->elements, packed += span_bytes)
        expand_span(format, packed, tile + k * CPU_LANES);
}
