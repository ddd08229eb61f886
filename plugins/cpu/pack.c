/* Source blocks of a group's rows -> packed spans (formats.h draws them). */
#include <string.h>

#include "formats.h"

/* A block's step (4 codes) as a word, little-endian. */
static uint32_t step_word(const uint8_t *codes, int step)
{
    uint32_t word;

    memcpy(&word, codes + 4 * step, sizeof word);
    return word;
}

static void put_word(uint8_t *out, int plane, uint32_t lane, uint32_t word)
{
    memcpy(out + ((size_t)plane * CPU_LANES + lane) * sizeof word, &word, sizeof word);
}

/* Nibble g of a block's 8 steps goes to byte vector g % 4, low or high; bits above to the planes behind. */
static void pack_codes(const struct cpu_format *format, const uint8_t *codes, uint32_t lane, uint8_t *out)
{
    int extra = format->code_bits - 4; /* bits above the nibble: 0, 1, 2 */

    if (format->code_bits == 8) {
        for (int step = 0; step < 8; step++)
            put_word(out, step, lane, step_word(codes, step));
        return;
    }
    for (int step = 0; step < 4; step++)
        put_word(out, step, lane, (step_word(codes, step) & 0x0f0f0f0f) | (step_word(codes, step + 4) & 0x0f0f0f0f) << 4);
    for (int plane = 0; plane < extra; plane++) {
        uint32_t word = 0;

        for (int i = 0; i < 8 / extra; i++)
            word |= (step_word(codes, plane * 4 + i) >> 4 & 0x0f0f0f0f) << i * extra;
        put_word(out, 4 + plane, lane, word);
    }
}

static void pack_lane(const struct cpu_format *format, const struct cpu_decoded *decoded, uint32_t lane, uint8_t *out)
{
    uint32_t n_sub = format->n_sub;

    memcpy(out + 2 * lane, &decoded->d, 2);
    out += 2 * CPU_LANES;
    if (format->has_min) {
        memcpy(out + 2 * lane, &decoded->m, 2);
        out += 2 * CPU_LANES;
    }
    for (uint32_t block = 0; block < format->elements / CPU_BLOCK; block++) {
        uint8_t *p = out + block * cpu_block_bytes(format);

        for (uint32_t sub = 0; sub < n_sub; sub++, p += CPU_LANES)
            p[lane] = (uint8_t)decoded->scales[block * n_sub + sub];
        for (uint32_t sub = 0; format->has_min && sub < n_sub; sub++, p += CPU_LANES)
            p[lane] = decoded->mins[block * n_sub + sub];
        pack_codes(format, decoded->codes + block * CPU_BLOCK, lane, p);
    }
}

void cpu_pack(const struct cpu_format *format, const uint8_t *const rows[CPU_LANES], uint64_t n, uint8_t *out)
{
    size_t span_bytes = cpu_span_bytes(format);
    struct cpu_decoded decoded;

    memset(&decoded, 0, sizeof decoded);
    for (uint64_t i = 0; i < n; i++, out += span_bytes)
        for (uint32_t lane = 0; lane < CPU_LANES; lane++) {
            const uint8_t *block = rows[lane] ? rows[lane] + i * format->bytes : NULL;

            if (!format->decode) {
                if (block)
                    memcpy(out + lane * format->bytes, block, format->bytes);
                else
                    memset(out + lane * format->bytes, 0, format->bytes);
                continue;
            }
            if (block)
                format->decode(block, &decoded);
            else
                memset(&decoded, 0, sizeof decoded);
            pack_lane(format, &decoded, lane, out);
        }
}
