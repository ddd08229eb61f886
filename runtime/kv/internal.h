/* Between the files of the cache. */
#ifndef SOQ_KV_INTERNAL_H
#define SOQ_KV_INTERNAL_H

#include "kv/cache.h"

static inline uint32_t soq__kv_blocks(const struct soq__kv_cache *c, uint32_t n_entries)
{
    return (n_entries + c->block_tokens - 1) / c->block_tokens;
}

/* The pool that a block of the group is from; not for SOQ_BLOCK_NONE. */
static inline struct soq__kv_pool *soq__kv_pool_of(const struct soq__kv_group *g, soq_block_ref block)
{
    return g->pools[block >> SOQ_BLOCK_CLASS_SHIFT];
}

/* Whether line `index` of a group, if it is held, is a packed block. */
static inline bool soq__kv_is_packed(const struct soq__kv_seq *seq, uint32_t g, uint32_t index)
{
    return (index + 1) * seq->cache->block_tokens <= soq__kv_packed_to(seq->cache->groups[g].layout, seq->n_committed);
}

/* Bytes of that block. */
static inline uint64_t soq__kv_line_bytes(const struct soq__kv_seq *seq, uint32_t g, uint32_t index)
{
    return seq->cache->groups[g].pools[soq__kv_is_packed(seq, g, index)]->block_bytes;
}

/* As coders are told of the tiles of line `index`. */
static inline uint32_t soq__kv_first_position(const struct soq__kv_seq *seq, uint32_t g, uint32_t index)
{
    uint32_t first = index * seq->cache->block_tokens;

    return first < seq->groups[g].n_selected ? UINT32_MAX : first;
}

/* Bytes of all blocks of a group that the sequence holds. */
static inline uint64_t soq__kv_held_bytes(const struct soq__kv_seq *seq, uint32_t g)
{
    const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;
    const struct soq__kv_seq_group *sg = &seq->groups[g];

    return (sg->n_held - sg->n_packed) * layout->block_bytes + sg->n_packed * layout->packed_bytes;
}

/* Where the attention mass of head h of layer l of group g is told: NULL: by the group itself. */
static inline const struct soq__kv_part *soq__kv_teller(const struct soq__kv_layout *layout, uint32_t g, uint32_t l, uint32_t h)
{
    const struct soq__kv_group_layout *group = &layout->groups[g];

    return group->view == SOQ__KV_FULL ? NULL : soq__kv_part_of(layout, SOQ__KV_FULL, group->layers[l], group->first_head + h);
}

/* ---- cache.c */

int soq__kv_push_edit(struct soq__kv_cache *cache, struct soq_step_edit edit, struct soq_error *err);
/* The sequence holds no block any more: what is pending for its table is void, and there must not be more of it with every
 * sequence that goes before a step. */
void soq__kv_drop_edits(const struct soq__kv_seq *seq);
/* Takes a reference to the source until the copy is delivered. */
int soq__kv_push_copy(struct soq__kv_cache *cache, struct soq_step_copy copy, struct soq_error *err);
/* Gives a reference to a block back. If it was the last, a copy to it that is still pending is dropped: its slab may go with
 * it. */
void soq__kv_let_go(struct soq__kv_cache *cache, uint32_t group, soq_block_ref block);

/* ---- promise.c */

/* Whether everything promised to all sequences fits under the limit. */
bool soq__kv_promises_fit(const struct soq__kv_cache *cache);
/* After a selection: what is promised beyond the sequence's needs from here on is free for others. */
void soq__kv_shrink_promise(struct soq__kv_seq *seq);

/* ---- sequence.c */

/* Table line `index` of group g is `block` from now on; the reference becomes the sequence's, what stood there is not given
 * back.
 */
void soq__kv_hold(struct soq__kv_seq *seq, uint32_t g, uint32_t index, soq_block_ref block);
/* Gives table entries [first, last) of group g back. */
void soq__kv_drop_blocks(struct soq__kv_seq *seq, uint32_t g, uint32_t first, uint32_t last);
/* Forgets everything: no entry, no survivor, no state. */
void soq__kv_empty(struct soq__kv_seq *seq);

/* ---- mass.c */

void soq__kv_mass_free(struct soq__kv_group *group);
/* Accumulators for the tentative rows that want them. */
int soq__kv_mass_reserve(struct soq__kv_seq *seq, uint32_t n_rows, struct soq_error *err);
/* Adds what the first n_rows tentative rows gave; with undo it takes that off again, which cannot fail after it was added. */
int soq__kv_mass_add(struct soq__kv_seq *seq, uint32_t n_rows, bool undo, struct soq_error *err);
void soq__kv_mass_drop(struct soq__kv_seq_group *group);
/* No row is tentative any more: sums that none of those that were committed has begun are dropped, as others may begin them. */
void soq__kv_mass_settle(struct soq__kv_seq *seq);
/* A prompt begins: sums of an answer's last rows that are too far from its end to count are dropped. */
void soq__kv_mass_new_prompt(struct soq__kv_seq *seq);

/* ---- select.c */

/* What policies answered about a group, before anything is done about it. */
struct soq__kv_selected {
    uint32_t n_keep;
    uint32_t *keep; /* [n_layers][n_heads][n_keep] indices into what the group holds, oldest first; NULL: nothing is selected */
};

/* Asks all policies whose selection is due after the commit that ends at n entries; *out: NULL if none is. The tables hold all
 * entries below n. */
int soq__kv_select(struct soq__kv_seq *seq, uint32_t n, struct soq__kv_selected **out, struct soq_error *err);
void soq__kv_selected_free(struct soq__kv_selected *selected, uint32_t n_groups);

/* ---- compact.c */

/* Moves survivors to fresh blocks, group by group, gives the old ones back, and packs the fresh ones where that is due. After a
 * failure the groups before the one that failed are done. n_committed is n. */
int soq__kv_compact(struct soq__kv_seq *seq, struct soq__kv_selected *selected, struct soq_error *err);

/* ---- pack.c */

int soq__kv_packing_init(struct soq__kv_packing *packing, uint32_t max_blocks, struct soq_error *err);
void soq__kv_packing_done(struct soq__kv_packing *packing);
/* Packs what is due at n_committed. On failure the group is as it was. */
int soq__kv_pack_group(struct soq__kv_seq *seq, uint32_t g, struct soq_error *err);
/* ... in all groups, after a commit without a selection; after a failure those before the one that failed are done. */
int soq__kv_pack(struct soq__kv_seq *seq, struct soq_error *err);

/* ---- read.c */

/* Room for a tile of any group. */
struct soq__kv_tile_room {
    float *numbers; /* [block_tokens][width] */
    void *bytes;
};

/* A tile of a block: a layer and a head of the group. */
struct soq__kv_tile_name {
    uint32_t plane, index, head;
};

int soq__kv_tile_room_init(struct soq__kv_tile_room *room, const struct soq__kv_cache *cache, struct soq_error *err);
void soq__kv_tile_room_done(struct soq__kv_tile_room *room);
/* The numbers of a tile of `block`, plain or packed, which is or was line `line` of the group's table. */
int soq__kv_tile_read(const struct soq__kv_seq *seq, uint32_t g, soq_block_ref block, uint32_t line,
                      struct soq__kv_tile_name name, struct soq__kv_tile_room *room, struct soq_error *err);

#endif
