/* Items: token lists with the answers that are looked for in them. An item is the same for every configuration. */
#ifndef SOQ_CLI_EVAL_ITEM_H
#define SOQ_CLI_EVAL_ITEM_H

#include "cli/eval/generate.h"
#include "text/tokenizer.h"

/* A prompt, an answer, then more of the prompt and another answer, ...: what a model is given and what it should say. */
struct soq__eval_item {
    int32_t *tokens; /* [n_tokens] owned */
    uint32_t n_tokens, n_turns;
    struct soq__eval_turn {
        uint32_t ask; /* the answer's first token */
        uint32_t end; /* the token behind it */
    } turns[SOQ__EVAL_TURNS_MAX];
};

void soq__eval_item_done(struct soq__eval_item *item);

/* A story of the kind with as many sentences as fit into `length` tokens, the first question included. */
int soq__eval_item_passkey(const struct soq__tokenizer *tokenizer, uint64_t seed, uint32_t length, uint32_t depth,
                           struct soq__eval_item *out, struct soq_error *err);
int soq__eval_item_recall(const struct soq__tokenizer *tokenizer, uint64_t seed, uint32_t length, struct soq__eval_item *out,
                          struct soq_error *err);

/* A text, from which items are cut: item i of n_items has the same n_scored tokens at its end whatever its length, so that
 * lengths can be compared. They lie evenly over the text. */
struct soq__eval_text {
    struct soq__ids ids;
    char name[80]; /* with a hash of the tokens */
};

/* path NULL: a generated one that is long enough for n_tokens. */
int soq__eval_text_read(const struct soq__tokenizer *tokenizer, const char *path, uint64_t seed, size_t n_tokens,
                        struct soq__eval_text *out, struct soq_error *err);
void soq__eval_text_done(struct soq__eval_text *text);

struct soq__eval_cut {
    uint32_t index, n_items, length, longest, n_scored; /* longest: of all lengths */
};

/* The text must have longest + n_items * n_scored tokens. */
int soq__eval_item_text(const struct soq__tokenizer *tokenizer, const struct soq__eval_text *text,
                        const struct soq__eval_cut *cut, struct soq__eval_item *out, struct soq_error *err);

#endif
