/* Products of digits and codes. Codes of 2, 4 and 8 bits are taken out of their bytes in registers, WIDE vectors of outer
 * indices at a time, and meet the digits of all rows there; codes that lie in several planes are put together first. */
#include "kernels/codes.h"

/* A row of bytes that hold some quads along the inner axis; its first is of the product's first outer index. */
struct source {
    const uint8_t *at, *ahead;
};

/* The rows of a product in order, n_group of a group. */
struct sources {
    struct source rows[QUADS];
    uint32_t n, n_group;
};

/* ---- Codes of several planes --------------------------------------------------------------------------------------------- */

/* Room for the bytes of all quads and lanes: keys have up to FOLD_MAX dims and TOKENS entries, values the other way round. */
enum { EXPANDED = FOLD_MAX * TOKENS };

/* Quad `quad` of a tile: n_lanes outer indices from `outer` on. */
static void expand_quad(const struct products *p, const struct run *run, uint32_t quad, uint8_t *dst)
{
    const struct kvtile *layout = &p->codes->layout;

    for (uint32_t i = 0; i < layout->n_planes; i++) {
        const struct kvtile_plane *plane = &layout->planes[i];
        uint32_t per_byte = 8 / plane->bits, down = quad % per_byte * plane->bits, up = plane->shift;
        const uint8_t *src = run->tile + plane->at + ((size_t)(quad / per_byte) * layout->outer + p->outer) * 4;
        uint8_t mask = (uint8_t)((1u << plane->bits) - 1);

        if (down == 0)
            fetch(src + run->ahead, (size_t)p->n_lanes * 4);
        for (size_t k = 0; k < (size_t)p->n_lanes * 4; k += sizeof(vb)) {
            vb v = (vb)((vh)vb_load(src + k) >> (uint16_t)down) & mask;

            if (i)
                v = (vb)((vh)v << (uint16_t)up) | vb_load(dst + k);
            memcpy(dst + k, &v, sizeof v);
        }
    }
}

/* A byte for each code, in `room`. */
static void expand(const struct products *p, uint8_t *room, struct sources *s)
{
    s->n = 0;
    for (const struct run *run = p->runs; run < p->runs + p->n_runs; run++)
        for (uint32_t q = 0; q < run->n_quads; q++, room += (size_t)p->n_lanes * 4) {
            expand_quad(p, run, run->quad + q, room);
            s->rows[s->n++] = (struct source){room, room};
        }
    s->n_group = p->group_quads ? p->group_quads : s->n;
}

/* ---- Codes of one plane -------------------------------------------------------------------------------------------------- */

static void find_sources(const struct products *p, uint32_t per_byte, struct sources *s)
{
    size_t stride = (size_t)p->codes->layout.outer * 4;

    s->n = 0;
    for (const struct run *run = p->runs; run < p->runs + p->n_runs; run++) {
        const uint8_t *at = run->tile + p->codes->layout.planes[0].at + run->quad / per_byte * stride + p->outer * (size_t)4;

        for (uint32_t q = 0; q < run->n_quads; q += per_byte, at += stride)
            s->rows[s->n++] = (struct source){at, at + run->ahead};
    }
    s->n_group = p->group_quads ? kvtile_ceil(p->group_quads, per_byte) : s->n;
}

/* ---- Products ------------------------------------------------------------------------------------------------------------ */

/* The codes of place k in their bytes. */
VEC_INLINE vb codes_of(uint32_t bits, const uint8_t *table, vb bytes, uint32_t k)
{
    vb codes = bits < 8 ? (vb)((vh)bytes >> (uint16_t)(k * bits)) & (uint8_t)((1u << bits) - 1) : bytes;

    return table ? vb_lookup(table, codes) : codes;
}

/* Sums of each digit of up to BLOCK rows. */
struct totals {
    vi digit[BLOCK][2][WIDE];
};

/* n_k quads of codes, from place k in their bytes on, so many that the sums of dot_step() hold their products; they meet the
 * rows' digits from `at` on. */
VEC_INLINE void add_quads(uint32_t n_q, uint32_t n_digits, uint32_t bits, const uint8_t *table, const vb bytes[WIDE],
                          uint32_t k, uint32_t n_k, const struct digit_row *rows, size_t at, struct totals *t)
{
    dot_sum sums[BLOCK][2][WIDE];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t d = 0; d < n_digits; d++)
            for (uint32_t j = 0; j < WIDE; j++)
                sums[i][d][j] = dot_begin(t->digit[i][d][j]);
    for (uint32_t end = k + n_k; k < end; k++) {
        vb codes[WIDE];

        for (uint32_t j = 0; j < WIDE; j++)
            codes[j] = codes_of(bits, table, bytes[j], k);
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t d = 0; d < n_digits; d++)
                for (uint32_t j = 0; j < WIDE; j++)
                    sums[i][d][j] = dot_step(sums[i][d][j], codes[j], vb_splat4(rows[i].bytes[d] + at + k * 4));
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t d = 0; d < n_digits; d++)
            for (uint32_t j = 0; j < WIDE; j++)
                t->digit[i][d][j] = dot_end(sums[i][d][j], 1, t->digit[i][d][j]);
}

