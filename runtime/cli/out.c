/* Standard output and messages. */
#include "cli/out.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/term.h"

static int lost; /* errno of the first write that failed; 0: none has */

/* The pipe has no other end any more. */
static bool reader_is_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* ok: the write just done succeeded. Earlier ones by stdio alone may have failed too, with another errno by now. */
static int settle(bool ok)
{
    if (lost || (ok && !fflush(stdout) && !ferror(stdout)))
        return lost ? -1 : 0;
    lost = errno ? errno : EIO;
    if (reader_is_gone())
        lost = EPIPE;
    return -1;
}

int soq__out_write(const char *data, size_t n)
{
    if (lost)
        return -1;
    soq__progress_clear();
    return settle(fwrite(data, 1, n, stdout) == n);
}

int soq__out_printf(const char *fmt, ...)
{
    va_list args;
    int n;

    if (lost)
        return -1;
    soq__progress_clear();
    va_start(args, fmt);
    n = vprintf(fmt, args);
    va_end(args);
    return settle(n >= 0);
}

bool soq__out_lost(void)
{
    return lost != 0;
}

void soq__cli_say(const char *command, const char *fmt, ...)
{
    va_list args;

    soq__progress_clear();
    fprintf(stderr, "soquete%s%s: ", *command ? " " : "", command);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

/* What is not supported is wrong usage where the message begins with a key of the configuration, "[kv] policy = ...", as it
 * does when settings do not go together; else a file or a machine is not supported, and the work failed. */
static int exit_code(int rc, const struct soq_error *err)
{
    switch (rc) {
    case 0:
        return SOQ_EXIT_OK;
    case -SOQ_EINVAL:
        return SOQ_EXIT_USAGE;
    case -SOQ_EUNSUPPORTED:
        return err->text[0] == '[' ? SOQ_EXIT_USAGE : SOQ_EXIT_FAILED;
    case -SOQ_ECANCELLED:
        return SOQ_EXIT_CANCELLED;
    default:
        return SOQ_EXIT_FAILED;
    }
}

int soq__cli_fail(const char *command, int rc, const struct soq_error *err)
{
    if (rc == -SOQ_ECANCELLED)
        soq__progress_clear();
    else
        soq__cli_say(command, "%s", err->text);
    return exit_code(rc, err);
}

int soq__out_finish(const char *command, int status)
{
    settle(true);
    if (!lost)
        return status;
    if (lost == EPIPE)
        return SOQ_EXIT_OK;
    soq__cli_say(command, "cannot write to standard output: %s", strerror(lost));
    return SOQ_EXIT_FAILED;
}
