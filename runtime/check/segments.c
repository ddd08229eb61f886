#include "check/segments.h"

#include "check/packing.h"

enum { ROT_MAX = 64, ENTRIES_MAX = 512 };

struct rope {
    uint32_t kind, n_rot;
    float inv_freq[ROT_MAX / 2];
};

/* By how much the query of the row at `position` turns for keys of a segment. */
static double turn_of(const struct soq__cache_shape *s, const struct soq_step_segment *segment, uint32_t position)
{
    uint32_t sight = s->window + s->sinks;

    if (segment->flags & SOQ_SEGMENT_ROTATE)
        return -(double)segment->rotation;
    if (segment->flags & SOQ_SEGMENT_ROLLING)
        return position + 1 > sight ? -(double)(position + 1 - sight) : 0;
    return 0;
}

/* What was packed is what it decodes to already. */
static double kept_number(const struct soq__cache *c, const struct soq__matrix *m, uint32_t row, uint32_t col)
{
    double x = (double)*soq__matrix_at(m, row, col);

    return c->shape.dtype == SOQ_DTYPE_F16 && row >= c->n_packed * c->shape.block_tokens ? soq__ref_half(x) : x;
}

static bool sees(const struct soq__cache_shape *s, const struct soq_step_segment *segment, uint32_t entry, uint32_t position)
{
    int64_t p = (int64_t)entry + segment->position_offset, q = position;

    return entry <= position && p <= q && (!s->window || p + s->window > q || p < s->sinks);
}

/* One head of the row at `position`, over segments; out [dv]. */
static void attend(const struct soq__cache *c, const struct rope *rope, const struct soq__rig_step *step, uint32_t position,
                   uint32_t head, double *out)
{
    const struct soq__cache_shape *s = &c->shape;
    uint32_t kv = head / (s->n_heads / s->n_kv_heads);
    double total = 0, weights[ENTRIES_MAX], q[512], most = -INFINITY;
    uint32_t n = 0, entries[ENTRIES_MAX];

    for (uint32_t g = 0; g < step->step.n_segments; g++) {
        const struct soq_step_segment *segment = &step->segments[g];

        for (uint32_t d = 0; d < s->dk; d++)
            q[d] = (double)*soq__matrix_at(&c->q, position, head * s->dk + d);
        if (segment->flags)
            soq__ref_rope(rope->kind, q, rope->n_rot, rope->inv_freq, turn_of(s, segment, position), 1);
        for (uint32_t e = segment->first_entry; e < segment->first_entry + segment->n_entries; e++) {
            double score = 0;

            if (!sees(s, segment, e, position))
                continue;
            for (uint32_t d = 0; d < s->dk; d++)
                score += q[d] * kept_number(c, &c->k, e, kv * s->dk + d);
            entries[n] = e;
            weights[n] = score * (double)(float)SOQ__CACHE_SCALE;
            most = fmax(most, weights[n++]);
        }
    }
    memset(out, 0, s->dv * sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        total += weights[i] = exp(weights[i] - most);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < s->dv; d++)
            out[d] += weights[i] / total * kept_number(c, &c->v, entries[i], kv * s->dv + d);
}

/* RoPE of the whole head; *freq_out is what the backend gets. */
static struct rope make_rope(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__matrix *freq_out)
{
    struct rope rope = {.kind = SOQ_ROPE_HALF, .n_rot = s->dk & ~3u};

    *freq_out = soq__rig_matrix(rig, 1, rope.n_rot / 2, 0, 4);
    for (uint32_t i = 0; i < rope.n_rot / 2; i++)
        rope.inv_freq[i] = *soq__matrix_at(freq_out, 0, i) = (float)pow(10000, -2.0 * i / rope.n_rot);
    soq__rig_send(rig, freq_out);
    return rope;
}

static void compare(const struct soq__cache *c, const struct rope *rope, const struct soq__rig_step *step,
                    const struct soq__matrix *out)
{
    const struct soq__cache_shape *s = &c->shape;
    uint32_t dtype = soq__cache_tolerance(c);
    double want[512];

    for (uint32_t r = 0; r < step->step.n_rows; r++)
        for (uint32_t h = 0; h < s->n_heads; h++) {
            attend(c, rope, step, step->rows[r].position, h, want);
            for (uint32_t d = 0; d < s->dv; d++)
                soq__rig_close(c->rig, SOQ_OP_ATTENTION, dtype, (double)*soq__matrix_at(out, r, h * s->dv + d), want[d], 1, r,
                               h * s->dv + d);
        }
}

void soq__segments_try(struct soq__rig *rig, const struct soq__cache_shape *s, const struct soq__segments_try *t)
{
    struct soq__matrix out = soq__rig_matrix(rig, t->n_rows, s->n_heads * s->dv, 0, 4), freq;
    struct rope rope = make_rope(rig, s, &freq);
    struct soq_attention_args args;
    struct soq__rig_step step;
    struct soq__cache c;

    soq__cache_open_packing(&c, rig, s, t->n_entries, 0, t->coders);
    soq__cache_fill(&c, t->n_packed, 0);
    soq__rig_step_init(&step);
    soq__rig_step_add(&step, 0, t->n_entries - t->n_rows, t->n_rows);
    if (t->n_packed)
        soq__cache_map(&c, &step, 0);
    t->lay(&step, t->n_entries);
    args = soq__cache_attention_args(&c, t->n_entries - t->n_rows, t->n_rows, &out, 0);
    args.inv_freq = freq.view;
    args.rope_kind = rope.kind;
    args.n_rot = rope.n_rot;
    soq__rig_begin(rig, &step);
    SOQ__SUBMIT(rig, rig->ops->attention->attention, args);
    soq__rig_end(rig);
    soq__rig_fetch(rig, &out);
    compare(&c, &rope, &step, &out);
    soq__cache_close(&c);
    soq__rig_matrix_free(rig, &freq);
    soq__rig_matrix_free(rig, &out);
}

void soq__segments_split(struct soq__rig_step *step, uint32_t n, uint32_t first, uint32_t n_entries)
{
    step->segments[0].n_entries = n;
    step->segments[1] = step->segments[0];
    step->segments[1].first_entry = first;
    step->segments[1].n_entries = n_entries - first;
    step->step.n_segments = step->seqs[0].n_segments = 2;
}
