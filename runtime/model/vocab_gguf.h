/* The vocabulary of a GGUF file as a description for the tokenizer. */
#ifndef SOQ_MODEL_VOCAB_GGUF_H
#define SOQ_MODEL_VOCAB_GGUF_H

#include "model/gguf.h"
#include "text/tokenizer.h"

struct soq__vocab_gguf {
    struct soq__vocab_desc desc; /* token and merge texts lie in the file: valid until it is closed */
    void *blocks[6];             /* owned: what desc points to otherwise */
};

/* Reads the tokenizer.ggml.* keys. Messages name the key; counts that do not agree are refused. */
int soq__vocab_gguf_init(struct soq__vocab_gguf *v, const struct soq__gguf *g, struct soq_error *err);
void soq__vocab_gguf_done(struct soq__vocab_gguf *v);

/* Both steps at once. The tokenizer does not need the file any longer. Messages begin with the file's path. */
int soq__tokenizer_from_gguf(const struct soq__gguf *g, struct soq__tokenizer **tok_out, struct soq_error *err);

#endif
