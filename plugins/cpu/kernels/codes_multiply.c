/* Products of digits and codes. Codes of 2, 4 and 8 bits are taken out of their bytes in registers, WIDE vectors of outer
 * indices at a time, and meet the digits of all rows there; codes that lie in several planes are put together first. */
#include "kernels/codes.h"

/* ---- Rows of bytes ------------------------------------------------------------------------------------------------------- */

/* Some quads each along the inner axis, `stride` bytes from one to the next. */
struct rows_of_bytes {
    const uint8_t *at;
    size_t stride;
    uint32_t n;
};

/* The codes of a part in one plane, from where they lie. */
VEC_INLINE struct rows_of_bytes find_rows(const struct product *p, const struct part *part, uint32_t bits)
{
    size_t stride = (size_t)p->codes->layout.outer * 4;
    uint32_t per_byte = 8 / bits;

    return (struct rows_of_bytes){part->tile + p->codes->layout.planes[0].at + part->quad / per_byte * stride +
                                      p->outer * (size_t)4,
                                  stride, (part->n_quads + per_byte - 1) / per_byte};
}

/* Room for the bytes of all quads, of the vectors of lanes that are taken at once. */
enum { EXPANDED = FOLD_MAX / 4 * WIDE * CPU_LANES * 4 };

/* A quad of a part, CPU_LANES outer indices from `outer` on. */
static void expand_quad(const struct cpu_codes *codes, const struct part *part, uint32_t quad, size_t outer, uint8_t *dst)
{
    const struct kvtile *layout = &codes->layout;
    vb all = {0};

    for (uint32_t i = 0; i < layout->n_planes; i++) {
        const struct kvtile_plane *plane = &layout->planes[i];
        uint32_t per_byte = 8 / plane->bits, down = quad % per_byte * plane->bits;
        const uint8_t *src = part->tile + plane->at + ((size_t)(quad / per_byte) * layout->outer + outer) * 4;
        vb v = (vb)((vh)vb_load(src) >> (uint16_t)down) & (uint8_t)((1u << plane->bits) - 1);

        all |= (vb)((vh)v << (uint16_t)plane->shift);
    }
    memcpy(dst, &all, sizeof all);
}

/* A byte for each code of a term's parts, one part behind the other, for the vectors of lanes that begin at `at`. */
static void expand(const struct product *p, const struct term *term, const size_t at[WIDE], uint8_t *room)
{
    for (const struct part *part = term->parts, *end = part + term->n_parts; part < end; part++)
        for (uint32_t q = 0; q < part->n_quads; q++)
            for (uint32_t j = 0; j < WIDE; j++, room += sizeof(vb))
                expand_quad(p->codes, part, part->quad + q, p->outer + at[j], room);
}

/* ---- Products ------------------------------------------------------------------------------------------------------------ */

/* The codes of place k in their bytes. */
VEC_INLINE vb codes_of(uint32_t bits, const uint8_t *table, vb bytes, uint32_t k)
{
    vb codes = bits < 8 ? (vb)((vh)bytes >> (uint16_t)(k * bits)) & (uint8_t)((1u << bits) - 1) : bytes;

    return table ? vb_lookup(table, codes) : codes;
}

/* Sums of up to BLOCK rows: of each digit, or of both together. */
struct totals {
    vi digit[BLOCK][2][WIDE];
};

/* A row of bytes, in vectors `lanes` bytes behind its begin. */
VEC_INLINE void load_row(const struct rows_of_bytes *rows, const size_t lanes[WIDE], vb bytes[WIDE])
{
    VEC_EACH(j, WIDE)
        bytes[j] = vb_load(rows->at + lanes[j]);
}

