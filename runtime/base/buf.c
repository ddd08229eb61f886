/* Growable byte buffer: see buf.h. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

enum { LARGE = 1 << 20 };

void soq__buf_done(struct soq_buf *b)
{
    soq__free(b->data);
    *b = (struct soq_buf)SOQ_BUF_INIT;
}

void soq__buf_clear(struct soq_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

/* Twice as much; of what is large an eighth more, so that little is wasted. Both let appending take linear time. */
static size_t grown(size_t cap)
{
    return cap < LARGE ? 2 * cap + 32 : cap + cap / 8;
}

bool soq__buf_reserve(struct soq_buf *b, size_t extra)
{
    size_t need, cap;
    char *data;

    if (b->failed || !soq__add_size(b->len, extra, &need) || !soq__add_size(need, 1, &need)) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap)
        return true;
    cap = grown(b->cap);
    cap = cap < need ? need : cap;
    data = soq__realloc_array(b->data, cap, 1);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void soq__buf_append(struct soq_buf *b, const void *data, size_t n)
{
    if (!soq__buf_reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void soq__buf_puts(struct soq_buf *b, const char *s)
{
    soq__buf_append(b, s, strlen(s));
}

void soq__buf_putc(struct soq_buf *b, char c)
{
    soq__buf_append(b, &c, 1);
}

void soq__buf_printf(struct soq_buf *b, const char *fmt, ...)
{
    va_list args, again;
    int n;

    va_start(args, fmt);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        b->failed = true;
    } else if (soq__buf_reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void soq__buf_drop_front(struct soq_buf *b, size_t n)
{
    if (n > b->len)
        n = b->len;
    if (!n)
        return;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

const char *soq__buf_str(const struct soq_buf *b)
{
    return b->data && b->len ? b->data : "";
}

char *soq__buf_steal(struct soq_buf *b)
{
    char *s = NULL;

    if (soq__buf_reserve(b, 0)) {
        b->data[b->len] = '\0';
        s = b->data;
        b->data = NULL;
    }
    soq__buf_done(b);
    return s;
}
