/* The parts of `soquete inspect`: text, JSON, and what is wrong with a file that can be read. */
#ifndef SOQ_CLI_INSPECT_H
#define SOQ_CLI_INSPECT_H

#include <stdbool.h>

#include "base/buf.h"
#include "model/gguf.h"

/* What to show. */
struct soq__inspect {
    bool meta;
    bool tensors;
    bool whole; /* long arrays and strings are not shortened */
};

/* Sums over the tensors of one type. */
struct soq__inspect_total {
    size_t tensors;
    uint64_t elements;
    uint64_t bytes;
};

/* is_problem: the runtime cannot use the file as it is; else a remark. text: one line. */
typedef void soq__inspect_report_fn(void *context, bool is_problem, const char *text);

/* Reports every problem and remark; returns the number of problems. */
size_t soq__inspect_problems(const struct soq__gguf *g, soq__inspect_report_fn *report, void *context);

/* type: a type id, or UINT32_MAX for all tensors. */
struct soq__inspect_total soq__inspect_total(const struct soq__gguf *g, uint32_t type);

/* Append the report to out; they return the number of problems. soq__buf_ok(out) is false if memory ran out. */
size_t soq__inspect_text(const struct soq__gguf *g, const struct soq__inspect *show, struct soq_buf *out);
size_t soq__inspect_json(const struct soq__gguf *g, const struct soq__inspect *show, struct soq_buf *out);

/* Appends s with quotes, backslashes, control characters and bytes that are no UTF-8 escaped, at most max characters and then
 * "...". */
void soq__inspect_escape(struct soq_buf *out, struct soq__gguf_str s, size_t max);

#endif
