/* Summaries as tables for people (plain, markdown) and for programs (CSV, JSON). */
#ifndef SOQ_CLI_EVAL_REPORT_H
#define SOQ_CLI_EVAL_REPORT_H

#include "base/buf.h"
#include "cli/eval/summary.h"

enum soq__eval_format { SOQ__EVAL_TABLE, SOQ__EVAL_MD, SOQ__EVAL_CSV, SOQ__EVAL_JSON, SOQ__EVAL_FORMATS };

/* "table", "md", "csv", "json"; false: no such format. */
bool soq__eval_format_parse(const char *text, enum soq__eval_format *out);
/* Appends the whole report; what was not measured is left out, or "-", empty or null where others have it. */
void soq__eval_report(const struct soq__eval_summary *summary, enum soq__eval_format format, struct soq_buf *out);

#endif
