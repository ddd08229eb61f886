/* The fastest multiply-adds that a processor has, for `soquete bench` to time: chains in registers, no memory. They say what
 * the machine could do, whoever's kernels compute the model. The build takes peak_x86.c or peak_none.c.
 *
 * Every product depends on the one before it in its chain, so that none can be moved out of the loop. What the numbers are does
 * not matter: integers wrap, floats end at a fixed point. */
#ifndef SOQ_CLI_PEAK_H
#define SOQ_CLI_PEAK_H

#include <stddef.h>
#include <stdint.h>

/* One way of multiplying. */
struct soq__peak_kernel {
    const char *name;         /* of its instructions, "avx512vnni" */
    const char *requires_cpu; /* a name of plugin/cpuid.h */
    double ops;               /* in a round; a multiply-add is two */
    unsigned (*run)(uint32_t rounds);
};

/* Those of this processor family, the best first: 8-bit integers into wider sums, and fp32 into fp32. NULL where there are
 * none. */
const struct soq__peak_kernel *soq__peak_int8(size_t *count_out);
const struct soq__peak_kernel *soq__peak_fp32(size_t *count_out);

/* ---- What a kernel is made of */

/* Enough for two units with a latency of six cycles, few enough for sixteen registers. */
#define SOQ__PEAK_CHAINS 12
#define SOQ__PEAK_EACH(X, f) X(f, 0) X(f, 1) X(f, 2) X(f, 3) X(f, 4) X(f, 5) X(f, 6) X(f, 7) X(f, 8) X(f, 9) X(f, 10) X(f, 11)
#define SOQ__PEAK_FIRST(first, i) c[i] = first(rounds + i);
#define SOQ__PEAK_NEXT(next, i) c[i] = next(c[i], b);
#define SOQ__PEAK_LOW(low, i) sum += (unsigned)low(c[i]);

/* Defines a kernel, a function with attributes, on registers of `type`: first(i) fills one, next(c, b) multiplies and adds,
 * low(c) is a number of it. */
#define SOQ__PEAK_KERNEL(attributes, name, type, b_, first, next, low)                                                         \
    attributes static unsigned name(uint32_t rounds)                                                                           \
    {                                                                                                                          \
        type b = b_, c[SOQ__PEAK_CHAINS];                                                                                      \
        unsigned sum = 0;                                                                                                      \
                                                                                                                               \
        SOQ__PEAK_EACH(SOQ__PEAK_FIRST, first)                                                                                 \
        for (uint32_t round = 0; round < rounds; round++) {                                                                    \
            SOQ__PEAK_EACH(SOQ__PEAK_NEXT, next)                                                                               \
        }                                                                                                                      \
        SOQ__PEAK_EACH(SOQ__PEAK_LOW, low)                                                                                     \
        return sum;                                                                                                            \
    }

/* Of a kernel that multiplies so many pairs with one next(). */
#define SOQ__PEAK_OPS(n_pairs) (2.0 * SOQ__PEAK_CHAINS * (n_pairs))

#endif
