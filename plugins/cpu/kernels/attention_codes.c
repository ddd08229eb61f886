/* Packed keys and values whose codes are computed on as they are (codes.h).
 *
 * What meets the codes, queries or weights, is rounded to a whole number of two signed digits with one scale for all that is
 * summed up (about 15 bits); products of digits and codes are summed as integers, exactly. So a query's result depends on
 * neither the other queries nor on how many vectors are taken at once. Where a codec rotates, the queries are rotated and what
 * is summed of values is rotated back, not the tiles. */
#include <math.h>

#include "kernels/attention.h"

enum {
    VECTOR = sizeof(vb),
    WIDE = 2, /* vectors of lanes at once */
};

/* ---- Rotation ------------------------------------------------------------------------------------------------------------ */

/* The transform's steps within eight lanes. */
VEC_INLINE f32x8 butterflies(f32x8 x, uint32_t n)
{
    x = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6) + x * (f32x8){1, -1, 1, -1, 1, -1, 1, -1};
    if (n > 2)
        x = __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5) + x * (f32x8){1, 1, -1, -1, 1, 1, -1, -1};
    if (n > 4)
        x = __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3) + x * (f32x8){1, 1, 1, 1, -1, -1, -1, -1};
    return x;
}

/* Walsh-Hadamard, orthonormal, of blocks of n (a power of two) of `width` numbers, a multiple of 8 in memory. */
static void hadamard(float *x, size_t width, uint32_t n)
{
    f32x8 scale = f32x8_splat(1.0f / sqrtf((float)n));

    for (size_t i = 0; i < width && n > 1; i += 8)
        f32x8_store(x + i, butterflies(f32x8_load(x + i), n) * scale);
    for (size_t apart = 8; apart < n; apart *= 2)
        for (size_t i = 0; i < width; i += 8) {
            f32x8 a = f32x8_load(x + i), b;

            if (i & apart)
                continue;
            b = f32x8_load(x + i + apart);
            f32x8_store(x + i, a + b);
            f32x8_store(x + i + apart, a - b);
        }
}

static void flip(float *x, const struct soq_kv_format *format, size_t width)
{
    for (size_t d = 0; d < width && format->rotation == SOQ_ROTATION_HADAMARD_SIGNS; d++)
        x[d] *= format->signs[d];
}

static const struct cpu_plane *packed_plane(const struct item *item, uint32_t side)
{
    return &item->group->classes[CPU_PACKED].planes[side];
}

void cpu_item_turn_back(struct item *item)
{
    const struct soq_kv_format *format = &packed_plane(item, CPU_VALUE)->format;

    if (item->part.coded == item->part.out)
        return;
    for (uint32_t i = 0; i < item->n; i++) {
        float *coded = item->part.coded + i * item->dv, *out = item->part.out + i * item->dv;

        hadamard(coded, item->dv, format->rotation_dims);
        flip(coded, format, item->dv);
        for (size_t d = 0; d < item->dv; d += 8)
            f32x8_store(out + d, f32x8_load(out + d) + f32x8_load(coded + d));
    }
}

/* ---- Digits -------------------------------------------------------------------------------------------------------------- */

/* Of each digit. Where products of two are summed in 16 bits, bytes above 127 leave room for seven. */
static uint32_t digit_bits(const struct cpu_codes *codes)
{
    return DOT_SPLITS_BYTES && codes->high_bytes ? 7 : 8;
}

/* n numbers, times `fold`, in digits; *sum_out: of the rounded numbers, which are scale * digits. What
 * is not finite makes the scale so, and gives digits of 0. n is a multiple of CODES_STEP, at most FOLD_MAX. */
