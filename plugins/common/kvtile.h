/* Where scales and codes lie in a tile of the kinds AFFINE, CODEBOOK and E4M3, as soquete/kv.h says: for codecs, which write
 * such tiles, and for kernels, which read them. */
#ifndef SOQ_PLUGIN_KVTILE_H
#define SOQ_PLUGIN_KVTILE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "soquete/plugin.h"

enum { KVTILE_PLANES_MAX = 4 }; /* 15 bits at most */

struct kvtile_plane {
    uint32_t bits;
    uint32_t shift; /* of these bits in a code */
    uint64_t at;    /* byte */
};

struct kvtile {
    uint32_t inner, outer;             /* of the codes: keys: dims, tokens; values: tokens, dims */
    uint32_t dim_groups, token_groups; /* scales are [dim_groups][token_groups] */
    uint64_t min_at;                   /* bytes; scales begin at 0; without minima: 0 */
    struct kvtile_plane planes[KVTILE_PLANES_MAX];
    uint32_t n_planes;
    uint64_t bytes; /* of the tile */
};

static inline uint32_t kvtile_ceil(uint32_t n, uint32_t by)
{
    return (n + by - 1) / by;
}

static inline struct kvtile kvtile_of(const struct soq_kv_format *f, uint32_t role, uint32_t tokens, uint32_t width)
{
    struct kvtile t = {
        .inner = role == SOQ_PLANE_KEY ? width : tokens,
        .outer = role == SOQ_PLANE_KEY ? tokens : width,
        .dim_groups = kvtile_ceil(width, f->group_dims),
        .token_groups = kvtile_ceil(tokens, f->group_tokens),
    };
    uint64_t scales = (uint64_t)t.dim_groups * t.token_groups * (f->dtype == SOQ_DTYPE_F32 ? 4 : 2);
    int has_min = f->kind == SOQ_FORMAT_AFFINE && !f->symmetric;

    t.min_at = has_min ? scales : 0;
    t.bytes = ((has_min ? 2 : 1) * scales + 7) / 8 * 8;
    for (uint32_t bits = 8, shift = 0; bits; bits /= 2) {
        if (!(f->bits & bits))
            continue;
        t.planes[t.n_planes++] = (struct kvtile_plane){.bits = bits, .shift = shift, .at = t.bytes};
        t.bytes += (uint64_t)kvtile_ceil(t.inner, 32 / bits) * t.outer * 4;
        shift += bits;
    }
    t.bytes = (t.bytes + 7) / 8 * 8;
    return t;
}

/* The byte of a plane that holds the code of (inner, outer), and in *shift_out where in it. */
static inline uint64_t kvtile_byte(const struct kvtile *t, const struct kvtile_plane *p, uint32_t inner, uint32_t outer,
                                   uint32_t *shift_out)
{
    uint32_t quad = inner / 4, per_byte = 8 / p->bits;

    *shift_out = quad % per_byte * p->bits;
    return p->at + ((uint64_t)(quad / per_byte) * t->outer + outer) * 4 + inner % 4;
}

/* The codes of a tile must be zeros before. */
static inline void kvtile_put(const struct kvtile *t, uint8_t *tile, uint32_t inner, uint32_t outer, uint32_t code)
{
    for (uint32_t i = 0; i < t->n_planes; i++) {
        const struct kvtile_plane *p = &t->planes[i];
        uint32_t shift;
        uint64_t at = kvtile_byte(t, p, inner, outer, &shift);

        tile[at] |= (uint8_t)((code >> p->shift & ((1u << p->bits) - 1)) << shift);
    }
}

static inline uint32_t kvtile_get(const struct kvtile *t, const uint8_t *tile, uint32_t inner, uint32_t outer)
{
    uint32_t code = 0;

    for (uint32_t i = 0; i < t->n_planes; i++) {
        const struct kvtile_plane *p = &t->planes[i];
        uint32_t shift;
        uint64_t at = kvtile_byte(t, p, inner, outer, &shift);

        code |= (tile[at] >> shift & ((1u << p->bits) - 1)) << p->shift;
    }
    return code;
}

/* ---- Four tokens at a time --------------------------------------------------------------------------------------- */

enum { KVTILE_WIDTH_MAX = 1024 }; /* of the tiles of Soquete's own codecs: no heap is needed for a row */

/* Codes of four tokens, one a byte; those beyond the tile's tokens and width are zeros. */
struct kvtile_rows {
    uint8_t code[4][KVTILE_WIDTH_MAX + 32];
};

/* One bit field of four codes at once: a word holds codes of the inner index 4 i ... 4 i + 3. */
static inline uint32_t kvtile_field(const struct kvtile_plane *p)
{
    return ((1u << p->bits) - 1) * 0x01010101u;
}

