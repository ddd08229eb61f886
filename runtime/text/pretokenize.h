/* Splitting a text into words before byte-level BPE, as tokenizer.ggml.pre says. */
#ifndef SOQ_TEXT_PRETOKENIZE_H
#define SOQ_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct soq__pretok; /* compiled patterns, read-only: shared by any number of threads */

const char *soq__pretok_name(size_t i); /* the supported names one by one; NULL after the last */

/* name: a value of tokenizer.ggml.pre. */
int soq__pretok_create(const char *name, struct soq__pretok **out, struct soq_error *err);
void soq__pretok_free(struct soq__pretok *p);
/* What the name implies besides the patterns: a word that is a token needs no merges; BOS is added unless the file says no. */
bool soq__pretok_whole_words(const struct soq__pretok *p);
bool soq__pretok_add_bos(const struct soq__pretok *p);

/* Where words end, ascending; the last is the end of the text. Zero-initialise. */
struct soq__cuts {
    uint32_t *ends; /* [n] */
    size_t n, cap;
};

void soq__cuts_done(struct soq__cuts *c);
/* Overwrites cuts. n <= UINT32_MAX. -SOQ_ELIMIT if a pattern takes too long on this text. */
int soq__pretok_split(const struct soq__pretok *p, const char *text, size_t n, struct soq__cuts *cuts, struct soq_error *err);

#endif
