/* CPU features by name, as manifests ask for them with requires-cpu. Names are those of compilers: avx2, fma, f16c, avx512f,
 * and the levels x86-64-v2, x86-64-v3, x86-64-v4. The build takes cpuid_x86.c or cpuid_none.c. */
#ifndef SOQ_PLUGIN_CPUID_H
#define SOQ_PLUGIN_CPUID_H

#include <stdbool.h>
#include <stddef.h>

/* Whether CPU and operating system both support the feature (a CPU with AVX under a kernel that does not save its registers
 * lacks AVX). A name that this build does not know is one that the CPU lacks. */
bool soq__cpu_has(const char *feature);

/* All names that this build knows. */
const char *const *soq__cpu_features(size_t *count_out);

#endif
