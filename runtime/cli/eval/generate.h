/* Texts to be asked about: sentences that mean little, a few among them that say a number, and questions for those numbers.
 *
 * The text and its numbers follow from the seed alone, whatever the model: the same sentences come first in a longer one, and
 * where a number is hidden changes nothing else. Questions end in the words that stand before the number in the text, so that
 * small models without any tuning can answer them, too. */
#ifndef SOQ_CLI_EVAL_GENERATE_H
#define SOQ_CLI_EVAL_GENERATE_H

#include "base/buf.h"

enum { SOQ__EVAL_TURNS_MAX = 4 };

struct soq__eval_story {
    struct soq_buf text;                      /* everything up to the first question */
    struct soq_buf asks[SOQ__EVAL_TURNS_MAX]; /* [n_turns] " The number of Anna is number" */
    char answers[SOQ__EVAL_TURNS_MAX][16];    /* " 48213" */
    uint32_t n_turns;
};

#define SOQ__EVAL_STORY_INIT                                                                                                   \
    {                                                                                                                          \
        .text = SOQ_BUF_INIT                                                                                                   \
    }

/* A pass key of five digits behind `depth` percent of n_sentences: retrieval of one needle. */
void soq__eval_passkey(uint64_t seed, uint32_t n_sentences, uint32_t depth, struct soq__eval_story *out);
/* Four people with a number of four digits each, spread over the text, asked for in another order: recall of several. */
void soq__eval_recall(uint64_t seed, uint32_t n_sentences, struct soq__eval_story *out);
/* Nothing but sentences. */
void soq__eval_filler(uint64_t seed, uint32_t n_sentences, struct soq_buf *out);
void soq__eval_story_done(struct soq__eval_story *story);

#endif