static void round_row(uint32_t bits_each, const float *x, const float *fold, size_t n, int8_t *high, int8_t *low,
                      float *scale_out, int32_t *sum_out)
{
    vi most = vi_splat(0), sum = vi_splat(0);
    float product[FOLD_MAX], top, inverse, largest = bits_each == 8 ? 127 * 256 + 127 : 63 * 128 + 63;
    int32_t bits, finite, shift = (int32_t)bits_each;

    for (size_t k = 0; k < n; k += CPU_LANES) {
        vf v = vf_load(x + k) * vf_load(fold + k);

        vf_store(product + k, v);
        most = vi_max(most, (vi)v & 0x7fffffff);
    }
    bits = vi_largest(most);
    memcpy(&top, &bits, sizeof top);
    finite = -(bits < 0x7f800000); /* all bits or none */
    inverse = top > 0x1p-100f ? largest / top : 0.0f;
    for (size_t k = 0; k < n; k += CPU_LANES) {
        vi whole = vi_round(vf_load(product + k) * vf_splat(inverse)) & finite;
        vi first = (whole + vi_splat(1 << (shift - 1))) >> shift;

        sum += whole;
        vi_store_i8(high + k, first);
        vi_store_i8(low + k, whole - (first << shift));
    }
    *scale_out = top * (1.0f / largest);
    *sum_out = vi_sum(sum);
}

static float product_sum(const float *x, const float *y, size_t n)
{
    vf sum = vf_splat(0.0f);

    for (size_t k = 0; k < n; k += CPU_LANES)
        sum = vf_madd(vf_load(x + k), vf_load(y + k), sum);
    return vf_sum(sum);
}

static size_t steps(size_t n)
{
    return (n + CODES_STEP - 1) / CODES_STEP * CODES_STEP;
}

/* ---- Bytes --------------------------------------------------------------------------------------------------------------- */

/* One plane's bits of a quad of codes for n bytes: dst = or |= them. */
VEC_INLINE void take_bits(const uint8_t *src, uint32_t shift, uint8_t mask, uint32_t up, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i += VECTOR) {
        vb v = (vb)((vh)vb_load(src + i) >> (uint16_t)shift) & mask;

        if (up)
            v = (vb)((vh)v << (uint16_t)up) | vb_load(dst + i);
        memcpy(dst + i, &v, sizeof v);
    }
}

/* n_quads quads from `quad` on of n_outer outer indices from `outer` on, as bytes [quad][stride], asking for those that lie
 * `ahead` bytes further. */
static void unpack(const struct cpu_codes *codes, const uint8_t *tile, ptrdiff_t ahead, uint32_t quad, uint32_t n_quads,
                   uint32_t outer, uint32_t n_outer, size_t stride, uint8_t *dst)
{
    for (uint32_t p = 0; p < codes->layout.n_planes; p++) {
        const struct kvtile_plane *plane = &codes->layout.planes[p];
        uint32_t per_byte = 8 / plane->bits;
        uint8_t mask = (uint8_t)((1u << plane->bits) - 1);

        for (uint32_t q = 0; q < n_quads; q++) {
            const uint8_t *src = tile + plane->at + ((size_t)((quad + q) / per_byte) * codes->layout.outer + outer) * 4;
            uint32_t shift = (quad + q) % per_byte * plane->bits;

            if (shift == 0)
                fetch(src + ahead, (size_t)n_outer * 4);
            if (p == 0)
                take_bits(src, shift, mask, 0, (size_t)n_outer * 4, dst + q * stride);
            else
                take_bits(src, shift, mask, plane->shift, (size_t)n_outer * 4, dst + q * stride);
        }
    }
}

static void look_up(const uint8_t table[16], const uint8_t *src, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i += VECTOR) {
        vb v = vb_lookup(table, vb_load(src + i));

        memcpy(dst + i, &v, sizeof v);
    }
}

static uint32_t entries(const struct piece *piece)
{
    return piece->to - piece->from;
}

/* Codes of whole bytes are taken where they lie. */
static bool in_place(const struct cpu_codes *codes)
{
    return codes->layout.planes[0].bits == 8 && codes->layout.n_planes == 1;
}

