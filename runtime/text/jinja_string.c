/* Strings with provenance: see jinja_string.h. */
#include "text/jinja_string.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* ---- building ---- */

static bool reserve(struct jbuild *b, size_t n)
{
    char *p;

    if (b->m->rc)
        return false;
    if (b->max && n > b->max - b->n) {
        soq__jfail(b->m, SOQ_ELIMIT, "the output is longer than %zu bytes", b->max);
        return false;
    }
    if (n <= b->cap - b->n)
        return true;
    p = soq__jmem_grow(b->m, b->p, b->n, n, &b->cap, 1);
    if (!p)
        return false;
    b->p = p;
    return true;
}

static void mark(struct jbuild *b, size_t start, size_t end)
{
    struct soq__span *last = b->span_count ? &b->spans[b->span_count - 1] : NULL;

    if (last && last->end == start) {
        last->end = end;
        return;
    }
    if (b->span_count == b->span_cap) {
        struct soq__span *spans = soq__jmem_grow(b->m, b->spans, b->span_count, 1, &b->span_cap, sizeof *spans);

        if (!spans)
            return;
        b->spans = spans;
    }
    b->spans[b->span_count++] = (struct soq__span){.start = start, .end = end};
}

void soq__jb_add(struct jbuild *b, const char *p, size_t n, bool untrusted)
{
    if (n == 0 || !reserve(b, n))
        return;
    memcpy(b->p + b->n, p, n);
    b->n += n;
    if (untrusted)
        mark(b, b->n - n, b->n);
}

void soq__jb_puts(struct jbuild *b, const char *text)
{
    soq__jb_add(b, text, strlen(text), false);
}

void soq__jb_cp(struct jbuild *b, uint32_t cp, bool untrusted)
{
    char bytes[4];

    soq__jb_add(b, bytes, soq__utf8_encode(cp, bytes), untrusted);
}

void soq__jb_repeat(struct jbuild *b, char c, size_t n, bool untrusted)
{
    if (n == 0 || !reserve(b, n))
        return;
    memset(b->p + b->n, c, n);
    b->n += n;
    if (untrusted)
        mark(b, b->n - n, b->n);
}

void soq__jb_printf(struct jbuild *b, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    soq__jb_puts(b, text);
}

/* Index of the first range of s that ends after `at`. */
static size_t first_span(const struct jstr *s, size_t at)
{
    size_t low = 0, high = s->taint_count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (s->taint[mid].end > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

void soq__jb_slice(struct jbuild *b, const struct jstr *s, size_t from, size_t to)
{
    size_t base = b->n;

    if (from >= to)
        return;
    soq__jb_add(b, s->p + from, to - from, false);
    for (size_t i = first_span(s, from); !b->m->rc && i < s->taint_count && s->taint[i].start < to; i++) {
        size_t start = s->taint[i].start > from ? s->taint[i].start : from;
        size_t end = s->taint[i].end < to ? s->taint[i].end : to;

        mark(b, base + start - from, base + end - from);
    }
}

void soq__jb_str(struct jbuild *b, const struct jstr *s)
{
    soq__jb_slice(b, s, 0, s->n);
}

const struct jstr *soq__jb_done(struct jbuild *b)
{
    struct jstr *s = soq__jmem_alloc(b->m, sizeof *s);

    if (!s)
        return NULL;
    *s = (struct jstr){.p = b->n ? b->p : "", .n = b->n, .taint = b->spans, .taint_count = b->span_count, .markup = b->markup};
    return s;
}

/* ---- views and slices ---- */

const struct jstr *soq__jstr_view(struct jmem *m, const char *p, size_t n, bool untrusted)
{
    struct jstr *s = soq__jmem_alloc(m, sizeof *s);
    struct soq__span *all = NULL;

    if (!s)
        return NULL;
    *s = (struct jstr){.p = p, .n = n};
    if (untrusted && n) {
        all = soq__jmem_alloc(m, sizeof *all);
        if (!all)
            return NULL;
        *all = (struct soq__span){.start = 0, .end = n};
        s->taint = all;
        s->taint_count = 1;
    }
    return s;
}

const struct jstr *soq__jstr_slice(struct jmem *m, const struct jstr *s, size_t from, size_t to)
{
    size_t i, count = 0;
    struct soq__span *spans;
    struct jstr *t;

    if (from >= to)
        return soq__jstr_view(m, "", 0, false);
    for (i = first_span(s, from); i + count < s->taint_count && s->taint[i + count].start < to;)
        count++;
    t = soq__jmem_alloc(m, sizeof *t);
    if (!t)
        return NULL;
    *t = (struct jstr){.p = s->p + from, .n = to - from};
    if (count == 0)
        return t;
    spans = soq__jmem_array(m, count, sizeof *spans);
    if (!spans)
        return NULL;
    for (size_t k = 0; k < count; k++) {
        const struct soq__span *old = &s->taint[i + k];

        spans[k].start = old->start > from ? old->start - from : 0;
        spans[k].end = (old->end < to ? old->end : to) - from;
    }
    t->taint = spans;
    t->taint_count = count;
    return t;
}

const struct jstr *soq__jstr_copy(struct jmem *m, const char *text)
{
    size_t n = strlen(text);
    char *p = soq__jmem_alloc(m, n + 1);

    if (!p)
        return NULL;
    memcpy(p, text, n + 1);
    return soq__jstr_view(m, p, n, false);
}

/* ---- characters ---- */

bool soq__jiter_next(struct jiter *it, struct jchar *c_out)
{
    const struct jstr *s = it->s;
    struct jchar c = {.cp = JCHAR_BAD, .at = it->at};

    if (it->at >= s->n)
        return false;
    c.size = soq__utf8_decode(s->p + it->at, s->n - it->at, &c.cp);
    if (c.size == 0) {
        c.cp = JCHAR_BAD;
        c.size = 1;
    }
    while (it->span < s->taint_count && s->taint[it->span].end <= c.at)
        it->span++;
    c.untrusted = it->span < s->taint_count && s->taint[it->span].start < c.at + c.size;
    it->at += c.size;
    *c_out = c;
    return true;
}

static size_t char_size(const struct jstr *s, size_t at)
{
    uint32_t cp;
    size_t size = soq__utf8_decode(s->p + at, s->n - at, &cp);

    return size ? size : 1;
}

int soq__jclip(const struct jstr *s)
{
    return (int)(s->n <= 64 ? s->n : soq__utf8_complete(s->p, 64));
}

size_t soq__jstr_chars(const struct jstr *s)
{
    size_t count = 0;

    for (size_t at = 0; at < s->n; at += char_size(s, at))
        count++;
    return count;
}

size_t soq__jstr_offset(const struct jstr *s, size_t character)
{
    size_t at = 0;

    for (; character > 0 && at < s->n; character--)
        at += char_size(s, at);
    return at;
}

size_t soq__jstr_find(const struct jstr *s, const struct jstr *needle, size_t from, size_t to)
{
    const char *p;

    if (from > to || needle->n > to - from)
        return SIZE_MAX;
    if (needle->n == 0)
        return from;
    p = memmem(s->p + from, to - from, needle->p, needle->n);
    return p ? (size_t)(p - s->p) : SIZE_MAX;
}

size_t soq__jstr_rfind(const struct jstr *s, const struct jstr *needle, size_t from, size_t to)
{
    if (from > to || needle->n > to - from)
        return SIZE_MAX;
    for (size_t at = to - needle->n;; at--) {
        if (memcmp(s->p + at, needle->p, needle->n) == 0)
            return at;
        if (at == from)
            return SIZE_MAX;
    }
}
