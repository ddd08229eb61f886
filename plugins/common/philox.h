/* Philox4x32-10, a counter-based random number generator: ten rounds turn (counter, key) into 128 random bits, with no state.
 *
 * J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC '11, section 4.3. It
 * makes a draw a pure function of (seed, position): batching, forks and rollbacks cannot change it. */
#ifndef PLUGIN_PHILOX_H
#define PLUGIN_PHILOX_H

#include <stdint.h>

struct philox {
    uint32_t word[4];
};

static inline struct philox philox4x32(struct philox counter, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)counter.word[0] * 0xd2511f53u, b = (uint64_t)counter.word[2] * 0xcd9e8d57u;

        counter.word[0] = (uint32_t)(b >> 32) ^ counter.word[1] ^ key0;
        counter.word[1] = (uint32_t)b;
        counter.word[2] = (uint32_t)(a >> 32) ^ counter.word[3] ^ key1;
        counter.word[3] = (uint32_t)a;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return counter;
}

/* Uniform in [0, 1), a multiple of 2^-53. Each use of random numbers has a stream of its own. */
static inline double philox_uniform(uint64_t seed, uint32_t position, uint32_t stream)
{
    struct philox counter = {{position, stream, 0, 0}};
    struct philox random = philox4x32(counter, (uint32_t)seed, (uint32_t)(seed >> 32));

    return (double)(((uint64_t)random.word[0] << 32 | random.word[1]) >> 11) * 0x1p-53;
}

#endif