/* The piece's bytes for each pass: in its only tile, or in `room`. */
static void expand(struct piece *piece, uint32_t side, uint8_t *room)
{
    const struct cpu_codes *codes = piece->codes;
    uint32_t n_outer = side == CPU_KEY ? entries(piece) : codes->layout.outer;
    uint32_t n_quads = side == CPU_KEY ? (codes->layout.inner + 3) / 4 : entries(piece) / 4;
    const struct part *part = piece->parts;

    piece->stride = (size_t)(in_place(codes) ? codes->layout.outer : n_outer) * 4;
    piece->bytes[0] = room;
    if (in_place(codes))
        piece->bytes[0] = part->tile + codes->layout.planes[0].at +
                          (side == CPU_KEY ? part->first * (size_t)4 : part->first / 4 * piece->stride);
    for (uint32_t at = 0; at < entries(piece); at += part++->n) {
        fetch(part->ahead, codes->layout.planes[0].at);
        if (in_place(codes))
            break;
        if (side == CPU_KEY)
            unpack(codes, part->tile, part->ahead - part->tile, 0, n_quads, part->first, part->n, piece->stride, room + at * 4);
        else
            unpack(codes, part->tile, part->ahead - part->tile, part->first / 4, part->n / 4, 0, n_outer, piece->stride,
                   room + at / 4 * piece->stride);
    }
    if (!codes->lookup)
        return;
    piece->bytes[1] = room + n_quads * piece->stride;
    look_up(codes->passes[1].table, room, n_quads * piece->stride, room + n_quads * piece->stride);
    look_up(codes->passes[0].table, room, n_quads * piece->stride, room);
}

/* ---- Scales -------------------------------------------------------------------------------------------------------------- */

