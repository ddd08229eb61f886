/* Tensor element types: the ones that the runtime computes with. Part of the plugin ABI; values are the type ids of GGUF.
 *
 * A quantised type stores a row as whole blocks: `elements` numbers in `bytes` bytes. Rows never share a block. */
#ifndef SOQUETE_DTYPE_H
#define SOQUETE_DTYPE_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, GGUF type id, text, elements per block, bytes per block). Append only. */
#define SOQ_DTYPES(X)                                                                                                          \
    X(SOQ_DTYPE_F32, 0, "F32", 1, 4)                                                                                           \
    X(SOQ_DTYPE_F16, 1, "F16", 1, 2)                                                                                           \
    X(SOQ_DTYPE_Q4_0, 2, "Q4_0", 32, 18)                                                                                       \
    X(SOQ_DTYPE_Q4_1, 3, "Q4_1", 32, 20)                                                                                       \
    X(SOQ_DTYPE_Q5_0, 6, "Q5_0", 32, 22)                                                                                       \
    X(SOQ_DTYPE_Q5_1, 7, "Q5_1", 32, 24)                                                                                       \
    X(SOQ_DTYPE_Q8_0, 8, "Q8_0", 32, 34)                                                                                       \
    X(SOQ_DTYPE_Q2_K, 10, "Q2_K", 256, 84)                                                                                     \
    X(SOQ_DTYPE_Q3_K, 11, "Q3_K", 256, 110)                                                                                    \
    X(SOQ_DTYPE_Q4_K, 12, "Q4_K", 256, 144)                                                                                    \
    X(SOQ_DTYPE_Q5_K, 13, "Q5_K", 256, 176)                                                                                    \
    X(SOQ_DTYPE_Q6_K, 14, "Q6_K", 256, 210)                                                                                    \
    X(SOQ_DTYPE_IQ4_NL, 20, "IQ4_NL", 32, 18)                                                                                  \
    X(SOQ_DTYPE_IQ4_XS, 23, "IQ4_XS", 256, 136)                                                                                \
    X(SOQ_DTYPE_BF16, 30, "BF16", 1, 2)

enum soq_dtype {
#define SOQ_DTYPE_ENUM(name, id, text, elements, bytes) name = id,
    SOQ_DTYPES(SOQ_DTYPE_ENUM)
#undef SOQ_DTYPE_ENUM
};

#ifdef __cplusplus
}
#endif
#endif
