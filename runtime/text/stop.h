/* Stop strings in streamed text: matched across token borders, never emitted.
 *
 * Text that may still become a stop string is held back: the longest end of it that begins one. The first string to be complete
 * ends the text, so the result is the same however it was cut into pieces. */
#ifndef SOQ_TEXT_STOP_H
#define SOQ_TEXT_STOP_H

#include "base/buf.h"
#include "base/error.h"

struct soq__stop {
    char **strings; /* owned copies */
    size_t n;
    struct soq_buf held;
};

/* strings: NULL-terminated, or NULL for none. Refuses empty strings and invalid UTF-8. */
int soq__stop_init(struct soq__stop *stop, const char *const *strings, struct soq_error *err);
void soq__stop_done(struct soq__stop *stop);

/* Takes the next n bytes and appends to out what can be shown. *matched_out: a stop string is complete; what precedes it is in
 * out, the rest is dropped. */
int soq__stop_push(struct soq__stop *stop, const char *text, size_t n, struct soq_buf *out, bool *matched_out,
                   struct soq_error *err);
/* The text ends: appends what was held back. */
int soq__stop_flush(struct soq__stop *stop, struct soq_buf *out, struct soq_error *err);

#endif