/* n numbers from `index` on along an axis, where `group` neighbours share one and these lie `stride` apart. */
static void load_numbers(uint32_t dtype, const uint8_t *at, uint32_t index, uint32_t n, uint32_t group, uint32_t stride,
                         float *out)
{
    size_t size = cpu_number_bytes(dtype);
    uint8_t gathered[FOLD_MAX * sizeof(float)];

    if (group == 1 && stride == 1) {
        cpu_widen(dtype, at + index * size, n, out);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        memcpy(gathered + i * size, at + (size_t)((index + i) / group) * stride * size, size);
    cpu_widen(dtype, gathered, n, out);
}

/* Scales and minima along an axis. Minima are moved to where the middle code is, which is what codes are counted from. */
struct scales {
    float scale[FOLD_MAX], minimum[FOLD_MAX];
};

/* n of them went to [from, from + n). */
static void centre(const struct cpu_codes *codes, struct scales *s, size_t n)
{
    vf zero = vf_splat((float)codes->passes[0].zero);

    for (size_t i = n; i < steps(n); i++)
        s->scale[i] = s->minimum[i] = 0.0f;
    for (size_t i = 0; i < n && codes->layout.min_at; i += CPU_LANES)
        vf_store(s->minimum + i, vf_madd(vf_load(s->scale + i), zero, vf_load(s->minimum + i)));
}

/* Of the piece's entries, for the group of dims with `dim`. */
static void scales_of_entries(const struct piece *piece, uint32_t dim, struct scales *s)
{
    const struct cpu_codes *c = piece->codes;
    size_t offset = (size_t)(dim / c->group_dims) * c->layout.token_groups * cpu_number_bytes(c->scale_type);

    for (uint32_t i = 0, at = 0; i < piece->n_parts; at += piece->parts[i++].n) {
        const struct part *part = &piece->parts[i];
        const uint8_t *tile = part->tile + offset;

        load_numbers(c->scale_type, tile, part->first, part->n, c->group_tokens, 1, s->scale + at);
        if (c->layout.min_at)
            load_numbers(c->scale_type, tile + c->layout.min_at, part->first, part->n, c->group_tokens, 1, s->minimum + at);
    }
    centre(c, s, entries(piece));
}

/* Of `width` dims, for the group of entries with `token` of the part's block. */
static void scales_of_dims(const struct cpu_codes *c, const struct part *part, uint32_t token, uint32_t width, struct scales *s)
{
    const uint8_t *tile = part->tile + token / c->group_tokens * cpu_number_bytes(c->scale_type);

    load_numbers(c->scale_type, tile, 0, width, c->group_dims, c->layout.token_groups, s->scale);
    if (c->layout.min_at)
        load_numbers(c->scale_type, tile + c->layout.min_at, 0, width, c->group_dims, c->layout.token_groups, s->minimum);
    centre(c, s, width);
}

/* ---- Products ------------------------------------------------------------------------------------------------------------ */

/* Up to BLOCK rows of digits against bytes: out[row][lane] += products * scale [* lane_scales] + bias [* lane_minima]. */
struct products {
    const uint8_t *bytes;
    ptrdiff_t ahead; /* bytes to those that will be wanted next; 0: they are asked for elsewhere */
    size_t stride;   /* from one quad to the next */
    uint32_t n_quads;
    const int8_t *high, *low; /* [rows][row_bytes] */
    size_t row_bytes;
    int32_t digit_bits;
    int32_t starts[BLOCK];
    float scales[BLOCK], biases[BLOCK];
    const float *lane_scales, *lane_minima; /* NULL: ones */
    float *out;
    size_t out_stride;
};

VEC_INLINE vi dot(vi total, vb codes, const int8_t *digits)
{
    return dot_end(dot_step(dot_begin(total), codes, vb_splat4(digits)), 1, total);
}

VEC_INLINE vf scaled(const struct products *p, uint32_t row, uint32_t lane, vi total, vf before)
{
    vf y = vf_from_i32(total), scale = vf_splat(p->scales[row]), bias = vf_splat(p->biases[row]);

    if (!p->lane_scales)
        return vf_madd(y, scale, before) + bias;
    before = vf_madd(y, scale * vf_load(p->lane_scales + lane), before);
    return p->lane_minima ? vf_madd(bias, vf_load(p->lane_minima + lane), before) : before;
}

VEC_INLINE void multiply(uint32_t n_q, uint32_t width, const struct products *p, uint32_t lane)
{
    const uint8_t *bytes = p->bytes + (size_t)lane * 4;
    vi high[BLOCK][WIDE], low[BLOCK][WIDE];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++) {
            high[i][j] = vi_splat(0);
            low[i][j] = vi_splat(p->starts[i]);
        }
    for (uint32_t q = 0; q < p->n_quads; q++, bytes += p->stride) {
        vb codes[WIDE];

        for (uint32_t j = 0; j < width; j++)
            codes[j] = vb_load(bytes + j * VECTOR);
        if (p->ahead)
            fetch(bytes + p->ahead, width * VECTOR);
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t j = 0; j < width; j++) {
                high[i][j] = dot(high[i][j], codes[j], p->high + i * p->row_bytes + q * 4);
                low[i][j] = dot(low[i][j], codes[j], p->low + i * p->row_bytes + q * 4);
            }
    }
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < width; j++) {
            float *out = p->out + i * p->out_stride + lane + j * CPU_LANES;

            vf_store(out, scaled(p, i, lane + j * CPU_LANES, (high[i][j] << p->digit_bits) + low[i][j], vf_load(out)));
        }
}

static void multiply_lanes(uint32_t n_q, const struct products *p, uint32_t n_lanes)
{
    uint32_t lane = 0;

    for (; lane + WIDE * CPU_LANES <= n_lanes; lane += WIDE * CPU_LANES)
        FOR_QUERIES(n_q, multiply, WIDE, p, lane);
    for (; lane < n_lanes; lane += CPU_LANES)
        FOR_QUERIES(n_q, multiply, 1, p, lane);
}

/* Digits of one group of n_q rows. */
struct rounded {
    float scales[BLOCK], totals[BLOCK]; /* totals: of the numbers, or what minima make of them */
    int32_t sums[BLOCK];
};

