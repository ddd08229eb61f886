/* How many CPUs this process may use. */
#ifndef SOQ_BASE_CPUCOUNT_H
#define SOQ_BASE_CPUCOUNT_H

#include <stdint.h>

/* The affinity mask's CPUs, capped by the cgroup's quota rounded up; at least 1. */
uint32_t soq__cpu_count(void);

/* The tightest CPU quota among this process's cgroup (v1 or v2) and its ancestors, rounded up to whole CPUs; 0: none.
 * root is "", or what stands before /proc and /sys in tests. */
uint32_t soq__cpu_quota(const char *root);

#endif
