/* Memory and the error of one parse or one rendering: an arena with a byte limit. Nothing is freed before the end, so no error
 * path has anything to clean up. The first failure is remembered in rc, its message written to err. */
#ifndef SOQ_TEXT_JINJA_MEM_H
#define SOQ_TEXT_JINJA_MEM_H

#include <stddef.h>

#include "base/error.h"

struct jchunk;

struct jmem {
    struct jchunk *chunks; /* newest first */
    size_t bytes, limit;   /* taken from soq__alloc so far; at most */
    struct soq_error *err; /* may be NULL */
    int rc;                /* the first failure's code, negative; 0 = none */
};

void soq__jmem_done(struct jmem *m);
/* 16-byte aligned and uninitialised; NULL after a failure, which is then in m->rc. */
void *soq__jmem_alloc(struct jmem *m, size_t size);
void *soq__jmem_array(struct jmem *m, size_t count, size_t size);
void *soq__jmem_zero(struct jmem *m, size_t size);
/* A larger copy of old[0..count) with room for at least count + extra elements; *cap is updated. */
void *soq__jmem_grow(struct jmem *m, const void *old, size_t count, size_t extra, size_t *cap, size_t size);

/* Remembers and describes a failure; a second one changes nothing. Returns m->rc. */
int soq__jfail(struct jmem *m, enum soq_error_code code, const char *fmt, ...) SOQ_PRINTF(3, 4);

#endif
