/* Between engine.c, admit.c and scheduler.c. Under the lock. */
#ifndef SOQ_ENGINE_JOBS_H
#define SOQ_ENGINE_JOBS_H

#include "engine/engine.h"

/* Plans and runs one step, releasing the lock meanwhile. False: there is nothing to do. */
bool soq__engine_step(struct soq__engine *engine);
/* Computes the rows of engine->step; *logits_out: those of its outputs, until the next step. A failure is in step_err. */
int soq__step_compute(struct soq__engine *engine, enum soq__kv_view view, const float **logits_out);
/* Takes the job out of the queue; whoever waits for it finds it done. */
void soq__job_done(struct soq__engine *engine, struct soq__job *job, int reason);
/* code: the negative code that err holds. */
void soq__job_failed(struct soq__engine *engine, struct soq__job *job, int code, const struct soq_error *err);

#endif
