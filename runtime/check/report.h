/* A report for people and for programs. */
#ifndef SOQ_CHECK_REPORT_H
#define SOQ_CHECK_REPORT_H

#include "base/buf.h"
#include "check/check.h"

/* One line for a result, and one for its reason; with the heading of its family where one begins. */
void soq__check_print_result(const struct soq__check_report *report, const struct soq__check_result *result,
                             struct soq_buf *out);
/* "cpu/generic 0.1.0: 61 passed, 0 failed, ..." */
void soq__check_print_sum(const struct soq__check_report *report, const char *library, struct soq_buf *out);
/* One JSON object. Fails without memory. */
int soq__check_print_json(const struct soq__check_report *report, const char *library, struct soq_buf *out,
                          struct soq_error *err);

#endif
