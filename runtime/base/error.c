/* Error messages: formatting into the caller's struct, and the code -> text table. */
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_text(struct soq_error *err, const char *fmt, va_list args)
{
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);

    if (n < 0)
        err->text[0] = '\0';
    else if ((size_t)n >= sizeof err->text)
        memcpy(err->text + sizeof err->text - 4, "...", 4);
}

int soq__fail(struct soq_error *err, enum soq_error_code code, const char *fmt, ...)
{
    va_list args;

    if (!err)
        return -(int)code;
    err->code = -(int)code;
    va_start(args, fmt);
    set_text(err, fmt, args);
    va_end(args);
    return -(int)code;
}

void soq__fail_prefix(struct soq_error *err, const char *fmt, ...)
{
    char old[SOQ_ERROR_TEXT_MAX];
    va_list args;
    size_t n;

    if (!err)
        return;
    memcpy(old, err->text, sizeof old);
    va_start(args, fmt);
    set_text(err, fmt, args);
    va_end(args);
    n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, ": %s", old);
}

const char *soq__error_text(int code)
{
    switch (abs(code)) {
    case 0:
        return "ok";
#define CASE(name, value, text)                                                                                                \
    case value:                                                                                                                \
        return text;
        SOQ_ERRORS(CASE)
#undef CASE
    default:
        return "unknown error";
    }
}
