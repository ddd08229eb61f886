/* The flat, pointer-free step: see struct soq_step in soquete/plugin.h. */
#include "engine/step.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

int soq__step_init(struct soq__step_builder *b, uint32_t max_rows, uint32_t max_seqs, uint32_t max_outputs,
                   uint32_t segments_per_seq, struct soq_error *err)
{
    *b = (struct soq__step_builder){
        .max_rows = max_rows, .max_seqs = max_seqs, .max_outputs = max_outputs, .max_segments = max_seqs * segments_per_seq};
    b->rows = soq__alloc_array(max_rows, sizeof *b->rows);
    b->seqs = soq__alloc_array(max_seqs, sizeof *b->seqs);
    b->segments = soq__alloc_array(b->max_segments, sizeof *b->segments);
    b->outputs = soq__alloc_array(max_outputs, sizeof *b->outputs);
    if (b->rows && b->seqs && b->segments && b->outputs)
        return 0;
    soq__step_done(b);
    return soq__fail(err, SOQ_ENOMEM, "out of memory for steps of %u rows", max_rows);
}

void soq__step_done(struct soq__step_builder *b)
{
    soq__free(b->rows);
    soq__free(b->seqs);
    soq__free(b->segments);
    soq__free(b->outputs);
    soq__free(b->bytes);
    *b = (struct soq__step_builder){0};
}

void soq__step_reset(struct soq__step_builder *b)
{
    b->n_rows = b->n_seqs = b->n_outputs = b->n_segments = b->n_lines = b->n_entries = 0;
}

/* Rows of a sequence from entry `first` on. */
struct run {
    struct soq__kv_seq *seq;
    uint32_t first, n, n_outputs;
    const int32_t *tokens; /* [n] */
    bool is_draft;         /* nobody asks for attention mass */
};

static uint32_t add(struct soq__step_builder *b, const struct run *run)
{
    struct soq_step_seq *s = &b->seqs[b->n_seqs];
    uint32_t first_output = b->n_outputs, n = run->n, end = run->first + n;

    *s = (struct soq_step_seq){
        .slot = run->seq->slot, .n_cached = run->first, .first_row = b->n_rows, .n_rows = n, .first_segment = b->n_segments};
    s->n_segments = soq__kv_segments(run->seq, end, b->segments + b->n_segments, b->max_segments - b->n_segments);
    b->n_segments += s->n_segments;
    for (uint32_t i = 0; i < n; i++) {
        bool wanted = i >= n - run->n_outputs;

        if (wanted)
            b->outputs[b->n_outputs++] = b->n_rows;
        b->rows[b->n_rows] = (struct soq_step_row){
            .token = run->tokens[i],
            .position = run->first + i,
            .entry = run->first + i,
            .seq = b->n_seqs,
            .parent = i ? (int32_t)b->n_rows - 1 : -1,
            .flags = wanted ? (uint32_t)SOQ_ROW_LOGITS : 0,
            .mass_line = run->is_draft ? 0 : soq__kv_mass_line(run->seq, i, &b->n_lines),
        };
        b->n_rows++;
    }
    b->n_seqs++;
    b->n_entries = end > b->n_entries ? end : b->n_entries;
    return first_output;
}

uint32_t soq__step_add(struct soq__step_builder *b, struct soq__kv_seq *seq, const int32_t *tokens, uint32_t n,
                       uint32_t n_outputs)
{
    return add(b, &(struct run){.seq = seq, .first = seq->n_committed, .n = n, .n_outputs = n_outputs, .tokens = tokens});
}

uint32_t soq__step_add_draft(struct soq__step_builder *b, struct soq__kv_seq *seq, int32_t token, uint32_t ahead)
{
    return add(b,
               &(struct run){
                   .seq = seq, .first = seq->n_committed + ahead, .n = 1, .n_outputs = 1, .tokens = &token, .is_draft = true});
}

/* Lays n elements behind what is there, 8-byte aligned; *at is the end so far. */
static uint32_t put(unsigned char *bytes, size_t *at, const void *src, size_t n, size_t size)
{
    size_t start = (*at + 7) / 8 * 8;

    if (n)
        memcpy(bytes + start, src, n * size);
    *at = start + n * size;
    return (uint32_t)start;
}

int soq__step_finish(struct soq__step_builder *b, const struct soq__kv_cache *kv, const struct soq_step **step_out,
                     struct soq_error *err)
{
    size_t need = sizeof(struct soq_step) + 6 * 8 + b->n_rows * sizeof *b->rows + b->n_seqs * sizeof *b->seqs +
                  b->n_segments * sizeof *b->segments + b->n_outputs * sizeof *b->outputs + kv->n_edits * sizeof *kv->edits +
                  kv->n_copies * sizeof *kv->copies;
    size_t at = sizeof(struct soq_step);
    struct soq_step *step;

    if (need > UINT32_MAX)
        return soq__fail(err, SOQ_ELIMIT, "a step of %zu bytes is too large", need);
    if (need > b->cap) {
        unsigned char *bytes = soq__alloc_aligned(64, need * 2);

        if (!bytes)
            return soq__fail(err, SOQ_ENOMEM, "out of memory for a step of %zu bytes", need);
        soq__free(b->bytes);
        b->bytes = bytes;
        b->cap = need * 2;
    }
    step = (struct soq_step *)(void *)b->bytes;
    *step = (struct soq_step){
        .struct_size = sizeof *step,
        .serial = ++b->serial,
        .flags = SOQ_STEP_LINEAR,
        .n_rows = b->n_rows,
        .n_seqs = b->n_seqs,
        .n_segments = b->n_segments,
        .n_outputs = b->n_outputs,
        .n_edits = kv->n_edits,
        .n_copies = kv->n_copies,
    };
    step->off_rows = put(b->bytes, &at, b->rows, b->n_rows, sizeof *b->rows);
    step->off_seqs = put(b->bytes, &at, b->seqs, b->n_seqs, sizeof *b->seqs);
    step->off_segments = put(b->bytes, &at, b->segments, b->n_segments, sizeof *b->segments);
    step->off_outputs = put(b->bytes, &at, b->outputs, b->n_outputs, sizeof *b->outputs);
    step->off_edits = put(b->bytes, &at, kv->edits, kv->n_edits, sizeof *kv->edits);
    step->off_copies = put(b->bytes, &at, kv->copies, kv->n_copies, sizeof *kv->copies);
    step->total_bytes = (uint32_t)at;
    *step_out = step;
    return 0;
}
