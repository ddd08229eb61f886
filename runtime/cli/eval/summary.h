/* What the records of a plan say: a row for each configuration and length, and one for all lengths together. */
#ifndef SOQ_CLI_EVAL_SUMMARY_H
#define SOQ_CLI_EVAL_SUMMARY_H

#include "cli/eval/paired.h"
#include "cli/eval/plan.h"

enum { SOQ__EVAL_BINS = 4 }; /* of the tokens behind a prompt */

/* Differences and ratios are to the full cache in f32, over the same items. n is 0 where nothing was measured. */
struct soq__eval_row {
    const char *config;
    uint32_t length; /* 0: all */
    double ppl;
    struct soq__interval log_ppl;          /* difference of the logarithms of perplexity */
    struct soq__interval kl;               /* nats */
    double kl_by_position[SOQ__EVAL_BINS]; /* of equal parts of the scored tokens, in order */
    double same_top;                       /* share of the scored tokens */
    struct soq__interval passkey, passkey_difference;
    double passkey_at[SOQ__EVAL_LIST_MAX]; /* mean, by the plan's depths; NAN: none was measured */
    struct soq__interval recall, recall_difference;
    struct soq__interval tok_s;
    double kv_bytes; /* held behind the prompt and the answer, mean; NAN: unknown */
    double kv_peak;  /* the most of a speed test; NAN: unknown */
};

struct soq__eval_summary {
    const struct soq__eval *eval;
    struct soq__eval_row *rows; /* [n] configurations in order, of each the lengths, then all if there are several */
    size_t n;
};

int soq__eval_summary_init(struct soq__eval_summary *summary, const struct soq__eval *eval, struct soq_error *err);
void soq__eval_summary_done(struct soq__eval_summary *summary);
/* NULL: there is none. length 0: all lengths. */
const struct soq__eval_row *soq__eval_summary_row(const struct soq__eval_summary *summary, const char *config, uint32_t length);

#endif
