/* Segments whose stored keys stand for later positions: the queries are rotated back by the distance instead. */
#include <math.h>

#include "kernels/attention.h"

static double distance_of(const struct item *item, const struct soq_step_segment *segment, const struct soq_step_row *row)
{
    int64_t beyond = (int64_t)row->position + 1 - item->args->window - item->args->sinks;

    if (segment->flags & SOQ_SEGMENT_ROTATE)
        return segment->rotation;
    return beyond > 0 ? (double)beyond : 0;
}

/* Query i, whose elements lie BLOCK apart, by minus the distance. Angles are taken in F64. */
static void turn(const struct item *item, double distance, const float *q, float *out)
{
    const struct soq_attention_args *args = item->args;
    const float *inv_freq = cpu_view_row(&args->inv_freq, 0);
    size_t pairs = args->n_rot / 2, step = args->rope_kind == SOQ_ROPE_HALF ? BLOCK : 2 * BLOCK;
    size_t apart = args->rope_kind == SOQ_ROPE_HALF ? pairs * BLOCK : BLOCK;

    for (size_t i = 0; i < pairs; i++) {
        float a = q[i * step], b = q[i * step + apart];
        double sine, cosine;

        sincos(-distance * (double)inv_freq[i], &sine, &cosine);
        out[i * step] = a * (float)cosine - b * (float)sine;
        out[i * step + apart] = a * (float)sine + b * (float)cosine;
    }
    for (size_t d = args->n_rot; d < item->dk; d++)
        out[d * BLOCK] = q[d * BLOCK];
}

const float *cpu_item_turned(struct item *item, uint32_t segment)
{
    const struct soq_step_segment *s = &step_segments(item->step)[item->seq->first_segment + segment];

    if (!s->flags)
        return item->q;
    if (item->turned_for == segment + 1)
        return item->turned;
    for (uint32_t i = 0; i < item->n; i++) {
        size_t place = i / BLOCK * item->dk * BLOCK + i % BLOCK;

        turn(item, distance_of(item, s, item->rows[i]), item->q + place, item->turned + place);
    }
    item->turned_for = segment + 1;
    item->coded_from = item->coded_from == item->turned ? NULL : item->coded_from;
    return item->turned;
}
