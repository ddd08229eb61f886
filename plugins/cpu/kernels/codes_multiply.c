/* Products of digits and codes. Codes of 2, 4 and 8 bits are taken out of their bytes in registers, WIDE vectors of outer
 * indices at a time, and meet the digits of all rows there; codes that lie in several planes are put together first. */
#include "kernels/codes.h"

/* Rows of bytes that hold some quads each along the inner axis; `at` is the first one at the product's first outer index. */
struct source {
    const uint8_t *at;
    ptrdiff_t ahead;
    uint32_t n_rows;
};

/* The rows of a product's parts, `stride` bytes apart; group_rows of the only part are of a group, or all of all parts. */
struct sources {
    struct source parts[PARTS];
    uint32_t n, group_rows;
    size_t stride;
};

/* ---- Codes of several planes --------------------------------------------------------------------------------------------- */

/* Room for the bytes of all quads and lanes: keys have up to FOLD_MAX dims and TOKENS entries, values the other way round. */
enum { EXPANDED = FOLD_MAX * TOKENS };

/* Quad `quad` of a tile: n_lanes outer indices from `outer` on. */
static void expand_quad(const struct products *p, const struct part *part, uint32_t quad, uint8_t *dst)
{
    const struct kvtile *layout = &p->codes->layout;

    for (uint32_t i = 0; i < layout->n_planes; i++) {
        const struct kvtile_plane *plane = &layout->planes[i];
        uint32_t per_byte = 8 / plane->bits, down = quad % per_byte * plane->bits, up = plane->shift;
        const uint8_t *src = part->tile + plane->at + ((size_t)(quad / per_byte) * layout->outer + p->outer) * 4;
        uint8_t mask = (uint8_t)((1u << plane->bits) - 1);

        if (down == 0)
            fetch(src + part->ahead, (size_t)p->n_lanes * 4);
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
    s->n = p->n_parts;
    s->group_rows = p->group_quads ? p->group_quads : UINT32_MAX;
    s->stride = (size_t)p->n_lanes * 4;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const struct part *part = &p->parts[i];

        s->parts[i] = (struct source){room, 0, part->n_quads};
        for (uint32_t q = 0; q < part->n_quads; q++, room += s->stride)
            expand_quad(p, part, part->quad + q, room);
    }
}

/* ---- Codes of one plane -------------------------------------------------------------------------------------------------- */

VEC_INLINE void find_sources(const struct products *p, uint32_t per_byte, struct sources *s)
{
    size_t stride = (size_t)p->codes->layout.outer * 4, first = p->codes->layout.planes[0].at + p->outer * (size_t)4;

    s->n = p->n_parts;
    s->group_rows = p->group_quads ? kvtile_ceil(p->group_quads, per_byte) : UINT32_MAX;
    s->stride = stride;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const struct part *part = &p->parts[i];

        s->parts[i].at = part->tile + first + part->quad / per_byte * stride;
        s->parts[i].ahead = part->ahead;
        s->parts[i].n_rows = kvtile_ceil(part->n_quads, per_byte);
    }
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
 * rows' digits from `x` on. */
VEC_INLINE void add_quads(uint32_t n_q, uint32_t n_digits, uint32_t bits, const uint8_t *table, const vb bytes[WIDE],
                          uint32_t k, uint32_t n_k, const struct digit_row *rows, size_t x, struct totals *t)
{
    dot_sum sums[BLOCK][2][WIDE];

    VEC_EACH(i, n_q)
        VEC_EACH(d, n_digits)
            VEC_EACH(j, WIDE)
                sums[i][d][j] = dot_begin(t->digit[i][d][j]);
    VEC_EACH(place, n_k) {
        vb codes[WIDE];

        VEC_EACH(j, WIDE)
            codes[j] = codes_of(bits, table, bytes[j], k + place);
        VEC_EACH(i, n_q)
            VEC_EACH(d, n_digits)
                VEC_EACH(j, WIDE)
                    sums[i][d][j] = dot_step(sums[i][d][j], codes[j], vb_splat4(rows[i].bytes[d] + x + (k + place) * 4));
    }
    VEC_EACH(i, n_q)
        VEC_EACH(d, n_digits)
            VEC_EACH(j, WIDE)
                t->digit[i][d][j] = dot_end(sums[i][d][j], 1, t->digit[i][d][j]);
}

/* n rows of bytes from `at` on; they meet the digits from `x` on. */
VEC_INLINE void add_rows(uint32_t n_q, uint32_t n_digits, uint32_t bits, const uint8_t *table, const uint8_t *at,
                         ptrdiff_t ahead, size_t stride, uint32_t n, const size_t lanes[WIDE], const struct digit_row *rows,
                         size_t x, struct totals *t)
{
    const uint32_t per_byte = 8 / bits, each = table ? 1 : per_byte;
    const uint8_t *end = at + n * stride;

    do {
        vb bytes[WIDE];

        VEC_EACH(j, WIDE) {
            bytes[j] = vb_load(at + lanes[j] * 4);
            vec_prefetch_l2(at + ahead + lanes[j] * 4);
        }
        for (uint32_t k = 0; k < per_byte; k += each)
            add_quads(n_q, n_digits, bits, table, bytes, k, each, rows, x, t);
        at += stride;
        x += per_byte * 4;
    } while (at < end);
}

