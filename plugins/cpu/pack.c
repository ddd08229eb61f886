/* Source blocks of sixteen rows -> packed spans (formats.h draws them). */
#include <string.h>

#include "formats.h"

/* Nibble g of a block's 8 steps goes to byte vector g % 4, low or high; bits above to the planes behind. */
static void pack_codes(const struct cpu_format *format, const uint8_t *codes, uint32_t row, uint8_t *out)
{
    uint8_t *high = out + 128;
    int extra = format->code_bits - 4; /* bits above the nibble: 0, 1, 2 */

    for (int i = 0; i < CPU_BLOCK; i++) {
        int step = i / 4, lane = (int)row * 4 + i % 4;
        uint8_t *low = out + step % 4 * 32 + lane;

        if (format->code_bits == 8) {
            out[step * 32 + lane] = codes[i];
            continue;
        }
        *low = (uint8_t)(*low | (codes[i] & 15) << (step < 4 ? 0 : 4));
        if (extra) {
            uint8_t *plane = high + step * extra / 8 * 32 + lane;

            *plane = (uint8_t)(*plane | codes[i] >> 4 << step * extra % 8);
        }
    }
}

static void pack_row(const struct cpu_format *format, const struct cpu_decoded *decoded, uint32_t row, uint8_t *out)
{
    uint32_t n_sub = format->n_sub;

    memcpy(out + 2 * row, &decoded->d, 2);
    out += 16;
    if (format->has_min) {
        memcpy(out + 2 * row, &decoded->m, 2);
        out += 16;
    }
    for (uint32_t block = 0; block < format->elements / CPU_BLOCK; block++) {
        uint8_t *p = out + block * cpu_block_bytes(format);

        for (uint32_t sub = 0; sub < n_sub; sub++)
            p[sub * 8 + row] = (uint8_t)decoded->scales[block * n_sub + sub];
        p += 8 * n_sub;
        for (uint32_t sub = 0; format->has_min && sub < n_sub; sub++)
            p[sub * 8 + row] = decoded->mins[block * n_sub + sub];
        p += format->has_min ? 8 * n_sub : 0;
        pack_codes(format, decoded->codes + block * CPU_BLOCK, row, p);
    }
}

void cpu_pack(const struct cpu_format *format, const uint8_t *const rows[CPU_GROUP_ROWS], uint64_t n, uint8_t *out)
{
    size_t span_bytes = cpu_span_bytes(format);
    struct cpu_decoded decoded;

    memset(out, 0, 2 * n * span_bytes);
    memset(&decoded, 0, sizeof decoded);
    for (uint32_t row = 0; row < CPU_GROUP_ROWS; row++)
        for (uint64_t i = 0; rows[row] && i < n; i++) {
            uint8_t *span = out + (2 * i + row / CPU_LANES) * span_bytes;

            if (format->decode) {
                format->decode(rows[row] + i * format->bytes, &decoded);
                pack_row(format, &decoded, row % CPU_LANES, span);
            } else {
                memcpy(span + row % CPU_LANES * format->bytes, rows[row] + i * format->bytes, format->bytes);
            }
        }
}
