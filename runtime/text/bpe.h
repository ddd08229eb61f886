/* The merge loop that both BPE families share: symbols in a linked list, candidate pairs in a heap, O(n log n). */
#ifndef SOQ_TEXT_BPE_H
#define SOQ_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SOQ__BPE_END UINT32_MAX

struct soq__bpe_sym {
    uint32_t start, len; /* bytes of the text; len 0: merged into the symbol on its left */
    uint32_t prev, next; /* SOQ__BPE_END at the ends */
    int32_t id;          /* token, -1 = none */
};

struct soq__bpe_pair {
    float cost;    /* smaller merges first, then the leftmost */
    uint32_t left; /* symbol */
    uint32_t len;  /* of both together, which tells a stale pair */
    int32_t id;    /* what it becomes */
};

/* Zero-initialise; the memory is kept from word to word. */
struct soq__bpe {
    struct soq__bpe_sym *syms; /* [n] symbol 0 is always the first of the list */
    size_t n, cap;
    struct soq__bpe_pair *heap;
    size_t heap_n, heap_cap;
};

/* May the two merge? Neighbours in the text; writes what the pair costs and becomes. */
typedef bool soq__bpe_rule(const void *ctx, const struct soq__bpe_sym *left, const struct soq__bpe_sym *right, float *cost_out,
                           int32_t *id_out);

/* Empties it and makes room for n symbols, n > 0. */
int soq__bpe_begin(struct soq__bpe *b, size_t n, struct soq_error *err);
/* Appends a symbol; at most as many as announced, each with len > 0. */
void soq__bpe_add(struct soq__bpe *b, uint32_t start, uint32_t len, int32_t id);
void soq__bpe_merge(struct soq__bpe *b, soq__bpe_rule *rule, const void *ctx);
void soq__bpe_done(struct soq__bpe *b);

#endif
