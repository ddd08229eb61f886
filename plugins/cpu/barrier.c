#include "barrier.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "simd/vec.h"

/* Threads that have a processor each arrive within a microsecond or two. One that shares its processor must not waste on
 * waiting what it gets of it: it would be taken from the processor in the middle of its work, and all others would wait for
 * that. */
enum {
    SPINS = 100,   /* a few microseconds */
    YIELDS = 1000, /* half a millisecond where nobody else wants the processor */
};

static void release(struct cpu_barrier *barrier, uint32_t generation)
{
    atomic_store(&barrier->arrived, 0);
    atomic_store(&barrier->generation, generation + 1);
    if (atomic_load(&barrier->sleepers))
        syscall(SYS_futex, &barrier->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void cpu_barrier_wait(struct cpu_barrier *barrier, uint32_t count)
{
    uint32_t generation = atomic_load(&barrier->generation);

    if (atomic_fetch_add(&barrier->arrived, 1) + 1 == count) {
        release(barrier, generation);
        return;
    }
    for (int i = 0; i < SPINS + YIELDS; i++) {
        if (atomic_load_explicit(&barrier->generation, memory_order_acquire) != generation)
            return;
        if (i < SPINS)
            vec_pause();
        else
            sched_yield();
    }
    /* The last to arrive sees the sleeper, or the kernel sees the new generation: both accesses are sequentially consistent. */
    atomic_fetch_add(&barrier->sleepers, 1);
    while (atomic_load(&barrier->generation) == generation)
        syscall(SYS_futex, &barrier->generation, FUTEX_WAIT_PRIVATE, generation, NULL, NULL, 0);
    atomic_fetch_sub(&barrier->sleepers, 1);
}
