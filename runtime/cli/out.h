/* Standard output, and how a command ends.
 *
 * Every write is flushed, and the first failure is remembered: a reader that has gone away (EPIPE) ends a command quietly, a
 * full disk with a message. Messages go to standard error as "soquete COMMAND: text". Main thread only. */
#ifndef SOQ_CLI_OUT_H
#define SOQ_CLI_OUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* 0, or -1 when this or an earlier write failed: then there is nothing left to do but to end. */
int soq__out_write(const char *data, size_t n);
int soq__out_printf(const char *fmt, ...) SOQ_PRINTF(1, 2);
bool soq__out_lost(void);

/* "soquete run: text" */
void soq__cli_say(const char *command, const char *fmt, ...) SOQ_PRINTF(2, 3);
/* Says err's text and returns the exit code for rc: wrong arguments and values, and settings that do not go together 2,
 * cancelled 130, all else 1. */
int soq__cli_fail(const char *command, int rc, const struct soq_error *err);
/* The exit code of a command that came as far as `status`, with what happened to standard output taken into account. */
int soq__out_finish(const char *command, int status);

#endif
