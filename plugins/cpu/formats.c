/* The source blocks of GGUF's types taken apart: codes, integer scales and minima, F16 scale and minimum. */
#include "formats.h"

#include <string.h>

#include "soquete/dtype.h"

const uint8_t cpu_iq4_values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static void nibbles32(const uint8_t *src, uint8_t *codes)
{
    for (int i = 0; i < 16; i++) {
        codes[i] = src[i] & 15;
        codes[16 + i] = src[i] >> 4;
    }
}

static void fifth_bits(const uint8_t *bits, uint8_t *codes)
{
    for (int i = 0; i < 32; i++)
        codes[i] = (uint8_t)(codes[i] | (bits[i / 8] >> i % 8 & 1) << 4);
}

static void decode_q4_0(const uint8_t *src, struct cpu_decoded *out)
{
    out->d = get16(src);
    nibbles32(src + 2, out->codes);
}

static void decode_q4_1(const uint8_t *src, struct cpu_decoded *out)
{
    out->d = get16(src);
    out->m = get16(src + 2);
    nibbles32(src + 4, out->codes);
}

static void decode_q5_0(const uint8_t *src, struct cpu_decoded *out)
{
    out->d = get16(src);
    nibbles32(src + 6, out->codes);
    fifth_bits(src + 2, out->codes);
}

static void decode_q5_1(const uint8_t *src, struct cpu_decoded *out)
{
    out->d = get16(src);
    out->m = get16(src + 2);
    nibbles32(src + 8, out->codes);
    fifth_bits(src + 4, out->codes);
}

static void decode_q8_0(const uint8_t *src, struct cpu_decoded *out)
{
    out->d = get16(src);
    for (int i = 0; i < 32; i++)
        out->codes[i] = src[2 + i] ^ 0x80;
}

/* 2-bit codes: 32 bytes hold four runs of 32. */
static void two_bits(const uint8_t *src, uint8_t *codes)
{
    for (int half = 0; half < 2; half++)
        for (int run = 0; run < 4; run++)
            for (int i = 0; i < 32; i++)
                codes[half * 128 + run * 32 + i] = src[half * 32 + i] >> 2 * run & 3;
}

static void decode_q2_k(const uint8_t *src, struct cpu_decoded *out)
{
    for (int i = 0; i < 16; i++) {
        out->scales[i] = src[i] & 15;
        out->mins[i] = src[i] >> 4;
    }
    two_bits(src + 16, out->codes);
    out->d = get16(src + 80);
    out->m = get16(src + 82);
}

static void decode_q3_k(const uint8_t *src, struct cpu_decoded *out)
{
    const uint8_t *high = src, *scales = src + 96;

    two_bits(src + 32, out->codes);
    for (int i = 0; i < 256; i++)
        out->codes[i] = (uint8_t)(out->codes[i] | (high[i % 32] >> i / 32 & 1) << 2);
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;

        out->scales[i] = (int8_t)((low | (scales[8 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32);
    }
    out->d = get16(src + 108);
}

/* The 6-bit scales and minima of Q4_K and Q5_K: 8 of each in 12 bytes. */
static void six_bit_pairs(const uint8_t *src, struct cpu_decoded *out)
{
    for (int i = 0; i < 4; i++) {
        out->scales[i] = src[i] & 63;
        out->mins[i] = src[4 + i] & 63;
        out->scales[4 + i] = (int8_t)((src[8 + i] & 15) | src[i] >> 6 << 4);
        out->mins[4 + i] = (uint8_t)(src[8 + i] >> 4 | src[4 + i] >> 6 << 4);
    }
}

/* Nibbles of 64 inputs in 32 bytes: the low ones first. */
static void nibbles256(const uint8_t *src, uint8_t *codes)
{
    for (int run = 0; run < 4; run++)
        for (int i = 0; i < 32; i++) {
            codes[run * 64 + i] = src[run * 32 + i] & 15;
            codes[run * 64 + 32 + i] = src[run * 32 + i] >> 4;
        }
}

static void decode_q4_k(const uint8_t *src, struct cpu_decoded *out)
{
    out->d = get16(src);
    out->m = get16(src + 2);
    six_bit_pairs(src + 4, out);
    nibbles256(src + 16, out->codes);
}

static void decode_q5_k(const uint8_t *src, struct cpu_decoded *out)
{
    out->d = get16(src);
    out->m = get16(src + 2);
    six_bit_pairs(src + 4, out);
    nibbles256(src + 48, out->codes);
    for (int i = 0; i < 256; i++)
        out->codes[i] = (uint8_t)(out->codes[i] | (src[16 + i % 32] >> i / 32 & 1) << 4);
}

static void decode_q6_k(const uint8_t *src, struct cpu_decoded *out)
{
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = src + half * 64, *high = src + 128 + half * 32;
        uint8_t *codes = out->codes + half * 128;

        for (int i = 0; i < 32; i++) {
            codes[i] = (uint8_t)((low[i] & 15) | (high[i] & 3) << 4);
            codes[32 + i] = (uint8_t)((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4);
            codes[64 + i] = (uint8_t)(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
            codes[96 + i] = (uint8_t)(low[32 + i] >> 4 | high[i] >> 6 << 4);
        }
    }
    memcpy(out->scales, src + 192, 16);
    out->d = get16(src + 208);
}

static void decode_iq4_xs(const uint8_t *src, struct cpu_decoded *out)
{
    uint16_t high = get16(src + 2);

    out->d = get16(src);
    for (int i = 0; i < 8; i++) {
        out->scales[i] = (int8_t)(((src[4 + i / 2] >> 4 * (i % 2) & 15) | (high >> 2 * i & 3) << 4) - 32);
        nibbles32(src + 8 + 16 * i, out->codes + 32 * i);
    }
}

#define PLAIN(type, size) {.dtype = SOQ_DTYPE_##type, .name = #type, .elements = 1, .bytes = size, .code_bits = 8 * size},
#define QUANTISED(type, n, size, bits, subs, zero_code, minimum, look_up, decoder)                                             \
    {                                                                                                                          \
        .dtype = SOQ_DTYPE_##type,                                                                                             \
        .name = #type,                                                                                                         \
        .elements = n,                                                                                                         \
        .bytes = size,                                                                                                         \
        .code_bits = bits,                                                                                                     \
        .n_sub = subs,                                                                                                         \
        .zero = zero_code,                                                                                                     \
        .has_min = minimum,                                                                                                    \
        .lookup = look_up,                                                                                                     \
        .decode = decode_##decoder,                                                                                            \
    },

static const struct cpu_format formats[] = {PLAIN(F32, 4) PLAIN(F16, 2) PLAIN(BF16, 2) CPU_QUANTISED(QUANTISED)};

const struct cpu_format *cpu_format(uint32_t dtype)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].dtype == dtype)
            return &formats[i];
    return NULL;
}

size_t cpu_block_bytes(const struct cpu_format *format)
{
    size_t codes = format->code_bits == 8 ? CPU_BLOCK : CPU_BLOCK / 2 + 4 * (size_t)(format->code_bits - 4);

    return CPU_LANES * (codes + (size_t)format->n_sub * (format->has_min ? 2 : 1));
}

size_t cpu_span_bytes(const struct cpu_format *format)
{
    if (!format->decode)
        return CPU_LANES * (size_t)format->bytes;
    return CPU_LANES * (format->has_min ? 4u : 2u) + format->elements / CPU_BLOCK * cpu_block_bytes(format);
}
