/* What a row of logits says, and how far it is from the row of the full cache. */
#ifndef SOQ_CLI_EVAL_LOGITS_H
#define SOQ_CLI_EVAL_LOGITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct soq__row_summary {
    double log_sum; /* of exp */
    uint32_t top;   /* the likeliest, the first of equals */
};

struct soq__row_summary soq__row_summary(const float *logits, uint32_t n);
/* -log softmax(logits)[token], nats */
double soq__row_surprise(const struct soq__row_summary *summary, const float *logits, int32_t token);

/* Rows of the full cache, in an unlinked temporary file: there are a few hundred megabytes of them. */
struct soq__row_store {
    float *rows;                        /* [n_rows][n_vocab] mapped */
    struct soq__row_summary *summaries; /* [n_rows] */
    size_t n_rows, n_bytes;
    uint32_t n_vocab;
};

int soq__row_store_init(struct soq__row_store *store, size_t n_rows, uint32_t n_vocab, struct soq_error *err);
void soq__row_store_done(struct soq__row_store *store);
void soq__row_store_put(struct soq__row_store *store, size_t row, const float *logits, const struct soq__row_summary *summary);
/* KL(stored || given) = sum p log(p / q) in nats: 0 where both are equal, infinite where it cannot be computed. */
double soq__row_store_divergence(const struct soq__row_store *store, size_t row, const float *logits,
                                 const struct soq__row_summary *summary);

#endif
