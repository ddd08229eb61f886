/* Where scales and codes lie in a tile of the kinds AFFINE, CODEBOOK and E4M3, as soquete/kv.h says: for codecs, which write
 * such tiles, and for kernels, which read them. */
#ifndef SOQ_PLUGIN_KVTILE_H
#define SOQ_PLUGIN_KVTILE_H

#include <stddef.h>
#include <stdint.h>

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

#endif
