/* What the cache tells whoever wants to watch it: which positions each layer and head holds after a decision. */
#ifndef SOQ_KV_TRACE_H
#define SOQ_KV_TRACE_H

#include <stdbool.h>
#include <stdint.h>

/* What one kv head of one layer of a sequence holds. */
struct soq__kv_kept {
    uint64_t sequence; /* 1, 2, ... in the order of their creation; forks have numbers of their own */
    uint32_t position; /* tokens committed so far */
    uint32_t layer, head;
    uint32_t n_kept;
    const uint32_t *kept; /* [n_kept] ascending; valid during the call */
    uint64_t bytes;       /* of the tiles that hold them, keys and values, blocks counted in full */
};

/* Called for each layer and head, in this order, at the end of every prompt and after every later selection, between steps and
 * under the engine's lock: it must not call back into the engine. */
typedef void soq__kv_trace_fn(void *arg, const struct soq__kv_kept *kept);

struct soq__kv_trace {
    soq__kv_trace_fn *fn; /* NULL: nobody watches */
    void *arg;
    bool measures; /* what packing survivors changes is to be measured (soq__kv_stats), which reads all of them twice */
};

#endif
