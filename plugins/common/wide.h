/* A function compiled once more for vectors of 256 bits, in plugins that have no variants: WIDE marks it, has_wide() says
 * whether this processor and its system can run it. Asked of the processor itself: the compiler's __builtin_cpu_supports()
 * would bring a constructor into the plugin, code that runs before the host has checked it. */
#ifndef PLUGINS_COMMON_WIDE_H
#define PLUGINS_COMMON_WIDE_H

#include <stdatomic.h>
#include <stdbool.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>

#define WIDE __attribute__((target("avx2")))

static inline bool ask_wide(void)
{
    unsigned a, b, c, d, state, high;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    __asm__("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
    return (state & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_AVX2;
}

/* Asks once: in a virtual machine each question is a trap, as long as a pass over thousands of numbers. */
static inline bool has_wide(void)
{
    static _Atomic int known; /* 0: not yet, 1: no, 2: yes */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);

    if (!answer) {
        answer = 1 + ask_wide();
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}
#else
#define WIDE

static inline bool has_wide(void)
{
    return false;
}
#endif

#endif
