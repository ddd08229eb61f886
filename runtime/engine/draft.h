/* Drafts: between two of a sequence's steps its lossy view proposes tokens, one forward pass each; the step then computes their
 * rows at once over the full view, which decides. Both views hold a row of the same token in the same entry, and the step
 * writes all of its rows to both, so what was drafted leaves no trace: not in blocks, not in a policy's state or sums.
 *
 * In a step drafts come first, then everybody's rows. Under the lock, which is released while the backend computes. */
#ifndef SOQ_ENGINE_DRAFT_H
#define SOQ_ENGINE_DRAFT_H

#include "engine/engine.h"

/* How many tokens [decoding] lets a sequence draft at a time; 0: there is no drafter. */
uint32_t soq__drafts_most(const struct soq__settings *settings);
/* Reads [decoding] drafter and what belongs to it. */
void soq__drafting_init(struct soq__engine *engine, const struct soq__settings *settings);
/* Refuses what it does not go with: samplers and policies, policies alone. */
int soq__drafting_check_policies(const struct soq__policies *policies, struct soq_error *err);
int soq__drafting_check(const struct soq__engine *engine, struct soq_error *err);
/* Tells the user where nothing will ever be drafted, whatever comes, and what to change; once the layout is there. */
void soq__drafting_warn(const struct soq__engine *engine);
/* Whether this request can be drafted for, and room for it. */
int soq__drafts_open(struct soq__engine *engine, struct soq__job *job, struct soq_error *err);
void soq__drafts_close(struct soq__job *job);

/* How many tokens to draft for a job that decodes. */
uint32_t soq__drafts_wanted(const struct soq__engine *engine, const struct soq__job *job);
/* Drafts job->n_drafts tokens, or fewer, for each job of the step; they stand behind the sequence's known ones. */
int soq__draft(struct soq__engine *engine);
/* The token behind `ahead` drafts, which were accepted, from the logits of the full view, and the tokens that would be behind
 * further ones: as many as there are threads for, but one where somebody wants logits, which may be gone afterwards. They are
 * engine->draw.rows; those behind the first that does not go on were drawn in vain. Returns how many. */
uint32_t soq__choose(struct soq__engine *engine, struct soq__job *job, uint32_t ahead, float *logits);
/* n_accepted of the step's drafts were. */
void soq__drafts_done(const struct soq__engine *engine, struct soq__job *job, uint32_t n_accepted);

#endif
