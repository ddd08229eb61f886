/* A KV cache for checks: one group over one slab of each class, whose blocks lie backwards, and the queries, keys and values of
 * every position. */
#ifndef SOQ_CHECK_CACHE_H
#define SOQ_CHECK_CACHE_H

#include "check/coder.h"
#include "check/reference.h"
#include "check/rig.h"

#define SOQ__CACHE_SCALE 0.7 /* of scores */

struct soq__cache_shape {
    uint32_t n_heads, n_kv_heads, dk, dv, layers, block_tokens, dtype;
    float softcap;
    uint32_t window, sinks;
    bool sink_logits;
};

struct soq__cache {
    struct soq__rig *rig;
    struct soq__cache_shape shape;
    soq_kv_group group;
    soq_buffer slab;
    uint32_t n_blocks, n_entries, layer;
    uint64_t key_tile, value_tile, block_bytes;
    struct soq__matrix q, k, v; /* [n_entries] */
    soq_weight sinks;
    float sink_values[64];
    /* Where it packs; coders NULL: it does not. */
    struct soq__coder *coders; /* [2]: keys, values */
    void *packed_planes;
    struct soq_kv_coder views[2];
    soq_buffer packed_slab;
    uint64_t packed_bytes;
    uint32_t n_packed; /* the first blocks, so many, are packed */
};

/* Whether the backend claims the shape; with flags SOQ_OPDESC_... beyond those that the shape has. */
bool soq__cache_claimed(struct soq__rig *rig, const struct soq__cache_shape *shape);
bool soq__cache_claimed_with(struct soq__rig *rig, const struct soq__cache_shape *shape, uint32_t flags);
/* kv_gather is there and claimed. */
bool soq__cache_gathers(struct soq__rig *rig, const struct soq__cache_shape *shape);
/* n_entries positions; `more` blocks beyond those that they need. */
void soq__cache_open(struct soq__cache *c, struct soq__rig *rig, const struct soq__cache_shape *shape, uint32_t n_entries,
                     uint32_t more);
/* The same of a group that packs with coders [2], keys and values, which outlive it. */
void soq__cache_open_packing(struct soq__cache *c, struct soq__rig *rig, const struct soq__cache_shape *shape,
                             uint32_t n_entries, uint32_t more, struct soq__coder *coders);
void soq__cache_close(struct soq__cache *c);
/* A second group of the same shape, `index` in steps, whose blocks lie in the slab of c. */
soq_kv_group soq__cache_share(struct soq__cache *c, uint32_t index);

/* The block of a table place, as the checks lay them out. */
soq_block_ref soq__cache_block(const struct soq__cache *c, uint32_t index);
/* Packs the first n blocks, of which `skip` entries hold nothing. From here on c->k and c->v have, for these, what the codecs
 * make of them. */
void soq__cache_pack(struct soq__cache *c, uint32_t n, uint32_t skip);
/* Whether the backend claims the formats of coders [2] for the shape, with flags SOQ_OPDESC_... beyond those it has. */
bool soq__cache_claimed_packing(struct soq__rig *rig, const struct soq__cache_shape *shape, const struct soq__coder *coders,
                                uint32_t flags);
/* Edits that give a slot all its blocks. */
void soq__cache_map(const struct soq__cache *c, struct soq__rig_step *s, uint32_t slot);
/* The step's rows [0, n) append positions [first, first + n). */
void soq__cache_append(struct soq__cache *c, uint32_t first, uint32_t n);
/* What they attend with: the queries of these positions; results go to rows [row, row + n) of out. */
struct soq_attention_args soq__cache_attention_args(const struct soq__cache *c, uint32_t first, uint32_t n,
                                                    const struct soq__matrix *out, uint32_t row);
/* They attend, with the queries of these positions; results go to rows [row, row + n) of out. */
void soq__cache_attend(struct soq__cache *c, uint32_t first, uint32_t n, const struct soq__matrix *out, uint32_t row);
/* A step of one sequence in slot 0 that does both, with edits if it begins at 0. */
void soq__cache_chunk(struct soq__cache *c, uint32_t first, uint32_t n, const struct soq__matrix *out);

/* The type that tolerances of attention go by. */
uint32_t soq__cache_tolerance(const struct soq__cache *c);
/* The reference of one head; and the comparison of out's rows with it, row i being position first + i. */
struct soq__ref_attention soq__cache_reference(const struct soq__cache *c, uint32_t head);
void soq__cache_compare(struct soq__cache *c, const struct soq__matrix *out, uint32_t row, uint32_t first, uint32_t n);

/* The number that the cache should hold at (layer, head, token of block, dim) of a plane, read back. role: enum
 * soq_kv_plane_role. */
double soq__cache_stored(const struct soq__cache *c, const uint8_t *slab, uint32_t role, uint32_t block, uint32_t layer,
                         uint32_t head, uint32_t token, uint32_t dim);

#endif
