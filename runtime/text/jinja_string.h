/* Strings with provenance: building, slicing, walking by characters. */
#ifndef SOQ_TEXT_JINJA_STRING_H
#define SOQ_TEXT_JINJA_STRING_H

#include "text/jinja_value.h"

/* A string under construction; failures stick to m->rc and make later calls no-ops. */
struct jbuild {
    struct jmem *m;
    char *p;
    size_t n, cap, max; /* max: -SOQ_ELIMIT beyond so many bytes; 0 = no limit of its own */
    struct soq__span *spans;
    size_t span_count, span_cap;
    bool markup; /* so is the result */
};

/* Appends n bytes of one provenance. */
void soq__jb_add(struct jbuild *b, const char *p, size_t n, bool untrusted);
void soq__jb_puts(struct jbuild *b, const char *text); /* trusted */
void soq__jb_cp(struct jbuild *b, uint32_t cp, bool untrusted);
void soq__jb_repeat(struct jbuild *b, char c, size_t n, bool untrusted);
void soq__jb_printf(struct jbuild *b, const char *fmt, ...) SOQ_PRINTF(2, 3);
void soq__jb_str(struct jbuild *b, const struct jstr *s);
void soq__jb_slice(struct jbuild *b, const struct jstr *s, size_t from, size_t to); /* bytes [from, to) of s */
const struct jstr *soq__jb_done(struct jbuild *b);                                  /* NULL after a failure */

/* Copies neither the bytes nor, for slices without a border inside a range, anything else. NULL after a failure. */
const struct jstr *soq__jstr_view(struct jmem *m, const char *p, size_t n, bool untrusted);
const struct jstr *soq__jstr_slice(struct jmem *m, const struct jstr *s, size_t from, size_t to);
const struct jstr *soq__jstr_copy(struct jmem *m, const char *text); /* trusted */

/* Walks characters. */
struct jiter {
    const struct jstr *s;
    size_t at;   /* byte offset of the next character */
    size_t span; /* first range that does not end before it */
};

struct jchar {
    uint32_t cp;     /* JCHAR_BAD for a malformed byte */
    size_t at, size; /* its bytes */
    bool untrusted;
};

#define JCHAR_BAD 0x110000u

bool soq__jiter_next(struct jiter *it, struct jchar *c_out);

/* How much of a quoted text messages show: up to 64 bytes, whole characters; for printf's %.*s. */
int soq__jclip(const struct jstr *s);

size_t soq__jstr_chars(const struct jstr *s);                    /* number of characters */
size_t soq__jstr_offset(const struct jstr *s, size_t character); /* byte offset of a character, or s->n beyond the end */
/* Byte offset of the first (last) place where needle lies within [from, to), or SIZE_MAX. */
size_t soq__jstr_find(const struct jstr *s, const struct jstr *needle, size_t from, size_t to);
size_t soq__jstr_rfind(const struct jstr *s, const struct jstr *needle, size_t from, size_t to);

#endif
