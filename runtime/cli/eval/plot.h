/* Pictures of a summary: SVG documents that follow the viewer's light or dark scheme. */
#ifndef SOQ_CLI_EVAL_PLOT_H
#define SOQ_CLI_EVAL_PLOT_H

#include "base/buf.h"
#include "cli/eval/summary.h"

/* Pass keys that were found, by length and depth: a panel for each configuration. */
void soq__eval_plot_heat(const struct soq__eval_summary *summary, struct soq_buf *out);

enum soq__eval_quality { SOQ__EVAL_BY_KL, SOQ__EVAL_BY_PASSKEY };

/* Quality against the bytes that a sequence of the longest length holds, both relative to the full cache; who is beaten by
 * nobody in both is joined by a line. */
void soq__eval_plot_pareto(const struct soq__eval_summary *summary, enum soq__eval_quality quality, struct soq_buf *out);

/* ---- What both use */

/* In pixels. */
void soq__plot_begin(struct soq_buf *out, double width, double height, const char *title);
void soq__plot_end(struct soq_buf *out);
/* anchor: "start", "middle" or "end"; class: "" or one of the style's. Escapes. */
void soq__plot_text(struct soq_buf *out, double x, double y, const char *anchor, const char *class, const char *text);

#endif
