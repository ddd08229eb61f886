/* Activations to 8 bits: blocks of 32 with one scale, rounded to nearest even. Sums of the rounded values serve weights that
 * have a minimum or a zero point. Infinity and NaN make the block's scale NaN or infinite, so they reach the result; its codes
 * are 0 then. */
#include "cpu.h"
#include "simd/vec.h"

/* Place `lane` of a block of `width` rows. */
VEC_INLINE void quantise_block(const float *x, uint32_t width, uint32_t lane, uint8_t *block)
{
    float *headers = (float *)(block + (size_t)CPU_BLOCK * width);
    i32x8 largest = i32x8_splat(0), values[4];
    int32_t bits, finite, first, second;
    float amax, inverse, scale;

    for (int i = 0; i < 4; i++)
        largest = i32x8_max(largest, (i32x8)f32x8_load(x + i * 8) & 0x7fffffff);
    bits = i32x8_largest(largest);
    memcpy(&amax, &bits, sizeof amax);
    finite = -(bits < 0x7f800000); /* all bits or none */
    scale = amax / 127.0f;
    inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t codes[8];

        values[i] = i32x8_round(f32x8_load(x + i * 8) * f32x8_splat(inverse)) & finite;
        i32x8_store_i8(codes, values[i]);
        memcpy(block + ((2 * i) * width + lane) * 4, codes, 4);
        memcpy(block + ((2 * i + 1) * width + lane) * 4, codes + 4, 4);
    }
    first = -i32x8_sum(values[0] + values[1]);
    second = -i32x8_sum(values[2] + values[3]);
    headers[lane] = scale;
    headers[width + lane] = -scale * (float)(first + second);
    memcpy(headers + 2 * width + lane, &(int32_t){first + second}, 4);
    memcpy(headers + 3 * width + lane, &first, 4);
    memcpy(headers + 4 * width + lane, &second, 4);
}

void cpu_quantise_row(const float *x, uint32_t n, uint32_t width, uint32_t lane, uint8_t *strip)
{
    for (uint32_t i = 0; i < n / CPU_BLOCK; i++, strip += (size_t)CPU_Q8_BYTES * width)
        quantise_block(x + i * CPU_BLOCK, width, lane, strip);
}

/* The sum of eight bytes in each lane of four vectors, two to a 16-bit number until the end. */
VEC_INLINE i32x8 sum_bytes(const i32x8 v[4])
{
    typedef int16_t i16_pairs __attribute__((vector_size(32)));
    i16_pairs sum = {0};

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        sum += ((i16_pairs)((i16_pairs)v[i] << 8) >> 8) + ((i16_pairs)v[i] >> 8);
    return ((i32x8)sum << 16 >> 16) + ((i32x8)sum >> 16);
}

/* A block of all eight rows of a strip: what is one number of each row is computed for all at once. */
VEC_INLINE void quantise_block8(const float *const rows[8], uint32_t k, uint8_t *block)
{
    uint8_t *headers = block + 8 * CPU_BLOCK;
    i32x8 largest[8], codes[8], amax, first, second;
    f32x8 inverse, scale;

#pragma GCC unroll 8
    for (uint32_t r = 0; r < 8; r++) {
        largest[r] = i32x8_splat(0);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++)
            largest[r] = i32x8_max(largest[r], (i32x8)f32x8_load(rows[r] + k + i * 8) & 0x7fffffff);
    }
    i32x8_transpose(largest);
    amax = largest[0];
#pragma GCC unroll 8
    for (uint32_t r = 1; r < 8; r++)
        amax = i32x8_max(amax, largest[r]);
    scale = (f32x8)amax / f32x8_splat(127.0f);
    inverse = (f32x8)((i32x8)(f32x8_splat(127.0f) / (f32x8)amax) & ((f32x8)amax > f32x8_splat(0.0f)) & (amax < 0x7f800000));
#pragma GCC unroll 8
    for (uint32_t r = 0; r < 8; r++) {
        i32x8 values[4];

#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++)
            values[i] = i32x8_round(f32x8_load(rows[r] + k + i * 8) * f32x8_splat(inverse[r])) & -(amax[r] < 0x7f800000);
        codes[r] = i32x8_pack_i8(values);
    }
    i32x8_transpose(codes);
#pragma GCC unroll 8
    for (uint32_t step = 0; step < 8; step++)
        i32x8_store(block + step * 32, codes[step]);
    first = -sum_bytes(codes);
    second = -sum_bytes(codes + 4);
    f32x8_store((float *)headers, scale);
    f32x8_store((float *)(headers + 32), -scale * f32x8_from_i32(first + second));
    i32x8_store(headers + 64, first + second);
    i32x8_store(headers + 96, first);
    i32x8_store(headers + 128, second);
}

void cpu_quantise_strip(const float *const rows[8], uint32_t n, uint8_t *strip)
{
    for (uint32_t k = 0; k < n; k += CPU_BLOCK, strip += (size_t)CPU_Q8_BYTES * 8)
        quantise_block8(rows, k, strip);
}

void cpu_clear_lanes(uint32_t n, uint32_t width, uint32_t first, uint8_t *strip)
{
    for (uint32_t i = 0; i < n / CPU_BLOCK; i++, strip += (size_t)CPU_Q8_BYTES * width) {
        float *headers = (float *)(strip + (size_t)CPU_BLOCK * width);

        for (uint32_t header = 0; header < 5; header++)
            memset(headers + header * width + first, 0, (width - first) * sizeof *headers);
    }
}