/* n_k quads of codes, from place k in their bytes on, meet the rows' digits from `x` on. */
VEC_INLINE void add_quads(uint32_t n_q, uint32_t n_digits, uint32_t bits, const uint8_t *table, const vb bytes[WIDE],
                          uint32_t k, uint32_t n_k, const struct digit_row *rows, size_t x, dot_sum sums[BLOCK][2][WIDE])
{
    VEC_EACH(place, n_k) {
        vb codes[WIDE];

        VEC_EACH(j, WIDE)
            codes[j] = codes_of(bits, table, bytes[j], k + place);
        VEC_EACH(i, n_q)
            VEC_EACH(d, n_digits)
                VEC_EACH(j, WIDE)
                    sums[i][d][j] = dot_step(sums[i][d][j], codes[j], vb_splat4(rows[i].bytes[d] + x + (k + place) * 4));
    }
}

/* Rows of bytes whose products the sums of dot_step() hold, by the bits of codes; those expanded to bytes have up to 5. */
VEC_INLINE uint32_t rows_held(uint32_t bits, uint32_t n)
{
    uint32_t held = bits == 2 ? DOT_STEPS_2 / 4 : bits == 4 ? DOT_STEPS_4 / 2 : DOT_STEPS_5;

    return DOT_SUM_BITS == 32 || n < held ? n : held;
}

/* Rows of bytes; they meet the digits from `x` on. */
VEC_INLINE void add_rows(uint32_t n_q, uint32_t n_digits, uint32_t bits, const uint8_t *table, struct rows_of_bytes rows,
                         const size_t lanes[WIDE], const struct digit_row *digits, size_t x, struct totals *t)
{
    const uint32_t per_byte = 8 / bits, each = table ? 1 : per_byte;

    do {
        const uint32_t n = rows_held(bits, rows.n);
        const uint8_t *end = rows.at + n * rows.stride;
        dot_sum sums[BLOCK][2][WIDE];

        rows.n -= n;
        VEC_EACH(i, n_q)
            VEC_EACH(d, n_digits)
                VEC_EACH(j, WIDE)
                    sums[i][d][j] = dot_begin(t->digit[i][d][j]);
        do {
            vb bytes[WIDE];

            load_row(&rows, lanes, bytes);
            for (uint32_t k = 0; k < per_byte; k += each)
                add_quads(n_q, n_digits, bits, table, bytes, k, each, digits, x, sums);
            rows.at += rows.stride;
            x += per_byte * 4;
        } while (rows.at < end);
        VEC_EACH(i, n_q)
            VEC_EACH(d, n_digits)
                VEC_EACH(j, WIDE)
                    t->digit[i][d][j] = dot_end(sums[i][d][j], 1, t->digit[i][d][j]);
    } while (rows.n);
}

/* The same with both digits together. */
VEC_INLINE void add_rows_halves(uint32_t n_q, uint32_t bits, const uint8_t *table, struct rows_of_bytes rows,
                                const size_t lanes[WIDE], const struct digit_row *digits, size_t x, struct totals *t)
{
    const uint8_t *end = rows.at + rows.n * rows.stride;

    do {
        vb bytes[WIDE];

        load_row(&rows, lanes, bytes);
        for (uint32_t k = 0; k < 8 / bits; k++) {
            vb codes[WIDE];

            VEC_EACH(j, WIDE)
                codes[j] = codes_of(bits, table, bytes[j], k);
            VEC_EACH(odd, 2)
                VEC_EACH(i, n_q) {
                    vb pair = vb_splat4(digits[i].halves + x + odd * 2);

                    VEC_EACH(j, WIDE)
                        t->digit[i][0][j] = dot_pairs(t->digit[i][0][j], odd ? (vh)codes[j] >> 8 : (vh)codes[j] & 255, pair);
                }
            x += 4;
        }
        rows.at += rows.stride;
    } while (rows.at < end);
}

