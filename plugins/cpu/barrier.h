/* A barrier for a few threads that arrive within microseconds of each other. It spins first; then it lends the processor to
 * whoever wants it (the late thread itself, where two share a processor: sleeping at once would keep them together, since a
 * thread wakes where its waker runs); then it sleeps. Used inside a parallel region only, so nothing spins between steps. */
#ifndef SOQ_CPU_BARRIER_H
#define SOQ_CPU_BARRIER_H

#include <stdatomic.h>
#include <stdint.h>

struct cpu_barrier {
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t generation;
    _Atomic uint32_t sleepers;
};

/* Zeroed memory is a barrier. Returns when `count` threads have arrived; a full fence. */
void cpu_barrier_wait(struct cpu_barrier *barrier, uint32_t count);

#endif
