/* The arena of the template interpreter: see jinja_mem.h. */
#include "text/jinja_mem.h"

#include <stdalign.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

/* Chunks double from the first to the last size; a fuzzer sets 0 to give every object its own block. */
#ifndef JINJA_CHUNK_FIRST
#define JINJA_CHUNK_FIRST 16384
#endif
#define CHUNK_LAST (1u << 20)
#define ALIGN 16
#define TEXT_MAX (SOQ_ERROR_TEXT_MAX - 60) /* bytes of a message */

struct jchunk {
    struct jchunk *next;
    size_t used, size; /* bytes of data */
    alignas(ALIGN) unsigned char data[];
};

/* Makes text valid UTF-8 and short enough for a prefix before it. */
static void tidy(char *text, size_t length)
{
    if (length > TEXT_MAX) {
        length = soq__utf8_complete(text, TEXT_MAX);
        memcpy(text + length, "...", 4);
        length += 3;
    }
    for (size_t i = 0; i < length;) {
        uint32_t cp;
        size_t size = soq__utf8_decode(text + i, length - i, &cp);

        if (!size)
            text[i] = '?';
        i += size ? size : 1;
    }
}

int soq__jfail(struct jmem *m, enum soq_error_code code, const char *fmt, ...)
{
    char text[SOQ_ERROR_TEXT_MAX];
    va_list args;

    if (m->rc)
        return m->rc;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    tidy(text, strlen(text));
    m->rc = soq__fail(m->err, code, "%s", text);
    return m->rc;
}

void soq__jmem_done(struct jmem *m)
{
    while (m->chunks) {
        struct jchunk *next = m->chunks->next;

        soq__free(m->chunks);
        m->chunks = next;
    }
}

static struct jchunk *add_chunk(struct jmem *m, size_t need)
{
    size_t size = m->chunks ? m->chunks->size * 2 : JINJA_CHUNK_FIRST;
    struct jchunk *c;

    if (size > CHUNK_LAST)
        size = CHUNK_LAST;
    if (size < need || JINJA_CHUNK_FIRST == 0)
        size = need;
    if (size > m->limit - m->bytes)
        size = need;
    if (size > m->limit - m->bytes) {
        soq__jfail(m, SOQ_ELIMIT, "more than %zu bytes of memory are needed", m->limit);
        return NULL;
    }
    c = soq__alloc(sizeof *c + size);
    if (!c) {
        soq__jfail(m, SOQ_ENOMEM, "out of memory");
        return NULL;
    }
    *c = (struct jchunk){.next = m->chunks, .size = size};
    m->chunks = c;
    m->bytes += size;
    return c;
}

void *soq__jmem_alloc(struct jmem *m, size_t size)
{
    struct jchunk *c = m->chunks;
    size_t need;

    if (m->rc)
        return NULL;
    if (!soq__add_size(size ? size : 1, ALIGN - 1, &need)) {
        soq__jfail(m, SOQ_ELIMIT, "more than %zu bytes of memory are needed", m->limit);
        return NULL;
    }
    need -= need % ALIGN;
    if ((!c || need > c->size - c->used) && !(c = add_chunk(m, need)))
        return NULL;
    c->used += need;
    return c->data + c->used - need;
}

void *soq__jmem_array(struct jmem *m, size_t count, size_t size)
{
    size_t bytes;

    return soq__jmem_alloc(m, soq__mul_size(count, size, &bytes) ? bytes : SIZE_MAX);
}

void *soq__jmem_zero(struct jmem *m, size_t size)
{
    void *p = soq__jmem_alloc(m, size);

    return p ? memset(p, 0, size) : NULL;
}

void *soq__jmem_grow(struct jmem *m, const void *old, size_t count, size_t extra, size_t *cap, size_t size)
{
    size_t want;
    void *p;

    if (!soq__add_size(count, extra, &want) || !soq__add_size(want, want / 2 + 8, &want))
        want = SIZE_MAX;
    p = soq__jmem_array(m, want, size);
    if (!p)
        return NULL;
    if (count)
        memcpy(p, old, count * size);
    *cap = want;
    return p;
}
