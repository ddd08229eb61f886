/* Processors without a table of features: plugins that require one are not for them. */
#include "plugin/cpuid.h"

bool soq__cpu_has(const char *feature)
{
    (void)feature;
    return false;
}

const char *const *soq__cpu_features(size_t *count_out)
{
    static const char *const none[] = {""};

    *count_out = 0;
    return none;
}
