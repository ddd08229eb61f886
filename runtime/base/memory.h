/* How much memory this process may still take. */
#ifndef SOQ_BASE_MEMORY_H
#define SOQ_BASE_MEMORY_H

#include <stdint.h>

/* Bytes: MemAvailable, capped by what the cgroup (v1 or v2) still allows; 0 if unknown. */
uint64_t soq__memory_available(void);

#endif
