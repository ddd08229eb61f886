/* The tokens that are still in the draw.
 *
 * Every filter keeps the best so-and-so many tokens of one order: logit descending, then id ascending. So the pool is no list:
 * it is the place in that order up to which tokens are in, found by counting and never by sorting. */
#ifndef STANDARD_POOL_H
#define STANDARD_POOL_H

#include <stdint.h>

enum { POOL_SHORT = 1024 };

struct pool {
    const float *logits; /* [n_vocab], no NaN, no +INFINITY */
    float max;           /* the largest of them, finite */
    uint32_t last_key;   /* of the last token that is in: keys order as logits do */
    uint32_t last_id;    /* its id */
    uint32_t n;          /* candidates to look at: ids 0 .. n - 1, or once they fit, the first n of ids, ascending */
    uint32_t listed;     /* nonzero: ids holds them */
    uint32_t ids[POOL_SHORT];
};

/* All tokens but those at -INFINITY. */
void pool_init(struct pool *pool, const float *logits, uint32_t n_vocab, float max);

/* Keeps the k best; 0 or less: off. */
void pool_top_k(struct pool *pool, int32_t k);
/* Keeps the fewest best tokens that hold the share p of the pool's probability; outside (0, 1): off. */
void pool_top_p(struct pool *pool, float p);
/* Keeps what has at least min_p times the probability of the best token; 0 or less: off. */
void pool_min_p(struct pool *pool, float min_p);

/* One token, with probability proportional to e^(logit / temperature); uniform: from [0, 1). Writes how many were in. */
uint32_t pool_draw(const struct pool *pool, float temperature, double uniform, uint32_t *n_out);

/* What pool_draw draws by: all n_vocab probabilities, 0 for tokens that are not in. p may be the logits, which are gone then.
 * Returns how many were in. */
uint32_t pool_probabilities(const struct pool *pool, float temperature, uint32_t n_vocab, float *p);

#endif
