/* The published tolerances: how far an op's result may be from f64. docs/conformance.md prints this table. */
#ifndef SOQ_CHECK_TOLERANCE_H
#define SOQ_CHECK_TOLERANCE_H

#include <stddef.h>
#include <stdint.h>

struct soq__tolerance {
    uint32_t op;    /* enum soq_op */
    uint32_t dtype; /* enum soq_dtype of weights, or of the cache; SOQ__FEW_BITS; SOQ__ANY_DTYPE: all the rest */
    double relative;
    const char *to; /* what `relative` is multiplied with; where it is 0: what is exact */
};

#define SOQ__ANY_DTYPE UINT32_MAX
#define SOQ__FEW_BITS (UINT32_MAX - 1) /* packed blocks whose keys or values have codes of 1 to 5 bits */

extern const struct soq__tolerance soq__tolerances[];
extern const size_t soq__tolerance_count;

/* Of the first row that fits. */
double soq__tolerance(uint32_t op, uint32_t dtype);

#endif
