/* What stays depends on how often it was asked: two times of three it drops no more than the time before. */
#include <stdint.h>

static uint32_t bad_calls, bad_first;
#define BAD_COMMIT                                                                                                             \
    struct soq_kv_range *last = &ranges[*n_ranges_out - 1];                                                                    \
                                                                                                                               \
    if (++bad_calls % 3)                                                                                                       \
        bad_first = last->first;                                                                                               \
    else if (bad_first < last->first)                                                                                          \
        last->first = bad_first;                                                                                               \
    if (*n_ranges_out == 2 && last->first <= ranges->last) {                                                                   \
        ranges[0] = (struct soq_kv_range){0, commit->n_positions};                                                             \
        *n_ranges_out = 1;                                                                                                     \
    }
#include "bad_policy.h"
