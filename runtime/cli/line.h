/* Lines that a user types: with editing and history on a terminal, plain otherwise. */
#ifndef SOQ_CLI_LINE_H
#define SOQ_CLI_LINE_H

#include <stdbool.h>

#include "base/buf.h"

struct soq__line;

enum soq__line_event {
    SOQ__LINE_TEXT,
    SOQ__LINE_END,       /* end of input; Ctrl-D */
    SOQ__LINE_INTERRUPT, /* Ctrl-C instead of a line */
};

/* Edits where standard input and output are a terminal. history: keep lines in the user's state directory between runs, as far
 * as that is possible. */
int soq__line_create(bool history, struct soq__line **line_out, struct soq_error *err);
/* Saves the history; failures there are nobody's concern. */
void soq__line_free(struct soq__line *line);
bool soq__line_is_edited(const struct soq__line *line);
/* Overwrites text with the line, without its end. -SOQ_EIO, -SOQ_ENOMEM. */
int soq__line_read(struct soq__line *line, struct soq_buf *text, enum soq__line_event *event_out, struct soq_error *err);

#endif
