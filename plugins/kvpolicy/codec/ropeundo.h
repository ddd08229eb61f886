/* Keys as they were before RoPE, and back. Angles are in f64, token by token from those of the tile's first position: what is
 * undone and redone comes back up to the rounding of f32. */
#ifndef KVCODEC_ROPEUNDO_H
#define KVCODEC_ROPEUNDO_H

#include <math.h>

#include "codec.h"

/* One pair of dims: cosine and sine at a position, and what turns them to the next. */
struct rope_phase {
    double cosine, sine, step_cosine, step_sine;
};

static inline struct rope_phase rope_phase_of(const struct soq_kv_shape *shape, uint32_t pair, uint32_t position)
{
    double step = (double)shape->inv_freq[pair], angle = position * step;

    return (struct rope_phase){cos(angle), sin(angle), cos(step), sin(step)};
}

static inline void rope_next(struct rope_phase *p)
{
    double cosine = p->cosine * p->step_cosine - p->sine * p->step_sine;

    p->sine = p->sine * p->step_cosine + p->cosine * p->step_sine;
    p->cosine = cosine;
}

/* The dims of a pair. */
static inline uint32_t rope_first(const struct soq_kv_shape *shape, uint32_t pair)
{
    return shape->rope_kind == SOQ_ROPE_INTERLEAVED ? 2 * pair : pair;
}

static inline uint32_t rope_second(const struct soq_kv_shape *shape, uint32_t pair)
{
    return shape->rope_kind == SOQ_ROPE_INTERLEAVED ? 2 * pair + 1 : pair + shape->n_rot / 2;
}

/* out [tokens]: channel `dim` of keys src [tokens][width], turned back. Channels that are not rotated are left alone. */
static inline void rope_undo_channel(const struct soq_kv_shape *shape, const struct soq_kv_tile *tile, const float *src,
                                     uint32_t dim, float *out)
{
    bool interleaved = shape->rope_kind == SOQ_ROPE_INTERLEAVED;
    uint32_t pair = interleaved ? dim / 2 : dim % (shape->n_rot / 2), other;
    double gain = 1 / (double)shape->rope_mscale, sign;
    struct rope_phase p;

    if (dim >= shape->n_rot)
        return;
    other = dim == rope_first(shape, pair) ? rope_second(shape, pair) : rope_first(shape, pair);
    sign = dim < other ? gain : -gain;
    p = rope_phase_of(shape, pair, tile->first_position);
    for (uint32_t t = 0; t < tile->tokens; t++, rope_next(&p)) {
        const float *row = src + (size_t)t * tile->width;

        out[t] = codec_finite(
            (float)((double)codec_finite(row[dim]) * p.cosine * gain + (double)codec_finite(row[other]) * p.sine * sign));
    }
}

/* Turns keys [tokens][width], in place. */
static inline void rope_redo(const struct soq_kv_shape *shape, const struct soq_kv_tile *tile, float *keys)
{
    double gain = (double)shape->rope_mscale;

    for (uint32_t pair = 0; pair < shape->n_rot / 2; pair++) {
        struct rope_phase p = rope_phase_of(shape, pair, tile->first_position);
        float *a = keys + rope_first(shape, pair), *b = keys + rope_second(shape, pair);

        for (uint32_t t = 0; t < tile->tokens; t++, a += tile->width, b += tile->width, rope_next(&p)) {
            double x = (double)*a * gain, y = (double)*b * gain;

            *a = (float)(x * p.cosine - y * p.sine);
            *b = (float)(y * p.cosine + x * p.sine);
        }
    }
}

#endif
