/* Packed weights -> F32, [input][16 outputs]: the reference mode's weights, and rows of an embedding. */
#include "formats.h"
#include "simd/vec.h"
#include "soquete/dtype.h"

/* The bytes of one step (4 inputs of 8 outputs) of a block. */
static u8x32 step_codes(const struct cpu_format *format, const uint8_t *codes, uint32_t step)
{
    u8x32 low;
    uint32_t extra, plane;

    if (format->code_bits == 8)
        return u8x32_load(codes + step * 32);
    low = u8x32_load(codes + step % 4 * 32);
    low = step < 4 ? low & 15 : low >> 4;
    if (format->lookup)
        return u8x32_lookup(cpu_iq4_values, low);
    extra = format->code_bits - 4u;
    if (!extra)
        return low;
    plane = step * extra / 8;
    return low | (u8x32_load(codes + 128 + plane * 32) >> (uint8_t)(step * extra % 8) & (uint8_t)((1 << extra) - 1)) << 4;
}

static void expand_block(const struct cpu_format *format, const uint8_t *block, f32x8 d, f32x8 m, float *tile)
{
    const uint8_t *mins = block + 8 * format->n_sub;
    const uint8_t *codes = mins + (format->has_min ? 8 * format->n_sub : 0);

    for (uint32_t step = 0; step < 8; step++) {
        u32x8 bytes = (u32x8)step_codes(format, codes, step);
        f32x8 scale = d, offset = m;

        if (format->n_sub) {
            uint32_t sub = step * format->n_sub / 8;

            scale = d * f32x8_from_i32(i32x8_from_i8(block + 8 * sub));
            if (format->has_min)
                offset = -(m * f32x8_from_i32(i32x8_from_u8(mins + 8 * sub)));
        }
        for (uint32_t j = 0; j < 4; j++) {
            i32x8 code = (i32x8)(bytes >> 8 * j & 255) - i32x8_splat(format->zero);
            f32x8 w = scale * f32x8_from_i32(code);

            f32x8_store(tile + (step * 4 + j) * CPU_GROUP_ROWS, format->has_min ? w + offset : w);
        }
    }
}

static void expand_plain(const struct cpu_format *format, const uint8_t *packed, uint32_t n, float *tile)
{
    if (format->dtype == SOQ_DTYPE_F32)
        memcpy(tile, packed, (size_t)n * CPU_GROUP_ROWS * sizeof *tile);
    else if (format->dtype == SOQ_DTYPE_F16)
        for (uint32_t i = 0; i < n * CPU_GROUP_ROWS; i += CPU_LANES)
            f32x8_store(tile + i, f32x8_from_f16(packed + i * 2));
    else
        for (uint32_t i = 0; i < n * CPU_GROUP_ROWS; i += CPU_LANES)
            f32x8_store(tile + i, f32x8_from_bf16(packed + i * 2));
}

static void expand_span(const struct cpu_format *format, const uint8_t *span, float *tile)
{
    size_t block_bytes = cpu_block_bytes(format);
    f32x8 d = f32x8_from_f16(span);
    f32x8 m = format->has_min ? f32x8_from_f16(span + 16) : f32x8_splat(0.0f);
    const uint8_t *block = span + (format->has_min ? 32 : 16);

    for (uint32_t b = 0; b < format->elements / CPU_BLOCK; b++)
        expand_block(format, block + b * block_bytes, d, m, tile + b * CPU_BLOCK * CPU_GROUP_ROWS);
}

void cpu_expand(const struct cpu_format *format, const uint8_t *packed, uint32_t n, float *tile)
{
    size_t span_bytes = cpu_span_bytes(format);

    if (!format->decode) {
        expand_plain(format, packed, n, tile);
        return;
    }
    for (uint32_t k = 0; k < n; k += format->elements, packed += 2 * span_bytes) {
        expand_span(format, packed, tile + k * CPU_GROUP_ROWS);
        expand_span(format, packed + span_bytes, tile + k * CPU_GROUP_ROWS + CPU_LANES);
    }
}
