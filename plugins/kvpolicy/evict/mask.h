/* What a policy that is a mask does at a commit: rows see the last `window` positions and the first `sinks`. */
#ifndef KVPOLICY_MASK_H
#define KVPOLICY_MASK_H

#include "fail.h"
#include "soquete/plugin.h"

/* The next row is at position n = n_positions and sees p > n - window beside the sinks: all below goes, for good. window 0: all
 * stays. */
static inline int mask_commit(uint32_t window, uint32_t sinks, const struct soq_kv_commit *commit, struct soq_kv_range *ranges,
                              uint32_t *n_ranges_out, struct soq_error *err)
{
    uint32_t n = commit->n_positions, n_ranges = 0, first = window && n >= window ? n - window + 1 : 0;

    if (commit->max_ranges < 2)
        return plugin_fail(err, SOQ_EINVAL, "kv policy: room for %u ranges, 2 are needed", commit->max_ranges);
    if (first <= sinks)
        first = sinks = 0; /* nothing lies between */
    if (sinks)
        ranges[n_ranges++] = (struct soq_kv_range){0, sinks};
    if (first < n)
        ranges[n_ranges++] = (struct soq_kv_range){first, n};
    *n_ranges_out = n_ranges;
    return 0;
}

#endif
