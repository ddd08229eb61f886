#include "base/size.h"

#include <stdio.h>

const char *soq__size_text(uint64_t bytes, char *buf, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(buf, size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return buf;
}
