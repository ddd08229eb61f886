/* Tensor types as the matrix kernels see them.
 *
 * Weights are packed in groups of CPU_LANES rows, one for each 32-bit lane of the machine's vectors (8 or 16: L below). For a
 * quantised type a *span* is one source block (32 or 256 inputs) of a group:
 *
 *     u16 d[L]                            F16 scale
 *     u16 m[L]                            F16 minimum, where the type has one
 *     then for each 32 inputs (a block):
 *       i8 scale[n_sub][L]                integer scales of 16 or 32 inputs, where the type has them
 *       u8 min[n_sub][L]                  and minima
 *       u8 code[4][L][4]                  low nibble: input 4g + j of row o; high nibble: input 16 + 4g + j
 *       u8 high[0, 1 or 2][L][4]          the codes' bits 4 and up: 1 or 2 bits for each of the block's 8 steps of 4 inputs
 *
 * and 8-bit codes lie as u8 code[8][L][4]. A weight is
 *
 *     d * scale * (value(code) - zero) +- m * min
 *
 * with scale and min 1 where absent and value a table look-up for the IQ4 types. Everything is exact in F32 but the last
 * addition, so a packed weight equals the dequantised one bit for bit. F32, F16 and BF16 are packed as [inputs][L]. */
#ifndef SOQ_CPU_FORMATS_H
#define SOQ_CPU_FORMATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "variant.h"

enum { CPU_BLOCK = 32 };

/* X(type, inputs and bytes of a source block, code bits, integer scales in 32 inputs, code that stands for 0, has a minimum,
 * codes are looked up, decoder): the quantised types. A minimum is added where there are no integer scales (+ m) and taken off
 * where there are (- m * min). */
#define CPU_QUANTISED(X)                                                                                                       \
    X(Q4_0, 32, 18, 4, 0, 8, false, false, q4_0)                                                                               \
    X(Q4_1, 32, 20, 4, 0, 0, true, false, q4_1)                                                                                \
    X(Q5_0, 32, 22, 5, 0, 16, false, false, q5_0)                                                                              \
    X(Q5_1, 32, 24, 5, 0, 0, true, false, q5_1)                                                                                \
    X(Q8_0, 32, 34, 8, 0, 128, false, false, q8_0)                                                                             \
    X(Q2_K, 256, 84, 4, 2, 0, true, false, q2_k)                                                                               \
    X(Q3_K, 256, 110, 4, 2, 4, false, false, q3_k)                                                                             \
    X(Q4_K, 256, 144, 4, 1, 0, true, false, q4_k)                                                                              \
    X(Q5_K, 256, 176, 5, 1, 0, true, false, q5_k)                                                                              \
    X(Q6_K, 256, 210, 6, 2, 32, false, false, q6_k)                                                                            \
    X(IQ4_NL, 32, 18, 4, 0, 128, false, true, q4_0)                                                                            \
    X(IQ4_XS, 256, 136, 4, 1, 128, false, true, iq4_xs)

/* A source block, taken apart. */
struct cpu_decoded {
    uint8_t codes[256];
    int8_t scales[16];
    uint8_t mins[16];
    uint16_t d, m; /* F16 bits */
};

struct cpu_format {
    uint32_t dtype;
    const char *name;
    uint8_t code_bits; /* 4, 5, 6, 8; 16 and 32: not quantised */
    uint8_t n_sub;     /* integer scales in 32 inputs: 0, 1, 2 */
    uint8_t zero;      /* code that stands for 0 */
    bool has_min;
    bool lookup;                                                   /* codes are places in cpu_iq4_values */
    uint16_t elements, bytes;                                      /* of a source block */
    void (*decode)(const uint8_t *block, struct cpu_decoded *out); /* NULL: not quantised */
};

/* NULL if the type is not supported. */
const struct cpu_format *cpu_format(uint32_t dtype);

/* The IQ4 code book, 128 added. */
extern const uint8_t cpu_iq4_values[16];

/* Bytes of a block of 32 inputs and of a span. */
size_t cpu_block_bytes(const struct cpu_format *format);
size_t cpu_span_bytes(const struct cpu_format *format);

/* Packs n source blocks of a group's rows (NULL: a row of zeros), each at its first block: n spans. */
void cpu_pack(const struct cpu_format *format, const uint8_t *const rows[CPU_LANES], uint64_t n, uint8_t *out);

/* Expands n inputs from packed weights: tile[k][CPU_LANES]; n is a multiple of the span's inputs. */
void cpu_expand(const struct cpu_format *format, const uint8_t *packed, uint32_t n, float *tile);

#endif
