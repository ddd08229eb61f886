/* Filling struct soq_error. Library code never prints: it writes here and returns the code. */
#ifndef SOQ_BASE_ERROR_H
#define SOQ_BASE_ERROR_H

#include <stdarg.h>

#include "soquete/error.h"

#define SOQ_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Writes the message into err (which may be NULL) and returns -code, so that a caller can `return soq__fail(...)`.
 * code is one of SOQ_E..., positive. A message that is too long ends in "...". */
int soq__fail(struct soq_error *err, enum soq_error_code code, const char *fmt, ...) SOQ_PRINTF(3, 4);

/* Puts "<text>: " in front of the message that err already has. Used where context is known only above. */
void soq__fail_prefix(struct soq_error *err, const char *fmt, ...) SOQ_PRINTF(2, 3);

/* The code's short text ("out of memory"); code may be negative or positive; "ok" for 0. */
const char *soq__error_text(int code);

#endif
