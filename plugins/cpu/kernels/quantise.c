/* Activations to 8 bits: blocks of 32 with one scale, rounded to nearest even. Sums of the rounded values serve weights that
 * have a minimum or a zero point. Infinity and NaN make the block's scale NaN or infinite, so they reach the result. */
#include "cpu.h"
#include "simd/vec.h"

static void quantise_block(const float *x, int8_t *codes, struct cpu_q8_header *header)
{
    i32x8 largest = i32x8_splat(0), sum[4];
    int32_t lanes[8], bits = 0, first, second;
    float amax, inverse;

    for (int i = 0; i < 4; i++)
        largest = i32x8_max(largest, (i32x8)f32x8_load(x + i * 8) & 0x7fffffff);
    memcpy(lanes, &largest, sizeof lanes);
    for (int i = 0; i < 8; i++)
        bits = lanes[i] > bits ? lanes[i] : bits;
    memcpy(&amax, &bits, sizeof amax);
    header->scale = amax / 127.0f;
    inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    for (int i = 0; i < 4; i++) {
        sum[i] = i32x8_round(f32x8_load(x + i * 8) * f32x8_splat(inverse));
        i32x8_store_i8(codes + i * 8, sum[i]);
    }
    first = i32x8_sum(sum[0] + sum[1]);
    second = i32x8_sum(sum[2] + sum[3]);
    header->half[0] = header->scale * (float)first;
    header->half[1] = header->scale * (float)second;
    header->sum = header->scale * (float)(first + second);
}

void cpu_quantise_row(const float *x, uint32_t n, int8_t *codes, struct cpu_q8_header *headers)
{
    for (uint32_t i = 0; i < n / CPU_BLOCK; i++)
        quantise_block(x + i * CPU_BLOCK, codes + i * CPU_BLOCK, headers + i);
}