static inline void kvtile_put_key(const struct kvtile *t, const struct kvtile_plane *p, uint8_t *tile, uint32_t token,
                                  const uint8_t *codes)
{
    uint32_t per_byte = 8 / p->bits, n = kvtile_ceil(t->inner, 4 * per_byte), field = kvtile_field(p);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t word = 0;

        for (uint32_t s = 0; s < per_byte; s++, codes += 4) {
            uint32_t four;

            memcpy(&four, codes, 4);
            word |= (four >> p->shift & field) << s * p->bits;
        }
        memcpy(tile + p->at + ((uint64_t)i * t->outer + token) * 4, &word, 4);
    }
}

static inline void kvtile_put_values(const struct kvtile *t, const struct kvtile_plane *p, uint8_t *tile, uint32_t token,
                                     const struct kvtile_rows *rows)
{
    uint32_t per_byte = 8 / p->bits, s = token / 4 % per_byte, keep = s ? ~0u : 0, field = kvtile_field(p);
    uint8_t *to = tile + p->at + (uint64_t)(token / 4 / per_byte) * t->outer * 4;

    for (uint32_t d = 0; d < t->outer; d++) {
        uint32_t four = rows->code[0][d] | (uint32_t)rows->code[1][d] << 8 | (uint32_t)rows->code[2][d] << 16 |
                        (uint32_t)rows->code[3][d] << 24,
                 word;

        memcpy(&word, to + 4 * d, 4);
        word = (word & keep) | (four >> p->shift & field) << s * p->bits;
        memcpy(to + 4 * d, &word, 4);
    }
}

/* Stores the codes of the tokens from `token`, a multiple of 4, on: first to last, as later ones complete bytes of earlier
 * ones. */
static inline void kvtile_put_rows(const struct kvtile *t, uint32_t role, uint8_t *tile, uint32_t token,
                                   const struct kvtile_rows *rows)
{
    for (uint32_t i = 0; i < t->n_planes; i++) {
        if (role != SOQ_PLANE_KEY) {
            kvtile_put_values(t, &t->planes[i], tile, token, rows);
            continue;
        }
        for (uint32_t r = 0; r < 4 && token + r < t->outer; r++)
            kvtile_put_key(t, &t->planes[i], tile, token + r, rows->code[r]);
    }
}

/* The codes' other planes are added to those that are there. */
static inline void kvtile_get_key(const struct kvtile *t, const struct kvtile_plane *p, const uint8_t *tile, uint32_t token,
                                  uint8_t *codes)
{
    uint32_t per_byte = 8 / p->bits, n = kvtile_ceil(t->inner, 4 * per_byte), field = kvtile_field(p);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t word;

        memcpy(&word, tile + p->at + ((uint64_t)i * t->outer + token) * 4, 4);
        for (uint32_t s = 0; s < per_byte; s++, codes += 4) {
            uint32_t four;

            memcpy(&four, codes, 4);
            four |= (word >> s * p->bits & field) << p->shift;
            memcpy(codes, &four, 4);
        }
    }
}

static inline void kvtile_get_values(const struct kvtile *t, const struct kvtile_plane *p, const uint8_t *tile, uint32_t token,
                                     struct kvtile_rows *rows)
{
    uint32_t per_byte = 8 / p->bits, s = token / 4 % per_byte, field = kvtile_field(p);
    const uint8_t *from = tile + p->at + (uint64_t)(token / 4 / per_byte) * t->outer * 4;

    for (uint32_t d = 0; d < t->outer; d++) {
        uint32_t word;

        memcpy(&word, from + 4 * d, 4);
        word = (word >> s * p->bits & field) << p->shift;
        for (uint32_t r = 0; r < 4; r++)
            rows->code[r][d] = (uint8_t)(rows->code[r][d] | word >> 8 * r);
    }
}

/* The codes of four tokens from `token`, a multiple of 4, on; those beyond the tile mean nothing. */
static inline void kvtile_get_rows(const struct kvtile *t, uint32_t role, const uint8_t *tile, uint32_t token,
                                   struct kvtile_rows *rows)
{
    uint32_t width = role == SOQ_PLANE_KEY ? t->inner : t->outer;

    for (uint32_t r = 0; r < 4; r++)
        memset(rows->code[r], 0, width + 32);
    for (uint32_t i = 0; i < t->n_planes; i++) {
        if (role != SOQ_PLANE_KEY) {
            kvtile_get_values(t, &t->planes[i], tile, token, rows);
            continue;
        }
        for (uint32_t r = 0; r < 4 && token + r < t->outer; r++)
            kvtile_get_key(t, &t->planes[i], tile, token + r, rows->code[r]);
    }
}

#endif
