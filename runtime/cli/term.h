/* What a terminal gets beyond plain text: colour and one line of progress on standard error. Elsewhere both are nothing. */
#ifndef SOQ_CLI_TERM_H
#define SOQ_CLI_TERM_H

#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"

/* The stream is a terminal that can move its cursor. */
bool soq__term_is(FILE *stream);

/* Escape sequences where the stream is a terminal and NO_COLOR is not set, else "". */
const char *soq__term_dim(FILE *stream);
const char *soq__term_bold(FILE *stream);
const char *soq__term_reset(FILE *stream);

/* Replaces the progress line, ten times a second at most. */
void soq__progress(const char *fmt, ...) SOQ_PRINTF(1, 2);
void soq__progress_clear(void);

#endif
