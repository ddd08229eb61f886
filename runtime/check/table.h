/* The table of checks: one array per family, each in the file that has its checks. */
#ifndef SOQ_CHECK_TABLE_H
#define SOQ_CHECK_TABLE_H

#include "check/check.h"

struct soq__check_family {
    const struct soq__check *checks;
    size_t count;
};

#define SOQ__FAMILY(array)                                                                                                     \
    {                                                                                                                          \
        array, sizeof(array) / sizeof(array)[0]                                                                                \
    }

extern const struct soq__check_family soq__checks_static, soq__checks_load, soq__checks_first_life, soq__checks_life,
    soq__checks_fault, soq__checks_config, soq__checks_skew, soq__checks_backend, soq__checks_matmul, soq__checks_ops,
    soq__checks_step, soq__checks_kv, soq__checks_attention, soq__checks_mass, soq__checks_evicted, soq__checks_packed,
    soq__checks_policy, soq__checks_select, soq__checks_codec, soq__checks_sampler, soq__checks_silence;

#endif
