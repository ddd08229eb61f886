/* Building a struct soq_step: rows are added sequence by sequence, then everything is laid out flat. */
#ifndef SOQ_ENGINE_STEP_H
#define SOQ_ENGINE_STEP_H

#include "kv/cache.h"

struct soq__step_builder {
    uint32_t max_rows, max_seqs, max_outputs, max_segments;
    struct soq_step_row *rows;         /* [max_rows] */
    struct soq_step_seq *seqs;         /* [max_seqs] */
    struct soq_step_segment *segments; /* [max_segments] */
    uint32_t *outputs;                 /* [max_outputs] */
    uint32_t n_rows, n_seqs, n_outputs, n_segments;
    uint32_t n_lines, n_entries; /* lines of attention mass; entries of the longest sequence */
    uint64_t serial;
    unsigned char *bytes; /* the flat step, grown when many table edits are pending */
    size_t cap;
};

int soq__step_init(struct soq__step_builder *b, uint32_t max_rows, uint32_t max_seqs, uint32_t max_outputs,
                   uint32_t segments_per_seq, struct soq_error *err);
void soq__step_done(struct soq__step_builder *b);

void soq__step_reset(struct soq__step_builder *b);
/* tokens[0..n): the next tokens of a prepared sequence; the last n_outputs of them want logits. Returns the index of the first
 * output. There must be room. */
uint32_t soq__step_add(struct soq__step_builder *b, struct soq__kv_seq *seq, const int32_t *tokens, uint32_t n,
                       uint32_t n_outputs);
/* A token `ahead` entries behind what is committed, among the sequence's tentative rows; it wants logits. */
uint32_t soq__step_add_draft(struct soq__step_builder *b, struct soq__kv_seq *seq, int32_t token, uint32_t ahead);
/* The flat step with the cache's pending edits and copies; valid until the next call. */
int soq__step_finish(struct soq__step_builder *b, const struct soq__kv_cache *kv, const struct soq_step **step_out,
                     struct soq_error *err);

#endif
