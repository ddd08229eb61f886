/* Items that are computed at the same time, each in a sequence of its own.
 *
 * A policy acts as in use. The prompt is computed in chunks; where it ends, the policy selects and the codec packs; then the
 * answer is forced token by token, one row of the cache as it is by then for each, and what the model would have said is read
 * off the logits. An answer counts as right where each of its tokens was the likeliest, which is what greedy decoding comes to.
 */
#ifndef SOQ_CLI_EVAL_LANES_H
#define SOQ_CLI_EVAL_LANES_H

#include "cli/eval/run.h"

struct soq__eval_lanes {
    struct soq__eval_run *run;
    struct soq__eval_lane *items; /* [parallel], n in use */
    struct soq__job *jobs;        /* [parallel] */
    uint32_t n;
};

/* Needs done() in any case. */
int soq__eval_lanes_init(struct soq__eval_lanes *lanes, struct soq__eval_run *run, struct soq_error *err);
void soq__eval_lanes_done(struct soq__eval_lanes *lanes);
/* One more item, of the run's engine; all are of one task, so that they have as many turns. is_new: it gets a record. */
int soq__eval_lanes_add(struct soq__eval_lanes *lanes, const struct soq__eval_key *key, bool is_new, struct soq_error *err);
const struct soq__eval_key *soq__eval_lanes_first(const struct soq__eval_lanes *lanes); /* NULL: there is none */
/* All turns of all of them, then their records. */
int soq__eval_lanes_run(struct soq__eval_lanes *lanes, struct soq_error *err);
void soq__eval_lanes_clear(struct soq__eval_lanes *lanes);

#endif
