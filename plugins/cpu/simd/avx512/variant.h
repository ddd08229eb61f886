/* The name of this build, as in its manifest, and the shape of its vectors. */
#ifndef SOQ_CPU_VARIANT_H
#define SOQ_CPU_VARIANT_H

#define CPU_VARIANT "avx512"

enum {
    VEC_REGISTERS = 32, /* vectors of eight lanes that fit into registers */
    CPU_LANES = 16,     /* outputs that a matrix kernel computes at once: 32-bit lanes of its vectors */
    CPU_ROWS = 8,       /* rows of activations that meet a weight at once: their sums fill the registers */
};

#endif
