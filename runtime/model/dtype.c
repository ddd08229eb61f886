#include "model/dtype.h"

#include <strings.h>

/* X(GGUF type id, text, elements per block, bytes per block): seen in files, not computed with. Ids 4, 5, 31-33 and 36-38 were
 * withdrawn from the format. */
#define OTHER_DTYPES(X)                                                                                                        \
    X(9, "Q8_1", 32, 36)                                                                                                       \
    X(15, "Q8_K", 256, 292)                                                                                                    \
    X(16, "IQ2_XXS", 256, 66)                                                                                                  \
    X(17, "IQ2_XS", 256, 74)                                                                                                   \
    X(18, "IQ3_XXS", 256, 98)                                                                                                  \
    X(19, "IQ1_S", 256, 50)                                                                                                    \
    X(21, "IQ3_S", 256, 110)                                                                                                   \
    X(22, "IQ2_S", 256, 82)                                                                                                    \
    X(24, "I8", 1, 1)                                                                                                          \
    X(25, "I16", 1, 2)                                                                                                         \
    X(26, "I32", 1, 4)                                                                                                         \
    X(27, "I64", 1, 8)                                                                                                         \
    X(28, "F64", 1, 8)                                                                                                         \
    X(29, "IQ1_M", 256, 56)                                                                                                    \
    X(34, "TQ1_0", 256, 54)                                                                                                    \
    X(35, "TQ2_0", 256, 66)                                                                                                    \
    X(39, "MXFP4", 32, 17)                                                                                                     \
    X(40, "NVFP4", 64, 36)                                                                                                     \
    X(41, "Q1_0", 128, 18)

static const struct soq__dtype types[] = {
#define SUPPORTED_ROW(name, id, text, elements, bytes) [id] = {id, text, elements, bytes, true},
#define OTHER_ROW(id, text, elements, bytes) [id] = {id, text, elements, bytes, false},
    SOQ_DTYPES(SUPPORTED_ROW) OTHER_DTYPES(OTHER_ROW)
#undef SUPPORTED_ROW
#undef OTHER_ROW
};

enum { N_TYPES = sizeof types / sizeof types[0] };

const struct soq__dtype *soq__dtype(uint32_t id)
{
    return id < N_TYPES && types[id].name ? &types[id] : NULL;
}

const struct soq__dtype *soq__dtype_by_name(const char *name)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (types[i].name && strcasecmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

const char *soq__dtype_supported_names(void)
{
    /* Each name is preceded by ", "; the first two characters are skipped. */
#define NAME(name, id, text, elements, bytes) ", " text
    return &SOQ_DTYPES(NAME)[2];
#undef NAME
}

bool soq__dtype_row_bytes(const struct soq__dtype *type, uint64_t n, uint64_t *bytes_out)
{
    return n % type->elements == 0 && !__builtin_mul_overflow(n / type->elements, (uint64_t)type->bytes, bytes_out);
}