/* The rows against the codes of one group, whose first row of bytes in its part is `first`. */
VEC_INLINE void add_group(uint32_t n_q, uint32_t n_digits, uint32_t bits, const uint8_t *table, const struct digit_row *rows,
                          const struct sources *s, uint32_t first, const size_t lanes[WIDE], struct totals *t)
{
    const struct source *part = s->parts, *end = part + s->n;
    size_t x = (size_t)first * (8 / bits) * 4;

    VEC_EACH(i, n_q)
        VEC_EACH(d, n_digits)
            VEC_EACH(j, WIDE)
                t->digit[i][d][j] = vi_splat(0);
    do {
        uint32_t left = part->n_rows - first, n = s->group_rows < left ? s->group_rows : left;

        add_rows(n_q, n_digits, bits, table, part->at + first * s->stride, part->ahead, s->stride, n, lanes, rows, x, t);
        x += n * (size_t)(8 / bits) * 4;
    } while (++part < end);
}

/* Whole numbers, their scales and offsets, which count in the first pass. */
VEC_INLINE void scale_totals(uint32_t n_q, uint32_t n_digits, const struct products *p, float factor, bool first,
                             uint32_t group, const struct totals *t, vf out[BLOCK][WIDE])
{
    VEC_EACH(i, n_q)
        VEC_EACH(j, WIDE) {
            vi high = t->digit[i][0][j], low = t->digit[i][n_digits - 1][j];
            vi whole = n_digits == 1 ? low : (high << (int32_t)digit_bits(p->codes)) + low;

            out[i][j] = vf_madd(vf_from_i32(whole), vf_splat(factor * p->digits[i].scales[group]),
                                vf_splat(first ? factor * p->digits[i].offsets[group] : 0.0f));
        }
}

/* Some lanes: all groups. */
VEC_INLINE void multiply_lanes(uint32_t n_q, uint32_t n_digits, uint32_t bits, bool lookup, const struct products *p,
                               const struct sources *s, uint32_t lane)
{
    uint32_t group = 0, first = 0;
    size_t at[WIDE];

    place_lanes(p, lane, at);
    do {
        for (uint32_t i = 0; i < (lookup ? CODES_PASSES : 1); i++) {
            const struct cpu_codes_pass *pass = &p->codes->passes[i];
            vf products[BLOCK][WIDE];
            struct totals t;

            add_group(n_q, n_digits, bits, lookup ? pass->table : NULL, p->digits, s, first, at, &t);
            scale_totals(n_q, n_digits, p, lookup ? pass->factor : 1.0f, i == 0, group, &t, products);
            add_products(n_q, p, at, group, group == 0 && i == 0, products);
        }
        first += s->group_rows;
        group++;
    } while (s->group_rows < UINT32_MAX && first < s->parts[0].n_rows);
}

VEC_INLINE void multiply(uint32_t n_q, uint32_t n_digits, uint32_t bits, bool lookup, const struct products *p,
                         const struct sources *s)
{
    for (uint32_t lane = 0; lane < p->n_lanes; lane += WIDE * CPU_LANES)
        multiply_lanes(n_q, n_digits, bits, lookup, p, s, lane);
}

typedef void multiply_fn(uint32_t n_q, const struct products *p);

/* Codes of one plane, from where they lie. */
#define MULTIPLY(name, n_digits, bits, lookup)                                                                                 \
    static void name(uint32_t n_q, const struct products *p)                                                                   \
    {                                                                                                                          \
        struct sources s;                                                                                                      \
                                                                                                                               \
        find_sources(p, 8 / (bits), &s);                                                                                       \
        FOR_QUERIES(n_q, multiply, n_digits, bits, lookup, p, &s);                                                             \
    }

/* Codes that were expanded. */
#define MULTIPLY_EXPANDED(name, n_digits, lookup)                                                                              \
    static void name(uint32_t n_q, const struct products *p)                                                                   \
    {                                                                                                                          \
        uint8_t room[EXPANDED];                                                                                                \
        struct sources s;                                                                                                      \
                                                                                                                               \
        expand(p, room, &s);                                                                                                   \
        FOR_QUERIES(n_q, multiply, n_digits, 8, lookup, p, &s);                                                                \
    }

MULTIPLY(multiply2, 1, 2, false)
MULTIPLY(multiply4, 1, 4, false)
MULTIPLY(multiply8, 2, 8, false)
MULTIPLY(look_up4, 2, 4, true)
MULTIPLY_EXPANDED(multiply_few, 1, false)
MULTIPLY_EXPANDED(multiply_many, 2, false)
MULTIPLY_EXPANDED(look_up_expanded, 2, true)

/* By the bits of the only plane; NULL: expanded to bytes, as several planes are. */
static multiply_fn *const multiply_by[] = {[2] = multiply2, [4] = multiply4, [8] = multiply8};
static multiply_fn *const look_up_by[] = {[4] = look_up4, [8] = NULL};

static multiply_fn *multiply_expanded(const struct cpu_codes *codes)
{
    return codes->lookup ? look_up_expanded : digits_of(codes) == 1 ? multiply_few : multiply_many;
}

void cpu_codes_multiply(const struct products *p, uint32_t n_q)
{
    const struct cpu_codes *codes = p->codes;
    uint32_t bits = codes->layout.planes[0].bits;
    multiply_fn *fn = codes->layout.n_planes > 1 ? NULL : codes->lookup ? look_up_by[bits] : multiply_by[bits];

    if (codes->floats)
        fn = cpu_codes_multiply_floats;
    else if (!fn)
        fn = multiply_expanded(codes);
    fn(n_q, p);
}
