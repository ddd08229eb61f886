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

/* Sums of each digit of up to BLOCK rows. */
struct totals {
    vi digit[BLOCK][DIGITS][WIDE];
};

/* Codes are counted from the middle one. */
VEC_INLINE void begin_totals(uint32_t n_q, const struct products *p, int32_t zero, uint32_t group, struct totals *t)
{
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < WIDE; j++) {
            t->digit[i][0][j] = vi_splat(0);
            t->digit[i][1][j] = vi_splat(-zero * p->digits.sums[i * p->digits.groups + group]);
        }
}

/* The codes of place k in their bytes. */
VEC_INLINE vb codes_of(uint32_t bits, const uint8_t *table, vb bytes, uint32_t k)
{
    vb codes = bits < 8 ? (vb)((vh)bytes >> (uint16_t)(k * bits)) & (uint8_t)((1u << bits) - 1) : bytes;

    return table ? vb_lookup(table, codes) : codes;
}

/* n_k quads of codes, from place k in their bytes on, so many that the sums of dot_step() hold their products. */
VEC_INLINE void add_quads(uint32_t n_q, uint32_t bits, const uint8_t *table, const vb bytes[WIDE], uint32_t k, uint32_t n_k,
                          const int8_t *digits, size_t row_bytes, struct totals *t)
{
    dot_sum sums[BLOCK][DIGITS][WIDE];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t d = 0; d < DIGITS; d++)
            for (uint32_t j = 0; j < WIDE; j++)
                sums[i][d][j] = dot_begin(t->digit[i][d][j]);
    for (uint32_t end = k + n_k; k < end; k++) {
        vb codes[WIDE];

        for (uint32_t j = 0; j < WIDE; j++)
            codes[j] = codes_of(bits, table, bytes[j], k);
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t d = 0; d < DIGITS; d++)
                for (uint32_t j = 0; j < WIDE; j++)
                    sums[i][d][j] = dot_step(sums[i][d][j], codes[j], vb_splat4(digits + (i * DIGITS + d) * row_bytes + k * 4));
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t d = 0; d < DIGITS; d++)
            for (uint32_t j = 0; j < WIDE; j++)
                t->digit[i][d][j] = dot_end(sums[i][d][j], 1, t->digit[i][d][j]);
}

/* Totals count in the first pass. */
VEC_INLINE void put_totals(uint32_t n_q, const struct products *p, const struct cpu_codes_pass *pass, uint32_t group,
                           const struct lanes *l, const struct totals *t)
{
    bool first = pass == p->codes->passes;

    for (uint32_t i = 0; i < n_q; i++) {
        size_t number = i * p->digits.groups + group;
        vf y[WIDE];

        for (uint32_t j = 0; j < WIDE; j++)
            y[j] = vf_from_i32((t->digit[i][0][j] << (int32_t)digit_bits(p->codes)) + t->digit[i][1][j]);
        put_lanes(p, p->add || group || !first, i, l, y, pass->factor * p->digits.scales[number],
                  first ? p->digits.totals[number] : 0.0f);
    }
}

/* n_q rows against the codes of one group. */
VEC_INLINE void multiply_group(uint32_t n_q, uint32_t bits, const uint8_t *table, const struct products *p,
                               const struct cpu_codes_pass *pass, const struct sources *s, uint32_t lane, uint32_t group)
{
    const uint32_t per_byte = 8 / bits, each = table ? 1 : per_byte;
    const struct source *row = s->rows + group * s->n_group;
    const struct source *end = s->rows + ((group + 1) * s->n_group < s->n ? (group + 1) * s->n_group : s->n);
    const int8_t *digits = p->digits.bytes + (size_t)group * s->n_group * per_byte * 4;
    struct lanes l = lanes_of(p, lane, group);
    struct totals t;

    begin_totals(n_q, p, pass->zero, group, &t);
    for (; row < end; row++, digits += per_byte * 4) {
        vb bytes[WIDE];

        for (uint32_t j = 0; j < WIDE; j++) {
            bytes[j] = vb_load(row->at + (size_t)l.at[j] * 4);
            vec_prefetch_l2(row->ahead + (size_t)l.at[j] * 4);
        }
        for (uint32_t k = 0; k < per_byte; k += each)
            add_quads(n_q, bits, table, bytes, k, each, digits, p->digits.row_bytes, &t);
    }
    put_totals(n_q, p, pass, group, &l, &t);
}

VEC_INLINE void multiply(uint32_t n_q, uint32_t bits, bool lookup, const struct products *p, const struct sources *s)
{
    for (const struct cpu_codes_pass *pass = p->codes->passes; pass < p->codes->passes + p->codes->n_passes; pass++)
        for (uint32_t lane = 0; lane < p->n_lanes; lane += WIDE * CPU_LANES)
            for (uint32_t group = 0; group * s->n_group < s->n; group++)
                multiply_group(n_q, bits, lookup ? pass->table : NULL, p, pass, s, lane, group);
}

typedef void multiply_fn(uint32_t n_q, const struct products *p, const struct sources *s);

#define MULTIPLY(name, bits, lookup)                                                                                           \
    static void name(uint32_t n_q, const struct products *p, const struct sources *s)                                          \
    {                                                                                                                          \
        FOR_QUERIES(n_q, multiply, bits, lookup, p, s);                                                                        \
    }

MULTIPLY(multiply2, 2, false)
MULTIPLY(multiply4, 4, false)
MULTIPLY(multiply8, 8, false)
MULTIPLY(look_up4, 4, true)
MULTIPLY(look_up8, 8, true)

/* By the bits of the only plane; others are expanded to bytes. */
static multiply_fn *const multiply_by[] = {[2] = multiply2, [4] = multiply4, [8] = multiply8};
static multiply_fn *const look_up_by[] = {[4] = look_up4, [8] = look_up8};

void cpu_codes_multiply(const struct products *p, uint32_t n_q)
{
    const struct cpu_codes *codes = p->codes;
    multiply_fn *const *by_bits = codes->lookup ? look_up_by : multiply_by;
    uint32_t bits = codes->layout.planes[0].bits;
    uint8_t room[EXPANDED];
    struct sources s;

    if (codes->floats)
        cpu_codes_multiply_floats(p, n_q);
    else if (codes->layout.n_planes == 1 && by_bits[bits]) {
        find_sources(p, 8 / bits, &s);
        by_bits[bits](n_q, p, &s);
    } else {
        expand(p, room, &s);
        by_bits[8](n_q, p, &s);
    }
}
