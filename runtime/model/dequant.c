/* The block formats of GGUF, decoded. A comment before each function shows the block: d and m are float16 scales and minima, s
 * packed scales, q codes, h the upper bits of codes.
 *
 * Every value is computed with the float32 operations of the reference in its order, so that results are equal bit for bit. To
 * be compiled with -ffp-contract=off: a fused multiply-add would round once where the reference rounds twice. */
#include "model/dequant.h"

#include <stdint.h>
#include <string.h>

/* The non-uniform 4-bit code book of the IQ4 types. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static uint32_t load_u16(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

static uint32_t load_u32(const uint8_t *p)
{
    return load_u16(p) | load_u16(p + 2) << 16;
}

static float float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exact, with subnormals, infinities and NaN. */
static float load_f16(const uint8_t *p)
{
    uint32_t h = load_u16(p), sign = (h & 0x8000) << 16, exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;
    float subnormal = (float)mantissa * 0x1p-24f;

    if (exponent == 0)
        return sign ? -subnormal : subnormal;
    if (exponent == 0x1f)
        return float_of_bits(sign | 0x7f800000 | mantissa << 13);
    return float_of_bits(sign | (exponent - 15 + 127) << 23 | mantissa << 13);
}

/* Four bits of q: element i of 2 n in the low half of byte i, element i + n in its high half. */
static int nibble(const uint8_t *q, int i, int n)
{
    return i < n ? q[i] & 15 : q[i - n] >> 4;
}

static void dequant_f32(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++)
        out[b] = float_of_bits(load_u32(p + 4 * b));
}

static void dequant_f16(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++)
        out[b] = load_f16(p + 2 * b);
}

static void dequant_bf16(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++)
        out[b] = float_of_bits(load_u16(p + 2 * b) << 16);
}

/* d, q[16]: d (q - 8) */
static void dequant_q4_0(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 18, out += 32) {
        float d = load_f16(p);

        for (int i = 0; i < 32; i++)
            out[i] = d * (float)(nibble(p + 2, i, 16) - 8);
    }
}

/* d, m, q[16]: d q + m */
static void dequant_q4_1(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 20, out += 32) {
        float d = load_f16(p), m = load_f16(p + 2);

        for (int i = 0; i < 32; i++)
            out[i] = d * (float)nibble(p + 4, i, 16) + m;
    }
}

/* d, h[4], q[16]: d (q - 16), the fifth bit of element i is bit i of h */
static void dequant_q5_0(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 22, out += 32) {
        float d = load_f16(p);
        uint32_t h = load_u32(p + 2);

        for (int i = 0; i < 32; i++)
            out[i] = d * (float)((nibble(p + 6, i, 16) | (int)(h >> i & 1) << 4) - 16);
    }
}

/* d, m, h[4], q[16]: d q + m */
static void dequant_q5_1(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 24, out += 32) {
        float d = load_f16(p), m = load_f16(p + 2);
        uint32_t h = load_u32(p + 4);

        for (int i = 0; i < 32; i++)
            out[i] = d * (float)(nibble(p + 8, i, 16) | (int)(h >> i & 1) << 4) + m;
    }
}

/* d, q[32]: d q */
static void dequant_q8_0(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 34, out += 32) {
        float d = load_f16(p);

        for (int i = 0; i < 32; i++)
            out[i] = d * (float)(int8_t)p[2 + i];
    }
}

/* s[16], q[64], d, m. Sixteen groups of 16 elements; s holds 4 bits of scale and 4 of minimum for each. Each half of the block
 * has 32 bytes of q, whose bit pairs are four runs of 32 elements. */
static void dequant_q2_k(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 84, out += 256) {
        const uint8_t *q = p + 16;
        float d = load_f16(p + 80), m = load_f16(p + 82);

        for (int i = 0; i < 256; i++) {
            float scale = d * (float)(p[i / 16] & 15), minimum = m * (float)(p[i / 16] >> 4);
            int code = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;

            out[i] = scale * (float)code - minimum;
        }
    }
}

/* Scale g of 16 in twelve bytes: four low bits as nibbles, two high bits in the last four bytes. */
static int q3_k_scale(const uint8_t *s, int g)
{
    return nibble(s, g, 8) | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
}

/* h[32], q[64], s[12], d. Codes as in Q2_K; the third bit of element i is bit i / 32 of h[i % 32], and clear means - 4. */
static void dequant_q3_k(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 110, out += 256) {
        const uint8_t *q = p + 32;
        float d = load_f16(p + 108);

        for (int i = 0; i < 256; i++) {
            float scale = d * (float)(q3_k_scale(p + 96, i / 16) - 32);
            int code = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            int high = p[i % 32] >> (i / 32) & 1;

            out[i] = scale * (float)(code + 4 * high - 4);
        }
    }
}

