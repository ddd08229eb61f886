/* A picture of one decision of a KV policy: positions from left to right, a line for each KV head of each layer, marks where an
 * entry is kept. */
#ifndef SOQ_CLI_TRACE_SVG_H
#define SOQ_CLI_TRACE_SVG_H

#include "base/buf.h"
#include "cli/trace_read.h"

/* Appends an SVG document, which follows the viewer's light or dark scheme. */
void soq__trace_svg(const struct soq__trace_event *event, struct soq_buf *out);

#endif
