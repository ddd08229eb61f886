/* Tokens drawn on several threads: behind a step's sequences, and behind their drafts. Under the engine's lock. */
#ifndef SOQ_ENGINE_DRAW_H
#define SOQ_ENGINE_DRAW_H

#include "engine/engine.h"

/* Room for as many draws at a time as the machine has processors, at most 8. */
int soq__draw_init(struct soq__draw *draw, const struct soq__engine *engine, uint32_t n_vocab, struct soq_error *err);
void soq__draw_done(struct soq__draw *draw);

/* Forgets all rows; adds one, of logits that are the sampler's to overwrite: at most one per sequence, or one per thread; draws
 * them all, each on one thread. */
void soq__draw_begin(struct soq__draw *draw);
void soq__draw_add(struct soq__draw *draw, struct soq__job *job, uint32_t ahead, float *logits);
void soq__draw_run(struct soq__engine *engine, soq__draw_fn *fn);

/* The row as the sampler wants it. */
struct soq_sampler_row soq__draw_input(const struct soq__engine *engine, const struct soq__draw_row *row, uint32_t thread);
soq__draw_fn soq__draw_sample; /* what the sampler draws */

/* For each job whose rows in this step reach its last known token, so that the next one is wanted: job->drawn, or job->draw_rc
 * and job->err. Before the rows are committed. logits: [n_outputs][n_vocab]. */
void soq__draw_all(struct soq__engine *engine, float *logits);

#endif
