/* Messages to the host's log. */
#include "opencl.h"

#include <stdarg.h>
#include <stdio.h>

void opencl_log(const struct soq_host *host, int level, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    host->log(host->ctx, level, text);
}
