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

/* The codes of a part against what meets them. */
VEC_INLINE void add_part(uint32_t n_q, const struct product *p, const struct part *part, const size_t at[WIDE],
                         vf sums[BLOCK][WIDE])
{
    size_t stride = (size_t)p->codes->layout.outer * 4;
    const uint8_t *src = part->tile + p->codes->layout.planes[0].at + part->quad * stride + p->outer * (size_t)4;
    const float *x = p->numbers.x + part->x, *end = x + (size_t)part->n_quads * 4;

    do {
        vb codes[WIDE];

        VEC_EACH(j, WIDE)
            codes[j] = vb_load(src + at[j] * 4);
        add_quad(n_q, codes, x, p->numbers.stride, sums);
        src += stride;
        x += 4;
    } while (x < end);
}

VEC_INLINE void multiply(uint32_t n_q, const struct product *p)
{
    for (uint32_t lane = 0; lane < p->n_lanes; lane += WIDE * CPU_LANES) {
        vf y[BLOCK][WIDE];
        size_t at[WIDE];

        place_lanes(p, lane, at);
        begin_lanes(n_q, p, at, y);
        for (const struct term *term = p->terms; term < p->terms + p->n_terms; term++) {
            vf sums[BLOCK][WIDE];

            if (lane == 0)
                fetch(term->ahead);
            VEC_EACH(i, n_q)
                VEC_EACH(j, WIDE)
                    sums[i][j] = vf_splat(0.0f);
            for (const struct part *part = term->parts; part < term->parts + term->n_parts; part++)
                add_part(n_q, p, part, at, sums);
            add_term(n_q, p, term, at, sums, y);
        }
        end_lanes(n_q, p, at, y);
    }
}

void cpu_codes_multiply_floats(uint32_t n_q, const struct product *p)
{
    FOR_QUERIES(n_q, multiply, p);
}
