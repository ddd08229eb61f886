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

/* What a thread reads next of the weights, not yet asked for. */
struct cpu_ahead {
    const uint8_t *at, *end;
};

/* Zeroed memory is a barrier. Returns when `count` threads have arrived; a full fence. Who waits meanwhile fetches what lies
 * ahead into the second-level cache: memory would fall idle at every barrier otherwise. */
void cpu_barrier_wait(struct cpu_barrier *barrier, uint32_t count, struct cpu_ahead *ahead);

/* Asks for the next lines, as many as can be under way at once: in front of work that leaves memory idle. */
void cpu_fetch_ahead(struct cpu_ahead *ahead);

#endif