/* The rows against the codes of one group. */
VEC_INLINE void add_group(uint32_t n_q, uint32_t n_digits, uint32_t bits, const uint8_t *table, const struct products *p,
                          const struct sources *s, uint32_t group, const size_t lanes[WIDE], struct totals *t)
{
    const uint32_t per_byte = 8 / bits, each = table ? 1 : per_byte;
    const struct source *row = s->rows + group * s->n_group;
    const struct source *end = s->rows + ((group + 1) * s->n_group < s->n ? (group + 1) * s->n_group : s->n);
    size_t at = (size_t)group * s->n_group * per_byte * 4;

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t d = 0; d < n_digits; d++)
            for (uint32_t j = 0; j < WIDE; j++)
                t->digit[i][d][j] = vi_splat(0);
    for (; row < end; row++, at += per_byte * 4) {
        vb bytes[WIDE];

        for (uint32_t j = 0; j < WIDE; j++) {
            bytes[j] = vb_load(row->at + lanes[j] * 4);
            vec_prefetch_l2(row->ahead + lanes[j] * 4);
        }
        for (uint32_t k = 0; k < per_byte; k += each)
            add_quads(n_q, n_digits, bits, table, bytes, k, each, p->digits, at, t);
    }
}

/* Whole numbers, their scales and offsets, which count in the first pass. */
VEC_INLINE void scale_totals(uint32_t n_q, uint32_t n_digits, const struct products *p, float factor, bool first,
                             uint32_t group, const struct totals *t, vf out[BLOCK][WIDE])
{
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < WIDE; j++) {
            vi high = t->digit[i][0][j], low = t->digit[i][n_digits - 1][j];
            vi whole = n_digits == 1 ? low : (high << (int32_t)digit_bits(p->codes)) + low;

            out[i][j] = vf_madd(vf_from_i32(whole), vf_splat(factor * p->digits[i].scales[group]),
                                vf_splat(first ? factor * p->digits[i].offsets[group] : 0.0f));
        }
}

/* y += totals, times the minima of lanes: where the middle code is. */
VEC_INLINE void add_minima(uint32_t n_q, const struct products *p, const size_t at[WIDE], uint32_t group, vf y[BLOCK][WIDE])
{
    vf zero = vf_splat((float)p->codes->passes[0].zero);

    for (uint32_t j = 0; j < WIDE; j++) {
        vf minimum = vf_madd(numbers_at(p->lane_type, p->lane_scales + group * p->lane_stride, at[j]), zero,
                             numbers_at(p->lane_type, p->lane_minima + group * p->lane_stride, at[j]));
        for (uint32_t i = 0; i < n_q; i++)
            y[i][j] = vf_madd(vf_splat(p->digits[i].totals[group]), minimum, y[i][j]);
    }
}

/* Some lanes: all groups. */
VEC_INLINE void multiply_lanes(uint32_t n_q, uint32_t n_digits, uint32_t bits, bool lookup, const struct products *p,
                               const struct sources *s, uint32_t lane)
{
    vf y[BLOCK][WIDE], some[BLOCK][WIDE];
    size_t at[WIDE];

    place_lanes(p, lane, at);
    load_lanes(n_q, p, at, y);
    for (uint32_t group = 0; group * s->n_group < s->n; group++) {
        for (uint32_t i = 0; i < (lookup ? CODES_PASSES : 1); i++) {
            const struct cpu_codes_pass *pass = &p->codes->passes[i];
            struct totals t;

            add_group(n_q, n_digits, bits, lookup ? pass->table : NULL, p, s, group, at, &t);
            scale_totals(n_q, n_digits, p, lookup ? pass->factor : 1.0f, i == 0, group, &t, some);
            scale_lanes(n_q, p, at, group, some, y);
        }
        if (p->lane_minima)
            add_minima(n_q, p, at, group, y);
    }
    store_lanes(n_q, p, at, y);
}

VEC_INLINE void multiply(uint32_t n_q, uint32_t n_digits, uint32_t bits, bool lookup, const struct products *p,
                         const struct sources *s)
{
    for (uint32_t lane = 0; lane < p->n_lanes; lane += WIDE * CPU_LANES)
        multiply_lanes(n_q, n_digits, bits, lookup, p, s, lane);
}

typedef void multiply_fn(uint32_t n_q, const struct products *p, const struct sources *s);

#define MULTIPLY(name, n_digits, bits, lookup)                                                                                 \
    static void name(uint32_t n_q, const struct products *p, const struct sources *s)                                          \
    {                                                                                                                          \
        FOR_QUERIES(n_q, multiply, n_digits, bits, lookup, p, s);                                                              \
    }

MULTIPLY(multiply2, 1, 2, false)
MULTIPLY(multiply4, 1, 4, false)
MULTIPLY(multiply8, 1, 8, false)
MULTIPLY(multiply8_2, 2, 8, false)
MULTIPLY(look_up4, 2, 4, true)
MULTIPLY(look_up8, 2, 8, true)

/* By the bits of the only plane; others are expanded to bytes. */
static multiply_fn *const multiply_by[] = {[2] = multiply2, [4] = multiply4, [8] = multiply8_2};
static multiply_fn *const look_up_by[] = {[4] = look_up4, [8] = NULL};

static multiply_fn *multiply_expanded(const struct cpu_codes *codes)
{
    return codes->lookup ? look_up8 : digits_of(codes) == 1 ? multiply8 : multiply8_2;
}

void cpu_codes_multiply(const struct products *p, uint32_t n_q)
{
    const struct cpu_codes *codes = p->codes;
    uint32_t bits = codes->layout.planes[0].bits;
    multiply_fn *direct = codes->layout.n_planes > 1 ? NULL : codes->lookup ? look_up_by[bits] : multiply_by[bits];
    uint8_t room[EXPANDED];
    struct sources s;

    if (codes->floats)
        cpu_codes_multiply_floats(p, n_q);
    else if (direct) {
        find_sources(p, 8 / bits, &s);
        direct(n_q, p, &s);
    } else {
        expand(p, room, &s);
        multiply_expanded(codes)(n_q, p, &s);
    }
}
