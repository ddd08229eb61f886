/* Reading what [kv] trace wrote: JSON lines, one object for each layer and KV head after each decision. */
#ifndef SOQ_CLI_TRACE_READ_H
#define SOQ_CLI_TRACE_READ_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* One line. */
struct soq__trace_line {
    uint64_t sequence, bytes;
    uint32_t position, layer, head;
    uint32_t n_kept;
    uint32_t *kept; /* [n_kept] ascending, below position; owned */
};

struct soq__trace_lines {
    struct soq__trace_line *items;
    size_t count, capacity;
};

/* Lines that differ in layer and head only: one decision. */
struct soq__trace_event {
    const struct soq__trace_line *lines;
    size_t n_lines;
};

/* Which lines; -1: all. */
struct soq__trace_filter {
    int64_t sequence, position, layer, head;
};

/* Reads path, "-" for standard input. A line that is none of a trace is refused with its number and the key. */
int soq__trace_read(const char *path, const struct soq__trace_filter *filter, struct soq__trace_lines *lines_out,
                    struct soq_error *err);
void soq__trace_lines_done(struct soq__trace_lines *lines);
/* The decision that begins with line `first`; n_lines = 0 behind the last. */
struct soq__trace_event soq__trace_event_at(const struct soq__trace_lines *lines, size_t first);

#endif