/* The digits against the codes of a term; `room`: these as bytes, or NULL. */
VEC_INLINE void add_parts(uint32_t n_q, uint32_t n_digits, uint32_t bits, const uint8_t *room, const uint8_t *table,
                          const struct product *p, const struct term *term, const size_t at[WIDE], struct totals *t)
{
    size_t lanes[WIDE];

    VEC_EACH(j, WIDE)
        lanes[j] = room ? j * sizeof(vb) : at[j] * 4;
    VEC_EACH(i, n_q)
        VEC_EACH(d, n_digits)
            VEC_EACH(j, WIDE)
                t->digit[i][d][j] = vi_splat(0);
    for (const struct part *part = term->parts, *end = part + term->n_parts; part < end; part++) {
        struct rows_of_bytes rows = {room, WIDE * sizeof(vb), part->n_quads};

        if (room)
            room += part->n_quads * rows.stride;
        else
            rows = find_rows(p, part, bits);
        if (digits_together(n_digits))
            add_rows_halves(n_q, bits, table, rows, lanes, p->digits, part->x, t);
        else
            add_rows(n_q, n_digits, bits, table, rows, lanes, p->digits, part->x, t);
    }
}

/* Whole numbers, their scales and offsets, which count in the first pass. */
VEC_INLINE void scale_totals(uint32_t n_q, uint32_t n_digits, const struct product *p, float factor, bool first, uint32_t group,
                             const struct totals *t, vf out[BLOCK][WIDE])
{
    VEC_EACH(i, n_q)
        VEC_EACH(j, WIDE) {
            vi high = t->digit[i][0][j], whole = high;

            if (n_digits == 2 && !digits_together(n_digits))
                whole = (high << 8) + t->digit[i][1][j];

            out[i][j] = vf_madd(vf_from_i32(whole), vf_splat(factor * p->digits[i].scales[group]),
                                vf_splat(first ? factor * p->digits[i].offsets[group] : 0.0f));
        }
}

VEC_INLINE void multiply(uint32_t n_q, uint32_t n_digits, uint32_t bits, bool lookup, bool expanded, const struct product *p)
{
    for (uint32_t lane = 0; lane < p->n_lanes; lane += WIDE * CPU_LANES) {
        uint8_t room[EXPANDED];
        vf y[BLOCK][WIDE];
        size_t at[WIDE];

        place_lanes(p, lane, at);
        begin_lanes(n_q, p, at, y);
        for (const struct term *term = p->terms, *end = term + p->n_terms; term < end; term++) {
            if (lane == 0)
                fetch(term->ahead);
            if (expanded)
                expand(p, term, at, room);
            for (uint32_t i = 0; i < (lookup ? CODES_PASSES : 1); i++) {
                const struct cpu_codes_pass *pass = &p->codes->passes[i];
                vf products[BLOCK][WIDE];
                struct totals t;

                add_parts(n_q, n_digits, bits, expanded ? room : NULL, lookup ? pass->table : NULL, p, term, at, &t);
                scale_totals(n_q, n_digits, p, lookup ? pass->factor : 1.0f, i == 0, term->group, &t, products);
                add_term(n_q, p, term, at, products, y);
            }
        }
        end_lanes(n_q, p, at, y);
    }
}

typedef void multiply_fn(uint32_t n_q, const struct product *p);

#define MULTIPLY(name, n_digits, bits, lookup, expanded)                                                                       \
    static void name(uint32_t n_q, const struct product *p)                                                                    \
    {                                                                                                                          \
        FOR_QUERIES(n_q, multiply, n_digits, bits, lookup, expanded, p);                                                       \
    }

MULTIPLY(multiply2, 1, 2, false, false)
MULTIPLY(multiply4, 1, 4, false, false)
MULTIPLY(multiply8, 2, 8, false, false)
MULTIPLY(look_up4, 2, 4, true, false)
MULTIPLY(multiply_few, 1, 8, false, true)
MULTIPLY(multiply_many, 2, 8, false, true)
MULTIPLY(look_up_expanded, 2, 8, true, true)

/* By the bits of the only plane; NULL: expanded to bytes, as several planes are. */
static multiply_fn *const multiply_by[] = {[2] = multiply2, [4] = multiply4, [8] = multiply8};
static multiply_fn *const look_up_by[] = {[4] = look_up4, [8] = NULL};

static multiply_fn *multiply_expanded(const struct cpu_codes *codes)
{
    return codes->lookup ? look_up_expanded : digits_of(codes) == 1 ? multiply_few : multiply_many;
}

void cpu_codes_multiply(const struct product *p, uint32_t n_q)
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
