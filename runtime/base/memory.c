/* Free memory from /proc/meminfo and the cgroup's limit. */
#include "base/memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

static bool read_number(const char *path, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    bool ok;

    if (!f)
        return false;
    ok = fscanf(f, "%" SCNu64, out) == 1; /* "max" is no number: no limit */
    fclose(f);
    return ok;
}

static uint64_t system_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    uint64_t kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

uint64_t soq__memory_available(void)
{
    static const struct {
        const char *limit, *used;
    } cgroups[] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    uint64_t available = system_available();

    for (size_t i = 0; i < sizeof cgroups / sizeof cgroups[0]; i++) {
        uint64_t limit, used, left;

        if (!read_number(cgroups[i].limit, &limit) || !read_number(cgroups[i].used, &used))
            continue;
        left = limit > used ? limit - used : 0;
        available = left < available ? left : available;
    }
    return available;
}
