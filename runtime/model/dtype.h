/* What is known of each tensor type: name and block geometry. Types that the runtime cannot compute with are known by name and
 * size too, so that a file that holds them can be checked and an error can name them. */
#ifndef SOQ_MODEL_DTYPE_H
#define SOQ_MODEL_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "soquete/dtype.h"

struct soq__dtype {
    uint32_t id;       /* GGUF type id; an enum soq_dtype if supported */
    const char *name;  /* "Q4_K" */
    uint32_t elements; /* per block */
    uint32_t bytes;    /* per block */
    bool supported;    /* the runtime can compute with it */
};

/* The type's description (static), or NULL if the id is unknown. */
const struct soq__dtype *soq__dtype(uint32_t id);
/* By name, case-insensitive; NULL if unknown. */
const struct soq__dtype *soq__dtype_by_name(const char *name);
/* "F32, F16, ..., BF16": the supported types, for messages. */
const char *soq__dtype_supported_names(void);

/* Bytes of a row of n elements. false if n is not a whole number of blocks or the product overflows. */
bool soq__dtype_row_bytes(const struct soq__dtype *type, uint64_t n, uint64_t *bytes_out);

#endif
