/* A growable byte buffer. Always NUL-terminated after the last byte once it holds anything, so it doubles as a string builder.
 *
 * The first failed growth is remembered: later appends do nothing and soq__buf_ok() says so, which lets a writer append freely
 * and check once. Not thread-safe. */
#ifndef SOQ_BASE_BUF_H
#define SOQ_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct soq_buf {
    char *data; /* owned; NULL while empty */
    size_t len; /* bytes, without the terminator */
    size_t cap;
    bool failed; /* an allocation failed */
};

#define SOQ_BUF_INIT                                                                                                           \
    {                                                                                                                          \
        0                                                                                                                      \
    }

void soq__buf_done(struct soq_buf *b);  /* frees and resets */
void soq__buf_clear(struct soq_buf *b); /* len = 0, keeps the memory and clears `failed` */
bool soq__buf_reserve(struct soq_buf *b, size_t extra);
void soq__buf_append(struct soq_buf *b, const void *data, size_t n);
void soq__buf_puts(struct soq_buf *b, const char *s);
void soq__buf_putc(struct soq_buf *b, char c);
void soq__buf_printf(struct soq_buf *b, const char *fmt, ...) SOQ_PRINTF(2, 3);
void soq__buf_drop_front(struct soq_buf *b, size_t n); /* removes the first n bytes */
const char *soq__buf_str(const struct soq_buf *b);     /* "" while empty; never NULL */
char *soq__buf_steal(struct soq_buf *b); /* the caller owns the string; NULL if an allocation failed; the buffer is reset */

static inline bool soq__buf_ok(const struct soq_buf *b)
{
    return !b->failed;
}

#endif