/* One group against rows whose digits are there, pass by pass; minima count once. The bytes begin `skip` behind the piece's. */
static void multiply_group(const struct piece *piece, uint32_t n_q, const struct rounded *r, size_t skip, uint32_t n_lanes,
                           struct products *p)
{
    p->digit_bits = (int32_t)digit_bits(piece->codes);
    p->ahead = in_place(piece->codes) ? piece->parts[0].ahead - piece->parts[0].tile : 0;
    for (uint32_t pass = 0; pass < piece->codes->n_passes; pass++) {
        p->bytes = piece->bytes[pass] + skip;
        for (uint32_t i = 0; i < n_q; i++) {
            p->starts[i] = -piece->codes->passes[pass].zero * r->sums[i];
            p->scales[i] = piece->codes->passes[pass].factor * r->scales[i];
            p->biases[i] = pass ? 0.0f : r->totals[i];
        }
        multiply_lanes(n_q, p, n_lanes);
    }
}

/* Indices from `at` on that are of one group, at most to `end`. */
static uint32_t in_group(uint32_t at, uint32_t end, uint32_t group)
{
    uint32_t next = (at / group + 1) * group;

    return (next < end ? next : end) - at;
}

/* Rows of numbers that meet codes: [rows][stride]. */
struct lines {
    const float *x;
    size_t stride;
};

/* Rounds n_q rows of n numbers, times their scales. */
static void round_folded(const struct cpu_codes *codes, uint32_t n_q, struct lines x, size_t n, const struct scales *s,
                         int8_t *high, int8_t *low, struct rounded *r)
{
    for (uint32_t i = 0; i < n_q; i++) {
        const float *row = x.x + i * x.stride;

        round_row(digit_bits(codes), row, s->scale, n, high + i * n, low + i * n, &r->scales[i], &r->sums[i]);
        r->totals[i] = codes->layout.min_at ? product_sum(row, s->minimum, n) : 0.0f;
    }
}

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

/* A scale for each dim: queries take them up, anew for each group of entries. */
static void score_folded(const struct piece *piece, uint32_t n_q, struct lines q, float *out)
{
    const struct cpu_codes *codes = piece->codes;
    uint32_t dims = codes->layout.inner;
    int8_t high[BLOCK * FOLD_MAX], low[BLOCK * FOLD_MAX];
    struct products p = {.stride = piece->stride,
                         .n_quads = (dims + 3) / 4,
                         .high = high,
                         .low = low,
                         .row_bytes = steps(dims),
                         .out_stride = TOKENS};
    struct scales s;
    struct rounded r;

    for (uint32_t i = 0, at = 0; i < piece->n_parts; at += piece->parts[i++].n) {
        const struct part *part = &piece->parts[i];

        for (uint32_t t = part->first, n; t < part->first + part->n; t += n) {
            n = in_group(t, part->first + part->n, codes->group_tokens);
            scales_of_dims(codes, part, t, dims, &s);
            round_folded(codes, n_q, q, steps(dims), &s, high, low, &r);
            p.out = out + at + t - part->first;
            multiply_group(piece, n_q, &r, (size_t)(at + t - part->first) * 4, n, &p);
        }
    }
}

