/* How many blocks a sequence takes, now and later: for admission, and for forecasts without a cache. */
#ifndef SOQ_KV_PROMISE_H
#define SOQ_KV_PROMISE_H

#include "kv/cache.h"

struct soq__kv_need_params {
    const struct soq__kv_layout *layout;
    const struct soq__kv_policy *policies;
    const struct soq__kv_seq *seq; /* that goes on; NULL: one that begins */
    uint32_t chunk;                /* rows of a step, at most */
    uint32_t n_prompt, n_entries;  /* the prompt ends there; the last entry */
};

/* Blocks of one pool. */
struct soq__kv_need {
    uint32_t prompt;    /* when the prompt is computed, all of it */
    uint32_t computing; /* the most on the way there: where blocks are packed more of them are plain */
    uint32_t fresh;     /* beside that, while the survivors of the largest group are copied */
    uint32_t kept;      /* right after that */
    uint32_t grown;     /* the most later, up to n_entries */
    uint32_t again;     /* beside that, in later selections */
};

void soq__kv_need(const struct soq__kv_need_params *params, uint32_t pool, struct soq__kv_need *need_out);
/* The most blocks at once. */
uint32_t soq__kv_need_peak(const struct soq__kv_need *need);

#endif
