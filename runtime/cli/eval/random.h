/* Random numbers that are the same on every machine: SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
 * Generators", OOPSLA 2014). */
#ifndef SOQ_CLI_EVAL_RANDOM_H
#define SOQ_CLI_EVAL_RANDOM_H

#include <stdint.h>

struct soq__random {
    uint64_t state; /* any seed */
};

static inline uint64_t soq__random_next(struct soq__random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* From 0 to n - 1; n is far below 2^32, so that the bias of the product's upper half does not matter. */
static inline uint32_t soq__random_below(struct soq__random *r, uint32_t n)
{
    return (uint32_t)(((soq__random_next(r) >> 32) * n) >> 32);
}

#endif
