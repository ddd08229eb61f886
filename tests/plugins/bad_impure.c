/* What stays depends on how often it was asked: two times of three it drops no more than the time before. */
#include <stdint.h>

static uint32_t bad_calls, bad_first;
#define BAD_COMMIT                                                                                                             \
    struct soq_kv_range *last = ranges + (*n_ranges_out ? *n_ranges_out - 1 : 0);                                              \
    uint32_t first = *n_ranges_out ? last->first : commit->n_positions;                                                        \
                                                                                                                               \
    if (++bad_calls % 3)                                                                                                       \
        bad_first = first;                                                                                                     \
    else if (bad_first < first) {                                                                                              \
        *last = (struct soq_kv_range){bad_first, commit->n_positions};                                                         \
        *n_ranges_out += *n_ranges_out == 0;                                                                                   \
    }                                                                                                                          \
    if (*n_ranges_out == 2 && last->first <= ranges->last) {                                                                   \
        ranges[0] = (struct soq_kv_range){0, commit->n_positions};                                                             \
        *n_ranges_out = 1;                                                                                                     \
    }
#include "bad_policy.h"
