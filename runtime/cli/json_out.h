/* JSON on standard output: one object a line. */
#ifndef SOQ_CLI_JSON_OUT_H
#define SOQ_CLI_JSON_OUT_H

#include <jansson.h>
#include <stddef.h>

#include "base/error.h"

/* A string of any bytes: what is not valid UTF-8 becomes U+FFFD. NULL: out of memory. */
json_t *soq__json_text(const char *data, size_t n);
/* A number; null where JSON has none (infinite, NaN). */
json_t *soq__json_number(double value);

/* Writes it on a line of its own and releases it. 0, or -1: out of memory (json NULL too) or standard output is lost. */
int soq__json_line(json_t *json);
/* {"event": "error", "code": "unsupported", "message": "..."} */
int soq__json_error(int rc, const struct soq_error *err);

#endif
