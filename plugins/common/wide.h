/* A function compiled once more for vectors of 256 and of 512 bits, in plugins that have no variants: WIDE and WIDEST mark it,
 * vector_bits() says which this processor and its system can run. Asked of the processor itself: the compiler's
 * __builtin_cpu_supports() would bring a constructor into the plugin, code that runs before the host has checked it. */
#ifndef PLUGINS_COMMON_WIDE_H
#define PLUGINS_COMMON_WIDE_H

#include <stdatomic.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>

#define WIDE __attribute__((target("avx2")))
#define WIDEST __attribute__((target("avx512f,avx512dq")))

static inline int ask_vector_bits(void)
{
    unsigned a, b, c, d, state, high;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 128;
    __asm__("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
    if ((state & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2))
        return 128;
    return (state & 0xe6) == 0xe6 && b & bit_AVX512F && b & bit_AVX512DQ ? 512 : 256;
}

/* Asks once: in a virtual machine each question is a trap, as long as a pass over thousands of numbers. */
static inline int vector_bits(void)
{
    static _Atomic int known; /* 0: not yet */
    int bits = atomic_load_explicit(&known, memory_order_relaxed);

    if (!bits) {
        bits = ask_vector_bits();
        atomic_store_explicit(&known, bits, memory_order_relaxed);
    }
    return bits;
}
#else
#define WIDE
#define WIDEST

static inline int vector_bits(void)
{
    return 128;
}
#endif

/* static `type name params`, which calls the inline function name_of with `args` in the widest build of it that runs here. */
#define IN_WIDTHS(type, name, params, args)                                                                                    \
    WIDE static type name##_wide params                                                                                        \
    {                                                                                                                          \
        return name##_of args;                                                                                                 \
    }                                                                                                                          \
    WIDEST static type name##_widest params                                                                                    \
    {                                                                                                                          \
        return name##_of args;                                                                                                 \
    }                                                                                                                          \
    static type name params                                                                                                    \
    {                                                                                                                          \
        return vector_bits() == 512 ? name##_widest args : vector_bits() == 256 ? name##_wide args : name##_of args;           \
    }

#endif
