/* Products of numbers and codes that are floats of 8 bits (E4M3; plugins/common/e4m3.h cites them). Codes are widened in
 * registers; sums go along the inner axis in order. */
#include "kernels/codes.h"

/* Byte `place` of each lane. Sign and the other seven bits move to where those of an F32 are, whose bias is larger by 120: so
 * the product is exact, for subnormal codes too. Codes of NaN, which codecs do not write, give 480. */
VEC_INLINE vf float_at(vb codes, uint32_t place)
{
    vi bits = ((vi)codes << (int32_t)(24 - 8 * place)) >> 4 & (int32_t)0x87f00000;

    return (vf)bits * vf_splat(0x1p120f);
}

/* A quad of codes against n_q rows. */
VEC_INLINE void add_quad(uint32_t n_q, const vb codes[WIDE], const float *x, size_t stride, vf sums[BLOCK][WIDE])
{
    VEC_EACH(place, 4)
        VEC_EACH(j, WIDE) {
            vf y = float_at(codes[j], place);

            VEC_EACH(i, n_q)
                sums[i][j] = vf_madd(vf_splat(x[i * stride + place]), y, sums[i][j]);
        }
}

/* Quads [quad, end) of a part, all of one group; the rows' numbers for them begin at x. Returns where the next ones do. */
VEC_INLINE const float *add_part(uint32_t n_q, const struct products *p, const struct part *part, uint32_t quad, uint32_t end,
                                 const size_t at[WIDE], const float *x, vf sums[BLOCK][WIDE])
{
    size_t stride = (size_t)p->codes->layout.outer * 4;
    const uint8_t *src = part->tile + p->codes->layout.planes[0].at + (part->quad + quad) * stride + p->outer * (size_t)4;

    do {
        vb codes[WIDE];

        VEC_EACH(j, WIDE) {
            codes[j] = vb_load(src + at[j] * 4);
            vec_prefetch_l2(src + at[j] * 4 + part->ahead);
        }
        add_quad(n_q, codes, x, p->numbers.stride, sums);
        src += stride;
        x += 4;
    } while (++quad < end);
    return x;
}

VEC_INLINE void add_group(uint32_t n_q, const struct products *p, const size_t at[WIDE], uint32_t group)
{
    const struct part *part = p->parts, *last = part + p->n_parts - 1;
    const float *x = p->numbers.x + (size_t)group * p->group_quads * 4;
    uint32_t quad = group * p->group_quads, end = quad + p->group_quads;
    vf sums[BLOCK][WIDE];

    VEC_EACH(i, n_q)
        VEC_EACH(j, WIDE)
            sums[i][j] = vf_splat(0.0f);
    do
        x = add_part(n_q, p, part, quad, p->group_quads && end < part->n_quads ? end : part->n_quads, at, x, sums);
    while (part++ < last);
    add_products(n_q, p, at, group, group == 0, sums);
}

VEC_INLINE void multiply(uint32_t n_q, const struct products *p)
{
    uint32_t groups = p->group_quads ? kvtile_ceil(p->parts[0].n_quads, p->group_quads) : 1;

    for (uint32_t lane = 0; lane < p->n_lanes; lane += WIDE * CPU_LANES) {
        size_t at[WIDE];

        place_lanes(p, lane, at);
        for (uint32_t group = 0; group < groups; group++)
            add_group(n_q, p, at, group);
    }
}

void cpu_codes_multiply_floats(uint32_t n_q, const struct products *p)
{
    FOR_QUERIES(n_q, multiply, p);
}