/* Scale and minimum g of 8, six bits each, in twelve bytes: the last four come in nibbles, their high bits above the first. */
static void q45_k_scale(const uint8_t *s, int g, int *scale_out, int *minimum_out)
{
    if (g < 4) {
        *scale_out = s[g] & 63;
        *minimum_out = s[g + 4] & 63;
    } else {
        *scale_out = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        *minimum_out = s[g + 4] >> 4 | s[g] >> 6 << 4;
    }
}

/* d, m, s[12], q[128]. Eight groups of 32 elements; 32 bytes of q hold two groups, in their low and high halves. */
static void dequant_q4_k(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 144, out += 256) {
        float d = load_f16(p), m = load_f16(p + 2);

        for (int g = 0; g < 8; g++) {
            const uint8_t *q = p + 16 + g / 2 * 32;
            int s, min;
            float scale, minimum;

            q45_k_scale(p + 4, g, &s, &min);
            scale = d * (float)s;
            minimum = m * (float)min;
            for (int i = 0; i < 32; i++)
                out[32 * g + i] = scale * (float)nibble(q, g % 2 * 32 + i, 32) - minimum;
        }
    }
}

/* d, m, s[12], h[32], q[128]. As Q4_K; the fifth bit of element i in group g is bit g of h[i]. */
static void dequant_q5_k(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 176, out += 256) {
        const uint8_t *h = p + 16;
        float d = load_f16(p), m = load_f16(p + 2);

        for (int g = 0; g < 8; g++) {
            const uint8_t *q = p + 48 + g / 2 * 32;
            int s, min;
            float scale, minimum;

            q45_k_scale(p + 4, g, &s, &min);
            scale = d * (float)s;
            minimum = m * (float)min;
            for (int i = 0; i < 32; i++)
                out[32 * g + i] = scale * (float)(nibble(q, g % 2 * 32 + i, 32) | (h[i] >> g & 1) << 4) - minimum;
        }
    }
}

/* q[128], h[64], int8 s[16], d. Each half of the block: 64 bytes of q as nibbles of 128 elements, and 32 bytes of h, whose bit
 * pairs are the high bits of four runs of 32 elements. Sixteen groups of 16 have a scale each. */
static void dequant_q6_k(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 210, out += 256) {
        float d = load_f16(p + 208);

        for (int i = 0; i < 256; i++) {
            int half = i / 128, in_half = i % 128;
            int high = p[128 + half * 32 + i % 32] >> (in_half / 32 * 2) & 3;
            float scale = d * (float)(int8_t)p[192 + i / 16];

            out[i] = scale * (float)((nibble(p + half * 64, in_half, 64) | high << 4) - 32);
        }
    }
}

/* d, q[16]: d times an entry of the code book */
static void dequant_iq4_nl(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 18, out += 32) {
        float d = load_f16(p);

        for (int i = 0; i < 32; i++)
            out[i] = d * (float)iq4_values[nibble(p + 2, i, 16)];
    }
}

/* d, high scale bits u16, low scale nibbles[4], q[128]. Eight groups of 32 elements, each laid out like IQ4_NL. */
static void dequant_iq4_xs(const void *blocks, float *out, size_t n_blocks)
{
    const uint8_t *p = blocks;

    for (size_t b = 0; b < n_blocks; b++, p += 136, out += 256) {
        float d = load_f16(p);
        int high = (int)load_u16(p + 2);

        for (int g = 0; g < 8; g++) {
            int s = (p[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (2 * g) & 3) << 4;
            float scale = d * (float)(s - 32);

            for (int i = 0; i < 32; i++)
                out[32 * g + i] = scale * (float)iq4_values[nibble(p + 8 + 16 * g, i, 16)];
        }
    }
}

static soq__dequant_fn *const functions[] = {
    [SOQ_DTYPE_F32] = dequant_f32,   [SOQ_DTYPE_F16] = dequant_f16,       [SOQ_DTYPE_BF16] = dequant_bf16,
    [SOQ_DTYPE_Q4_0] = dequant_q4_0, [SOQ_DTYPE_Q4_1] = dequant_q4_1,     [SOQ_DTYPE_Q5_0] = dequant_q5_0,
    [SOQ_DTYPE_Q5_1] = dequant_q5_1, [SOQ_DTYPE_Q8_0] = dequant_q8_0,     [SOQ_DTYPE_Q2_K] = dequant_q2_k,
    [SOQ_DTYPE_Q3_K] = dequant_q3_k, [SOQ_DTYPE_Q4_K] = dequant_q4_k,     [SOQ_DTYPE_Q5_K] = dequant_q5_k,
    [SOQ_DTYPE_Q6_K] = dequant_q6_k, [SOQ_DTYPE_IQ4_NL] = dequant_iq4_nl, [SOQ_DTYPE_IQ4_XS] = dequant_iq4_xs,
};

soq__dequant_fn *soq__dequant(enum soq_dtype type)
{
    return (size_t)type < sizeof functions / sizeof functions[0] ? functions[type] : NULL;
}
