#include "plugin/needs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/nearest.h"
#include "plugin/cpuid.h"

static int check_cpu(const struct soq__manifest *m, struct soq_error *err)
{
    const char *list = m->requires_cpu, *item;
    size_t n, n_names;
    const char *const *names = soq__cpu_features(&n_names);

    while (soq__list_next(&list, &item, &n)) {
        char feature[32];
        const char *near;

        snprintf(feature, sizeof feature, "%.*s", (int)n, item);
        if (soq__cpu_has(feature))
            continue;
        near = soq__nearest(feature, names, n_names);
        if (!near || strcmp(near, feature) == 0)
            return soq__fail(err, SOQ_EUNSUPPORTED, "the CPU lacks %s", feature);
        return soq__fail(err, SOQ_EINVAL, "requires-cpu: %s is no feature that this host knows; did you mean %s?", feature,
                         near);
    }
    return 0;
}

static int check_device(const struct soq__manifest *m, struct soq_error *err)
{
    const char *list = m->requires_device, *item;
    bool any = false;
    size_t n;

    while (soq__list_next(&list, &item, &n)) {
        char path[256];

        any = true;
        if (snprintf(path, sizeof path, "%.*s", (int)n, item) < (int)sizeof path && access(path, F_OK) == 0)
            return 0;
    }
    return any ? soq__fail(err, SOQ_EUNSUPPORTED, "no device file: %s", m->requires_device) : 0;
}

int soq__needs_met(const struct soq__manifest *m, struct soq_error *err)
{
    int rc = check_cpu(m, err);

    return rc ? rc : check_device(m, err);
}
