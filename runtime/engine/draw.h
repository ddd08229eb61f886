/* The next tokens of a step's sequences, drawn on several threads. Under the engine's lock. */
#ifndef SOQ_ENGINE_DRAW_H
#define SOQ_ENGINE_DRAW_H

#include "engine/engine.h"

/* Room for as many draws at a time as the machine has processors, at most 8. */
int soq__draw_init(struct soq__draw *draw, uint32_t n_vocab, uint32_t max_sequences, struct soq_error *err);
void soq__draw_done(struct soq__draw *draw);

/* True if the job's rows in this step reach its last known token, so that the next one is wanted. Before the rows are
 * committed. */
bool soq__draw_is_due(const struct soq__job *job);

/* For each job that is due job->drawn, or job->draw_rc and job->err. logits: [n_outputs][n_vocab], the sampler's to overwrite.
 */
void soq__draw_all(struct soq__engine *engine, float *logits);

#endif