/* A scale for each entry and group of dims; the queries' digits are there, from query `first` on. */
static void score_by_entry(const struct piece *piece, uint32_t first, uint32_t n_q, const struct digits *d, float *out)
{
    const struct cpu_codes *codes = piece->codes;
    uint32_t dims = codes->layout.inner;
    struct scales s;
    struct products p = {.stride = piece->stride,
                         .row_bytes = d->row_bytes,
                         .lane_scales = s.scale,
                         .lane_minima = codes->layout.min_at ? s.minimum : NULL,
                         .out = out,
                         .out_stride = TOKENS};

    for (uint32_t k = 0, g = 0, n; k < dims; k += n, g++) {
        struct rounded r;

        n = in_group(k, dims, codes->group_dims);
        p.n_quads = (n + 3) / 4;
        p.high = d->high + first * d->row_bytes + k;
        p.low = d->low + first * d->row_bytes + k;
        scales_of_entries(piece, k, &s);
        for (uint32_t i = 0; i < n_q; i++) {
            r.scales[i] = d->scales[(first + i) * DIGIT_GROUPS + g];
            r.sums[i] = d->sums[(first + i) * DIGIT_GROUPS + g];
            r.totals[i] = d->totals[(first + i) * DIGIT_GROUPS + g];
        }
        multiply_group(piece, n_q, &r, k / 4 * p.stride, entries(piece), &p);
    }
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

/* A scale for each entry and group of dims: the weights take them up. */
static void add_folded(const struct piece *piece, uint32_t n_q, struct lines weights, float *out, size_t dv)
{
    const struct cpu_codes *codes = piece->codes;
    int8_t high[BLOCK * TOKENS], low[BLOCK * TOKENS];
    struct products p = {.stride = piece->stride,
                         .n_quads = entries(piece) / 4,
                         .high = high,
                         .low = low,
                         .row_bytes = entries(piece),
                         .out_stride = dv};
    struct scales s;
    struct rounded r;

    for (uint32_t d = 0, n; d < codes->layout.outer; d += n) {
        n = in_group(d, codes->layout.outer, codes->group_dims);
        scales_of_entries(piece, d, &s);
        round_folded(codes, n_q, weights, entries(piece), &s, high, low, &r);
        p.out = out + d;
        multiply_group(piece, n_q, &r, (size_t)d * 4, n, &p);
    }
}

/* A scale for each dim and group of entries. */
static void add_by_dim(const struct piece *piece, uint32_t n_q, struct lines weights, float *out, size_t dv)
{
    static const struct scales ones = {.scale = {[0 ... FOLD_MAX - 1] = 1.0f}, .minimum = {[0 ... FOLD_MAX - 1] = 1.0f}};
    const struct cpu_codes *codes = piece->codes;
    int8_t high[BLOCK * TOKENS], low[BLOCK * TOKENS];
    struct scales s;
    struct rounded r;
    struct products p = {.stride = piece->stride,
                         .high = high,
                         .low = low,
                         .lane_scales = s.scale,
                         .lane_minima = codes->layout.min_at ? s.minimum : NULL,
                         .out = out,
                         .out_stride = dv};

    for (uint32_t i = 0, at = 0; i < piece->n_parts; at += piece->parts[i++].n) {
        const struct part *part = &piece->parts[i];

        for (uint32_t t = part->first, n; t < part->first + part->n; t += n) {
            struct lines some = {weights.x + at + t - part->first, weights.stride};

            n = in_group(t, part->first + part->n, codes->group_tokens);
            p.n_quads = n / 4;
            p.row_bytes = n;
            scales_of_dims(codes, part, t, codes->layout.outer, &s);
            round_folded(codes, n_q, some, n, &ones, high, low, &r);
            multiply_group(piece, n_q, &r, (at + t - part->first) / 4 * p.stride, codes->layout.outer, &p);
        }
    }
}

/* ---- Items --------------------------------------------------------------------------------------------------------------- */

/* The packed tile that will be wanted at place t of the next tile of entries; `tile`, if that is not known. */
static const uint8_t *tile_ahead(const struct item *item, uint32_t side, uint32_t t, const uint8_t *tile)
{
    uint64_t entry = item->ahead_at + t;
    const struct cpu_plane *plane;
    const uint8_t *ahead = NULL;

    if (item->ahead && entry < item->ahead->end && item->group->block_tokens <= TOKENS)
        ahead = cpu_item_tile(item->ahead, side, entry, &plane);
    return ahead && plane->codes.usable ? ahead : tile;
}

/* The pieces of the tile at entry `begin` that are computed on as they are, and their entries. */
static uint64_t find_pieces(struct item *item, uint32_t side, uint64_t begin, uint64_t seen)
{
    uint32_t tokens = item->group->block_tokens, each = tokens < TOKENS ? tokens : TOKENS;
    uint64_t all = UINT64_MAX >> (TOKENS - each), found = 0;
    struct piece *piece = item->pieces[side];
    uint32_t n = 0;

    for (uint32_t t = 0; t < TOKENS; t += each) {
        const struct cpu_plane *plane;
        const uint8_t *tile = seen >> t & all ? cpu_item_tile(item, side, begin + t, &plane) : NULL;

        if (!tile || !plane->codes.usable)
            continue;
        if (n == 0 || piece[n - 1].to != t || in_place(&plane->codes))
            piece[n++] = (struct piece){.from = t, .codes = &plane->codes};
        piece[n - 1].to = t + each;
        piece[n - 1].parts[piece[n - 1].n_parts++] =
            (struct part){tile, tile_ahead(item, side, t, tile), (uint32_t)((begin + t) % tokens), each};
        found |= all << t;
    }
    for (uint32_t i = 0; i < n; i++)
        expand(&piece[i], side,
               item->room_for_bytes[side] +
                   (size_t)CODES_PASSES * piece[i].from * (side == CPU_KEY ? item->coded_q_stride : item->dv));
    item->n_pieces[side] = n;
    return found;
}

void cpu_codes_begin(struct item *item, uint64_t begin, uint64_t seen)
{
    for (uint32_t side = 0; side < CPU_SIDES; side++)
        item->coded[side] = packed_plane(item, side)->codes.usable ? find_pieces(item, side, begin, seen) : 0;
}

/* Digits of a query by groups of dims. */
static void round_query(const struct cpu_codes *codes, const float *row, uint32_t query, struct digits *d)
{
    static const float ones[FOLD_MAX] = {[0 ... FOLD_MAX - 1] = 1.0f};
    uint32_t dims = codes->layout.inner;

    for (uint32_t k = 0, g = 0, n; k < dims; k += n, g++) {
        size_t at = query * d->row_bytes + k, group = (size_t)query * DIGIT_GROUPS + g;

        n = in_group(k, dims, codes->group_dims);
        round_row(digit_bits(codes), row + k, ones, steps(n), d->high + at, d->low + at, &d->scales[group], &d->sums[group]);
        d->totals[group] = product_sum(row + k, ones, steps(n));
    }
}

/* Rows of the queries, rotated as the keys are, and their digits. */
static void prepare_queries(struct item *item, const float *q)
{
    const struct cpu_plane *plane = packed_plane(item, CPU_KEY);

    item->coded_from = q;
    for (uint32_t i = 0; i < item->n; i++) {
        const float *src = q + i / BLOCK * item->dk * BLOCK + i % BLOCK;
        float *row = item->coded_q + i * item->coded_q_stride;

        for (size_t d = 0; d < item->dk; d++)
            row[d] = src[d * BLOCK];
        memset(row + item->dk, 0, (item->coded_q_stride - item->dk) * sizeof *row);
        if (plane->format.rotation) {
            flip(row, &plane->format, item->dk);
            hadamard(row, item->coded_q_stride, plane->format.rotation_dims);
        }
        if (!plane->codes.folded)
            round_query(&plane->codes, row, i, &item->digits);
    }
}

void cpu_codes_score(struct item *item, const float *q, uint32_t first, uint32_t n_q, float *scores)
{
    struct lines rows = {item->coded_q + first * item->coded_q_stride, item->coded_q_stride};

    if (item->coded_from != q)
        prepare_queries(item, q);
    for (uint32_t k = 0; k < item->n_pieces[CPU_KEY]; k++) {
        const struct piece *piece = &item->pieces[CPU_KEY][k];

        for (uint32_t i = 0; i < n_q; i++)
            memset(scores + i * TOKENS + piece->from, 0, entries(piece) * sizeof *scores);
        if (piece->codes->folded)
            score_folded(piece, n_q, rows, scores + piece->from);
        else
            score_by_entry(piece, first, n_q, &item->digits, scores + piece->from);
    }
}

void cpu_codes_add(struct item *item, uint32_t first, uint32_t n_q, const float *weights)
{
    float *out = item->part.coded + first * item->dv;

    for (uint32_t k = 0; k < item->n_pieces[CPU_VALUE]; k++) {
        const struct piece *piece = &item->pieces[CPU_VALUE][k];
        struct lines rows = {weights + piece->from, TOKENS};

        if (piece->codes->folded)
            add_folded(piece, n_q, rows, out, item->dv);
        else
            add_by_dim(piece, n_q, rows, out, item->dv);
    }
}
