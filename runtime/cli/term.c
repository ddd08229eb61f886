/* Terminals. */
#include "cli/term.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static bool shown;         /* there is a progress line */
static double shown_since; /* soq__clock_now */

bool soq__term_is(FILE *stream)
{
    const char *term = getenv("TERM");

    return isatty(fileno(stream)) && term && strcmp(term, "dumb") != 0;
}

static const char *style(FILE *stream, const char *sequence)
{
    const char *plain = getenv("NO_COLOR");

    return soq__term_is(stream) && !(plain && *plain) ? sequence : "";
}

const char *soq__term_dim(FILE *stream)
{
    return style(stream, "\033[2m");
}

const char *soq__term_bold(FILE *stream)
{
    return style(stream, "\033[1m");
}

const char *soq__term_reset(FILE *stream)
{
    return style(stream, "\033[0m");
}

void soq__progress(const char *fmt, ...)
{
    double now = soq__clock_now();
    va_list args;

    if (!soq__term_is(stderr) || (shown && now - shown_since < 0.1))
        return;
    fputs("\r\033[K", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fflush(stderr);
    shown = true;
    shown_since = now;
}

void soq__progress_clear(void)
{
    if (shown)
        fputs("\r\033[K", stderr);
    shown = false;
}
