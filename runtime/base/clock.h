/* Monotonic time. */
#ifndef SOQ_BASE_CLOCK_H
#define SOQ_BASE_CLOCK_H

#include <time.h>

/* Seconds since an arbitrary start, never going back. */
static inline double soq__clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
