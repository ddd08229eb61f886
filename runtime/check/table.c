#include "check/table.h"

/* In the order in which they run. */
static const struct soq__check_family *const families[] = {
    &soq__checks_static,  &soq__checks_load,   &soq__checks_first_life, &soq__checks_skew,   &soq__checks_life,
    &soq__checks_fault,   &soq__checks_config, &soq__checks_backend,    &soq__checks_matmul, &soq__checks_ops,
    &soq__checks_step,    &soq__checks_kv,     &soq__checks_attention,  &soq__checks_mass,   &soq__checks_evicted,
    &soq__checks_packed,  &soq__checks_policy, &soq__checks_select,     &soq__checks_codec,  &soq__checks_sampler,
    &soq__checks_silence,
};

const struct soq__check *soq__check_at(size_t i)
{
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        if (i < families[f]->count)
            return &families[f]->checks[i];
        i -= families[f]->count;
    }
    return NULL;
}

const char *soq__verdict_text(enum soq__verdict verdict)
{
    static const char *const texts[SOQ__N_VERDICTS] = {
        [SOQ__PASS] = "pass", [SOQ__FAIL] = "fail", [SOQ__CRASH] = "crash", [SOQ__HANG] = "hang", [SOQ__SKIP] = "skip",
    };

    return texts[verdict];
}
