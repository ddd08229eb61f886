/* Which packed formats are computed on as they are, and how. */
#include "codes.h"

#include <math.h>

enum {
    LEVELS = 16, /* of a codebook */
};

static uint32_t at_most(uint32_t n, uint32_t limit)
{
    return n < limit ? n : limit;
}

/* Levels in 16 bits, as two bytes: the largest is 32767 steps from 0. */
static bool take_codebook(struct cpu_codes *c, const struct soq_kv_format *format)
{
    float most = 0.0f, step;

    for (uint32_t i = 0; i < format->codebook_size && i < LEVELS; i++)
        most = fmaxf(most, fabsf(format->codebook[i]));
    if (format->bits > 4 || format->codebook_size > LEVELS || !(most > 0.0f) || most > 1e30f)
        return false;
    step = most / 32767.0f;
    for (uint32_t i = 0; i < format->codebook_size; i++) {
        uint32_t level = (uint32_t)(lrintf(format->codebook[i] / step) + 32768);

        c->passes[0].table[i] = (uint8_t)(level >> 8);
        c->passes[1].table[i] = (uint8_t)level;
    }
    c->lookup = true;
    c->passes[0].zero = 128;
    c->passes[0].factor = 256 * step;
    c->passes[1].factor = step;
    return true;
}

static bool take_levels(struct cpu_codes *c, const struct soq_kv_format *format)
{
    if (format->kind == SOQ_FORMAT_CODEBOOK)
        return take_codebook(c, format);
    c->floats = format->kind == SOQ_FORMAT_E4M3;
    if (c->floats)
        return format->bits == 8;
    c->passes[0].factor = 1.0f;
    c->passes[0].zero = 1 << (format->bits - 1);
    return format->kind == SOQ_FORMAT_AFFINE;
}

/* Vectors must not cross the border of a group. */
static bool whole_steps(uint32_t group, uint32_t axis)
{
    return group == axis || group % CODES_STEP == 0;
}

struct cpu_codes cpu_codes_of(const struct soq_kv_format *format, uint32_t role, uint32_t tokens, uint32_t width)
{
    bool key = role == SOQ_PLANE_KEY;
    struct cpu_codes c = {
        .bits = format->bits, .scale_type = format->dtype, .scale_bytes = format->dtype == SOQ_DTYPE_F16 ? 2 : 4};
    uint32_t outer_group;

    if (format->kind == SOQ_FORMAT_PLAIN || format->kind == SOQ_FORMAT_OPAQUE || format->outliers || format->sketch_bits ||
        (format->dtype != SOQ_DTYPE_F16 && format->dtype != SOQ_DTYPE_F32) || format->bits == 0 || format->bits > 8 ||
        format->group_tokens == 0 || format->group_dims == 0)
        return c;
    c.layout = kvtile_of(format, role, tokens, width);
    c.group_tokens = at_most(format->group_tokens, tokens);
    c.group_dims = at_most(format->group_dims, width);
    outer_group = key ? c.group_tokens : c.group_dims;
    c.folded = outer_group > 1;
    c.usable = take_levels(&c, format) && tokens % CODES_STEP == 0 && c.layout.outer % CODES_STEP == 0 &&
               width <= CODES_WIDTH_MAX && format->tile_bytes >= c.layout.bytes &&
               (c.folded == key ? whole_steps(c.group_tokens, tokens) : whole_steps(c.group_dims, width));
    if (format->rotation)
        c.usable &= format->rotation_dims && (format->rotation_dims & (format->rotation_dims - 1)) == 0 &&
                    width % format->rotation_dims == 0 && (format->rotation != SOQ_ROTATION_HADAMARD_SIGNS || format->signs);
    return c;
}
