/* Reading a step, and checking that it is sound: what every backend does at the start of begin. */
#ifndef PLUGIN_STEP_H
#define PLUGIN_STEP_H

#include <stdbool.h>

#include "fail.h"
#include "soquete/step.h"

/* ---- The arrays of a step ------------------------------------------------------------------------------------------------ */

static inline const struct soq_step_row *step_rows(const struct soq_step *step)
{
    return (const struct soq_step_row *)((const uint8_t *)step + step->off_rows);
}

static inline const struct soq_step_seq *step_seqs(const struct soq_step *step)
{
    return (const struct soq_step_seq *)((const uint8_t *)step + step->off_seqs);
}

static inline const struct soq_step_segment *step_segments(const struct soq_step *step)
{
    return (const struct soq_step_segment *)((const uint8_t *)step + step->off_segments);
}

static inline const uint32_t *step_outputs(const struct soq_step *step)
{
    return (const uint32_t *)((const uint8_t *)step + step->off_outputs);
}

static inline const struct soq_step_edit *step_edits(const struct soq_step *step)
{
    return (const struct soq_step_edit *)((const uint8_t *)step + step->off_edits);
}

static inline const struct soq_step_copy *step_copies(const struct soq_step *step)
{
    return (const struct soq_step_copy *)((const uint8_t *)step + step->off_copies);
}

/* ---- Checks -------------------------------------------------------------------------------------------------------------- */

/* A backend without trees. */
struct plugin_step_rules {
    const char *plugin; /* for messages */
    uint32_t max_rows, max_slots;
    uint32_t segment_flags;                    /* SOQ_SEGMENT_... that it knows */
    bool (*holds)(void *self, uint32_t group); /* segments of other groups are another backend's */
    void *self;
};

static inline bool step_array_fits(const struct soq_step *step, uint32_t offset, uint32_t n, size_t size)
{
    return offset % 8 == 0 && offset <= step->total_bytes && n <= (step->total_bytes - offset) / size;
}

static inline int step_check_shape(const struct plugin_step_rules *r, const struct soq_step *step, struct soq_error *err)
{
    if (step->total_bytes < sizeof *step || !step_array_fits(step, step->off_rows, step->n_rows, sizeof(struct soq_step_row)) ||
        !step_array_fits(step, step->off_seqs, step->n_seqs, sizeof(struct soq_step_seq)) ||
        !step_array_fits(step, step->off_segments, step->n_segments, sizeof(struct soq_step_segment)) ||
        !step_array_fits(step, step->off_outputs, step->n_outputs, sizeof(uint32_t)) ||
        !step_array_fits(step, step->off_edits, step->n_edits, sizeof(struct soq_step_edit)) ||
        !step_array_fits(step, step->off_copies, step->n_copies, sizeof(struct soq_step_copy)))
        return plugin_fail(err, SOQ_EINVAL, "%s: begin: arrays of the step lie outside its %u bytes", r->plugin,
                           step->total_bytes);
    if (step->n_rows > r->max_rows)
        return plugin_fail(err, SOQ_EINVAL, "%s: begin: %u rows, the most is %u", r->plugin, step->n_rows, r->max_rows);
    if (!(step->flags & SOQ_STEP_LINEAR))
        return plugin_fail(err, SOQ_EUNSUPPORTED, "%s: begin: steps with trees of rows are not supported", r->plugin);
    return 0;
}

static inline int step_check_seq(const struct plugin_step_rules *r, const struct soq_step *step, uint32_t i,
                                 struct soq_error *err)
{
    const struct soq_step_seq *seq = &step_seqs(step)[i];

    if (seq->slot >= r->max_slots || seq->first_row > step->n_rows || seq->n_rows > step->n_rows - seq->first_row ||
        seq->first_segment > step->n_segments || seq->n_segments > step->n_segments - seq->first_segment)
        return plugin_fail(err, SOQ_EINVAL, "%s: begin: sequence %u (slot %u) lies outside the step", r->plugin, i, seq->slot);
    for (uint32_t s = 0; s < seq->n_segments; s++) {
        const struct soq_step_segment *segment = &step_segments(step)[seq->first_segment + s];

        if (!r->holds(r->self, segment->group))
            continue;
        if (segment->flags & ~r->segment_flags)
            return plugin_fail(err, SOQ_EUNSUPPORTED, "%s: begin: segments with flags %x are not supported", r->plugin,
                               segment->flags & ~r->segment_flags);
        if ((segment->flags & SOQ_SEGMENT_ROTATE) && (segment->flags & SOQ_SEGMENT_ROLLING))
            return plugin_fail(err, SOQ_EINVAL, "%s: begin: a segment is rotated by a number and row by row", r->plugin);
        if (segment->n_entries > UINT32_MAX - segment->first_entry)
            return plugin_fail(err, SOQ_EINVAL, "%s: begin: a segment of %u entries at %u", r->plugin, segment->n_entries,
                               segment->first_entry);
    }
    return 0;
}

/* Every array inside the step, every index inside its array, nothing that the backend does not do. Edits and copies are the
 * caller's to check: only he knows his blocks. */
static inline int step_check(const struct plugin_step_rules *r, const struct soq_step *step, struct soq_error *err)
{
    int rc = step_check_shape(r, step, err);

    for (uint32_t i = 0; !rc && i < step->n_seqs; i++)
        rc = step_check_seq(r, step, i, err);
    for (uint32_t i = 0; !rc && i < step->n_rows; i++)
        if (step_rows(step)[i].seq >= step->n_seqs)
            rc = plugin_fail(err, SOQ_EINVAL, "%s: begin: row %u belongs to no sequence", r->plugin, i);
    for (uint32_t i = 0; !rc && i < step->n_outputs; i++)
        if (step_outputs(step)[i] >= step->n_rows)
            rc = plugin_fail(err, SOQ_EINVAL, "%s: begin: output %u names row %u of %u", r->plugin, i, step_outputs(step)[i],
                             step->n_rows);
    return rc;
}

#endif
