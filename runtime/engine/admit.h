/* Who may compute next: admission, and who makes room for it. Between steps, under the lock.
 *
 * A job is admitted when all that it may need is promised to it. Jobs come in order of priority, then of arrival. Where one
 * does not fit the prefix index gives way first, then sequences without a job, the one that was used least recently first, then
 * jobs that wait, then jobs of lower priority that run, the youngest first. These are preempted: swapped out, or dropped and
 * computed again. One that has been overtaken often enough counts as of the highest priority, so nobody waits for ever. */
#ifndef SOQ_ENGINE_ADMIT_H
#define SOQ_ENGINE_ADMIT_H

#include "engine/engine.h"

void soq__admit(struct soq__engine *engine);

/* Takes the sequence's blocks out of the pool, one way or the other; a job that runs on it waits again. -SOQ_EBUSY: [kv]
 * preempt forbids it; -SOQ_ELIMIT: the swap memory is full, and [kv] preempt forbids to compute again. On failure nothing has
 * changed. */
int soq__preempt(struct soq__sequence *seq, struct soq_error *err);
/* Brings blocks that are out back into the pool, making room as for a job of the lowest priority. */
int soq__bring_in(struct soq__sequence *seq, struct soq_error *err);
/* The same room for a fork: something was freed, so it may be tried again. */
bool soq__make_room_for_fork(struct soq__sequence *seq);

#endif
