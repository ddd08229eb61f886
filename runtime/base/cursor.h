/* Reading a file's bytes in order, each piece checked against what is left. Numbers are little-endian. */
#ifndef SOQ_BASE_CURSOR_H
#define SOQ_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct soq__cursor {
    const unsigned char *at;
    size_t left;
    bool truncated; /* something was wanted that is not there; sticky */
};

/* The next n bytes; NULL, and truncated, if there are fewer. */
static inline const unsigned char *soq__cursor_take(struct soq__cursor *c, uint64_t n)
{
    const unsigned char *at = c->at;

    if (c->truncated || n > c->left) {
        c->truncated = true;
        return NULL;
    }
    c->at += n;
    c->left -= (size_t)n;
    return at;
}

/* 0 once truncated. */
static inline uint64_t soq__cursor_number(struct soq__cursor *c, unsigned n_bytes)
{
    const unsigned char *at = soq__cursor_take(c, n_bytes);
    uint64_t value = 0;

    for (unsigned i = 0; at && i < n_bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static inline uint32_t soq__cursor_u32(struct soq__cursor *c)
{
    return (uint32_t)soq__cursor_number(c, 4);
}

static inline uint64_t soq__cursor_u64(struct soq__cursor *c)
{
    return soq__cursor_number(c, 8);
}

static inline void soq__put_number(unsigned char *to, uint64_t value, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

#endif
