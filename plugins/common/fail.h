/* How a plugin reports failure: `return plugin_fail(err, SOQ_EINVAL, "...", ...)`.
 *
 * The core's own helper is not for plugins: they import no symbol of the host. */
#ifndef PLUGIN_FAIL_H
#define PLUGIN_FAIL_H

#include <stdarg.h>
#include <stdio.h>

#include "soquete/error.h"

/* Writes the message into err (which may be NULL) and returns -code. A message that is too long is cut. */
__attribute__((format(printf, 3, 4))) static inline int plugin_fail(struct soq_error *err, enum soq_error_code code,
                                                                    const char *fmt, ...)
{
    va_list args;

    if (!err)
        return -(int)code;
    err->code = -(int)code;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return -(int)code;
}

#endif
