/* The KV cache of a model: groups of layers, a block table per sequence and group, commit and rollback.
 *
 * Vocabulary as in soquete/plugin.h. Rows are tentative from prepare() until commit(), which follows a successful step; freeing
 * behind a window and the policy's decisions happen only there, on the position grid. Blocks are shared between forks until
 * somebody writes: then the writer gets a copy. Freed blocks return to the pool at once.
 *
 * Memory is promised in advance: reserve() admits a sequence only if everything it may still need fits beside what all others
 * were promised, so that no step runs out half way. Not thread-safe; called between steps only. */
#ifndef SOQ_KV_CACHE_H
#define SOQ_KV_CACHE_H

#include "kv/layout.h"
#include "kv/pool.h"
#include "kv/trace.h"
#include "plugin/load.h"

struct soq__kv_policy {
    const struct soq_kv_policy_ops *ops;
    void *self;
    struct soq_kv_plan plan;
};

struct soq__kv_group {
    struct soq__kv_group_layout layout;
    soq_kv_group handle;
    struct soq__kv_pool pool;
    uint32_t max_blocks; /* of a sequence */
};

struct soq__kv_cache {
    struct soq__kv_budget budget;
    struct soq__kv_group groups[SOQ__KV_GROUPS_MAX];
    uint32_t n_groups;
    struct soq__kv_policy policy;
    uint32_t block_tokens, context, chunk; /* chunk: the most rows of one sequence in a step */
    uint32_t max_slots;
    struct soq__kv_seq **slots; /* [max_slots] NULL: free; not owned */
    /* What the next step must tell the backend. Kept until the step has succeeded. */
    struct soq_step_edit *edits;
    uint32_t n_edits, cap_edits;
    struct soq_step_copy *copies; /* each holds a reference to its source */
    uint32_t n_copies, cap_copies;
    struct soq_kv_range *ranges; /* [max_ranges] scratch for policies */
    uint32_t max_ranges;
    struct soq__kv_trace trace; /* set between steps by whoever wants to watch */
};

struct soq__kv_seq_group {
    soq_block_ref *table; /* [max_blocks], SOQ_BLOCK_NONE where nothing is */
    uint32_t n_held;      /* blocks in the table */
    uint32_t peak;        /* blocks that it was promised */
    uint32_t freed_to;    /* entries in [sinks, freed_to) are gone; 0: nothing is */
};

struct soq__kv_seq {
    struct soq__kv_cache *cache;
    uint32_t slot;
    uint32_t n_committed, n_tentative; /* entries; positions are equal to them */
    void *policy_state;                /* owned; NULL if the policy has none */
    struct soq__kv_seq_group groups[SOQ__KV_GROUPS_MAX];
};

struct soq__kv_cache_params {
    uint64_t limit;                                  /* bytes of all groups together */
    struct soq__kv_owner owners[SOQ__KV_GROUPS_MAX]; /* by group */
    const struct soq__kv_layout *layout;
    struct soq__kv_policy policy; /* self initialised; plan as described; not owned */
    uint32_t context, chunk, max_slots;
};

int soq__kv_cache_init(struct soq__kv_cache *cache, const struct soq__kv_cache_params *params, struct soq_error *err);
void soq__kv_cache_done(struct soq__kv_cache *cache);

/* Takes a slot; -SOQ_EBUSY if there is none. seq must stay where it is. */
int soq__kv_seq_init(struct soq__kv_seq *seq, struct soq__kv_cache *cache, struct soq_error *err);
void soq__kv_seq_done(struct soq__kv_seq *seq);

/* Promises room for entries [0, n_entries). -SOQ_EBUSY: not while others hold theirs; -SOQ_ELIMIT: never, with the size needed
 * and the setting to change. A promise replaces the sequence's earlier one. */
int soq__kv_reserve(struct soq__kv_seq *seq, uint32_t n_entries, struct soq_error *err);
/* Gives the promise back beyond what is held. */
void soq__kv_unreserve(struct soq__kv_seq *seq);

/* Blocks for n more rows, private to the sequence; the rows are tentative from now on. On failure nothing has changed but that
 * some blocks may be held already, until abandon(). */
int soq__kv_prepare(struct soq__kv_seq *seq, uint32_t n_rows, struct soq_error *err);
/* Forgets tentative rows and gives their blocks back (the step failed, or drafts were rejected before a commit). */
void soq__kv_abandon(struct soq__kv_seq *seq);
/* The first n of the tentative rows become part of the cache, the others are forgotten. */
int soq__kv_commit(struct soq__kv_seq *seq, uint32_t n_rows, bool end_of_prompt, struct soq_error *err);
/* Back to n entries; nothing tentative may be pending. -SOQ_EINVAL where entries that a row at n sees are already freed. */
int soq__kv_rollback(struct soq__kv_seq *seq, uint32_t n_entries, struct soq_error *err);
/* dst, fresh, becomes a copy of src; blocks are shared. */
int soq__kv_fork(struct soq__kv_seq *dst, const struct soq__kv_seq *src, struct soq_error *err);

/* The pending edits and copies reached the backend. */
void soq__kv_delivered(struct soq__kv_cache *cache);
/* Writes the segments of a sequence, tentative rows included, to out (room for `max`); returns their number, 0 if max is too
 * small. */
uint32_t soq__kv_segments(const struct soq__kv_seq *seq, struct soq_step_segment *out, uint32_t max);
/* The most segments a sequence can have. */
uint32_t soq__kv_max_segments(const struct soq__kv_cache *cache);

/* Bytes of the blocks that a sequence holds (shared ones count fully). */
uint64_t soq__kv_seq_bytes(const struct soq__kv_seq *seq);

#endif
