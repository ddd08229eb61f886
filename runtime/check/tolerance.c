#include "check/tolerance.h"

#include "soquete/backend.h"

/* F32 is what a sum in f32 of any order gives, and excludes TF32. F16 and BF16 allow activations rounded to the weights' type,
 * quantised weights activations rounded to 8 bits in blocks of 32. Beside packed codes of up to 5 bits, whose own error is at
 * least 1/64 of their range, queries and softmax weights may be rounded to 8 bits too. Look-up and data movement are exact: F32
 * results of integers times scales in the order that dequantisation is defined in may differ by a rounding. */
const struct soq__tolerance soq__tolerances[] = {
    {SOQ_OP_MATMUL, SOQ_DTYPE_F32, 5e-6, "the sum of |w x| and 0.001 max |w| max |x|"},
    {SOQ_OP_MATMUL, SOQ_DTYPE_F16, 1e-3, "the sum of |w x| and 0.001 max |w| max |x|"},
    {SOQ_OP_MATMUL, SOQ_DTYPE_BF16, 5e-3, "the sum of |w x| and 0.001 max |w| max |x|"},
    {SOQ_OP_MATMUL, SOQ__ANY_DTYPE, 5e-3, "the sum of |w x| and 0.001 max |w| max |x|"},
    {SOQ_OP_EMBED, SOQ__ANY_DTYPE, 3e-7, "|w|"},
    {SOQ_OP_NORM, SOQ__ANY_DTYPE, 5e-6, "1 + |y|"},
    {SOQ_OP_ROPE_TABLE, SOQ__ANY_DTYPE, 2e-6, "mscale"},
    {SOQ_OP_ROPE, SOQ__ANY_DTYPE, 4e-6, "|pair|"},
    {SOQ_OP_ACTIVATION, SOQ__ANY_DTYPE, 2e-6, "|y| (1 + |x|^3 / 4)"},
    {SOQ_OP_ADD, SOQ__ANY_DTYPE, 1e-7, "|y|"},
    {SOQ_OP_SCALE, SOQ__ANY_DTYPE, 2e-6, "|y|"},
    {SOQ_OP_GATHER, SOQ__ANY_DTYPE, 0, "exact"},
    {SOQ_OP_ATTENTION, SOQ_DTYPE_F32, 2e-5, "the largest |v|"},
    {SOQ_OP_ATTENTION, SOQ__FEW_BITS, 5e-2, "the largest |v|"},
    {SOQ_OP_ATTENTION, SOQ__ANY_DTYPE, 2e-3, "the largest |v|"},
    {SOQ_OP_KV_APPEND, SOQ_DTYPE_F32, 0, "exact"},
    {SOQ_OP_KV_APPEND, SOQ_DTYPE_F16, 0, "the nearest, ties to even"},
};
const size_t soq__tolerance_count = sizeof soq__tolerances / sizeof soq__tolerances[0];

double soq__tolerance(uint32_t op, uint32_t dtype)
{
    for (size_t i = 0; i < soq__tolerance_count; i++) {
        const struct soq__tolerance *t = &soq__tolerances[i];

        if (t->op == op && (t->dtype == dtype || t->dtype == SOQ__ANY_DTYPE))
            return t->relative;
    }
    return 0;
}
