/* Jobs that commands give to the engine themselves, where soquete.h does not reach: logits, and tokens without text. */
#ifndef SOQ_CLI_JOB_H
#define SOQ_CLI_JOB_H

#include "engine/runtime.h"

/* A greedy job that no end-of-generation token ends. */
int soq__job_init(struct soq__job *job, struct soq__sequence *seq, const int32_t *prompt, size_t n_prompt,
                  struct soq_error *err);
/* Runs it on the main thread; Ctrl-C cancels it, which is a failure. */
int soq__job_run(struct soq__job *job, struct soq_error *err);

/* Runs n jobs of sequences of one engine at the same time, in one batch, and returns the first failure. */
int soq__jobs_run(struct soq__job *jobs, uint32_t n, struct soq_error *err);

#endif
