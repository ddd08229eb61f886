/* The process-wide log sink. */
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static struct {
    soq__log_sink sink;
    void *user;
    enum soq_log_level level;
} installed;

void soq__log_install(soq__log_sink sink, void *user, enum soq_log_level level)
{
    installed.sink = sink;
    installed.user = user;
    installed.level = level;
}

void soq__log_remove(soq__log_sink sink, void *user)
{
    if (installed.sink == sink && installed.user == user)
        installed.sink = NULL;
}

void soq__log(enum soq_log_level level, const char *fmt, ...)
{
    char text[SOQ_LOG_TEXT_MAX];
    va_list args;
    int n;

    if (!installed.sink || level > installed.level)
        return;
    va_start(args, fmt);
    n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0)
        return;
    if ((size_t)n >= sizeof text)
        memcpy(text + sizeof text - 4, "...", 4);
    installed.sink(installed.user, (int)level, text);
}

const char *soq__log_level_text(enum soq_log_level level)
{
    static const char *const texts[] = {"error", "warning", "info", "debug"};

    return texts[level <= SOQ_LOG_DEBUG ? level : SOQ_LOG_DEBUG];
}
