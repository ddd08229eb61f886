/* The KV cache of a model: groups of layers and heads, a block table per sequence and group, commit and rollback.
 *
 * Vocabulary as in soquete/plugin.h. Rows are tentative from prepare() until commit(), which follows a successful step; freeing
 * behind a window and the policies' decisions happen only there, on the position grid. Blocks are shared between forks until
 * somebody writes: then the writer gets a copy. Freed blocks return to the pool at once.
 *
 * A row's entry is its position, always. After a selection the n_keep survivors of a group lie right-aligned, in entries [n -
 * n_keep, n) of fresh blocks, so what a group holds is one range that ends where the next row goes, masks stay causal by entry
 * and no position is kept on the device; the positions of survivors are known here.
 *
 * Where a group packs, a commit ends at a multiple of the layout's grid at the latest, and full blocks before it are then
 * encoded into packed ones (pack.c), which nothing writes again.
 *
 * Memory is promised in advance: reserve() admits a sequence only if everything it may still need fits beside what all others
 * were promised, so that no step runs out half way. Not thread-safe; called between steps only. */
#ifndef SOQ_KV_CACHE_H
#define SOQ_KV_CACHE_H

#include "kv/layout.h"
#include "kv/pool.h"
#include "kv/trace.h"
#include "plugin/load.h"

/* What selections did. */
struct soq__kv_stats {
    uint64_t evicted; /* entries, all layers and heads counted */
    uint64_t recoded; /* survivors of packed blocks, which are decoded and, now or later, encoded once more; likewise */
    uint64_t freed;   /* bytes of their blocks, as far as these went back to the pool */
    /* While somebody asks for it (soq__kv_trace), of the cache as a whole: squares of the numbers of survivors that were
     * packed, and of what that changed. */
    double survivors_squared, changes_squared;
};

/* Attention mass of a step, as soq_attention_args says, in the memory of the group's owner: [layer][line][head][stride]. */
struct soq__kv_mass {
    soq_buffer buffer; /* 0: none was needed yet */
    uint64_t bytes;
    uint64_t *host; /* what was read of the latest step; owned unless the buffer itself is host memory */
    bool is_read;
};

struct soq__kv_group {
    const struct soq__kv_group_layout *layout; /* not owned */
    soq_kv_group handle;
    struct soq__kv_owner owner;
    struct soq__kv_pool *pools[2]; /* of the cache, by class; packed ones NULL where it does not pack */
    uint32_t max_blocks;           /* of a sequence */
    bool selects, weighs;          /* its policy does */
    bool tells;                    /* attention over it tells the mass that policies want: in the full view that of both */
    struct soq__kv_mass mass;
};

/* Blocks of a group that are being packed; scratch, owned. */
struct soq__kv_packing {
    uint32_t n;
    uint32_t *lines; /* [n] of the table */
    soq_block_ref *src, *dst;
    uint32_t *skip, *first_position; /* as in soq_kv_pack_args */
};

struct soq__kv_cache {
    struct soq__kv_budget budget;
    struct soq__kv_budget swap;          /* memory of the host for blocks that are out */
    const struct soq__kv_layout *layout; /* not owned */
    struct soq__kv_group *groups;        /* [n_groups] owned */
    struct soq__kv_pool *pools;          /* [n_pools] owned */
    uint32_t n_groups, n_pools;
    struct soq__kv_policy policies[SOQ__KV_POLICIES_MAX];
    uint32_t n_policies;
    size_t state_size;                     /* of all policies, per sequence */
    uint32_t block_tokens, context, chunk; /* chunk: the most rows of one sequence in a step */
    uint32_t max_slots;
    struct soq__kv_seq **slots;       /* [max_slots] NULL: free; not owned */
    uint64_t n_sequences;             /* so far */
    uint32_t mass_lines, mass_stride; /* of the step in hand */
    /* What the next step must tell the backend. Kept until the step has succeeded. */
    struct soq_step_edit *edits;
    uint32_t n_edits, cap_edits;
    struct soq_step_copy *copies; /* each holds a reference to its source */
    uint32_t n_copies, cap_copies;
    struct soq_kv_range *ranges; /* [max_ranges] scratch for policies */
    uint32_t max_ranges;
    struct soq__kv_packing packing;       /* for max_blocks of a sequence, where anything packs */
    struct soq__kv_trace trace;           /* set between steps by whoever wants to watch */
    struct soq__kv_stats stats;           /* so far, of all sequences */
    uint64_t n_swapped_out, n_swapped_in; /* sequences so far */
};

struct soq__kv_seq_group {
    soq_block_ref *table; /* [max_blocks], SOQ_BLOCK_NONE where nothing is */
    uint32_t n_held;      /* blocks in the table */
    uint32_t n_packed;    /* of these, of class 1 */
    uint32_t freed_to;    /* behind a window: entries in [sinks, freed_to) are gone; 0: nothing is */
    uint32_t base;        /* after selections: entries below are gone */
    uint32_t n_selected; /* entries [base, n_selected) are survivors of the latest selection, later ones stand for themselves */
    uint32_t *positions; /* [n_layers][n_heads][n_selected - base] of survivors; owned; NULL: base is 0 */
    uint64_t *mass;      /* [n_layers][n_heads][mass_cap] added up so far, by entry; owned; NULL: nothing is */
    uint32_t mass_cap;
    uint32_t mass_from; /* the first row in the sums */
};

/* Blocks of one pool. */
struct soq__kv_seq_pool {
    uint32_t held;
    uint32_t peak;   /* that the sequence was promised; 0: nothing */
    uint32_t before; /* peak of the promise that reserve() is about to replace */
};

struct soq__kv_seq {
    struct soq__kv_cache *cache;
    uint64_t id;
    uint32_t slot;
    uint32_t n_committed, n_tentative; /* entries; positions of rows are equal to them */
    uint32_t n_prompt;                 /* tokens up to the end of the latest prompt */
    uint32_t n_promised;               /* entries that the promise is for */
    uint32_t first_line;               /* of attention mass, of the tentative rows */
    struct soq__kv_stats stats;        /* so far, forks not counted */
    void *policy_state;                /* of all policies; owned; NULL if none has any */
    struct soq__kv_seq_group *groups;  /* [n_groups] owned */
    struct soq__kv_seq_pool *pools;    /* [n_pools] owned */
    struct soq__kv_swapped *swapped;   /* its blocks, while they are out of the pool; owned; NULL: they are not */
};

struct soq__kv_cache_params {
    uint64_t limit;                        /* bytes of all groups together */
    uint64_t swap_limit;                   /* bytes of the host's memory for blocks that are out of the pools */
    const struct soq__kv_owner *owners;    /* by group_layout.owner */
    const struct soq__kv_layout *layout;   /* must outlive the cache */
    const struct soq__kv_policy *policies; /* [n_policies] selves initialised; plans as described; not owned */
    uint32_t n_policies;
    uint32_t context, chunk, max_slots;
};

int soq__kv_cache_init(struct soq__kv_cache *cache, const struct soq__kv_cache_params *params, struct soq_error *err);
void soq__kv_cache_done(struct soq__kv_cache *cache);

/* Takes a slot; -SOQ_EBUSY if there is none. seq must stay where it is. */
int soq__kv_seq_init(struct soq__kv_seq *seq, struct soq__kv_cache *cache, struct soq_error *err);
void soq__kv_seq_done(struct soq__kv_seq *seq);

/* Promises room for entries [0, n_entries), of which the first n_prompt are a prompt: after it, and every so often, policies
 * select. -SOQ_EBUSY: not while others hold theirs; -SOQ_ELIMIT: never, with the size needed and the setting to change. A
 * promise replaces the sequence's earlier one; after a selection it shrinks by itself. */
int soq__kv_reserve(struct soq__kv_seq *seq, uint32_t n_prompt, uint32_t n_entries, struct soq_error *err);
/* Gives the promise back beyond what is held. */
void soq__kv_unreserve(struct soq__kv_seq *seq);

/* Blocks for n more rows, private to the sequence; the rows are tentative from now on. On failure nothing has changed but that
 * some blocks may be held already, until abandon(). Rows do not cross the end of the prompt. */
int soq__kv_prepare(struct soq__kv_seq *seq, uint32_t n_rows, struct soq_error *err);
/* Forgets tentative rows and gives their blocks back (the step failed, or drafts were rejected before a commit). */
void soq__kv_abandon(struct soq__kv_seq *seq);
/* The first n of the tentative rows become part of the cache, the others are forgotten. Where the prompt ends, and at later
 * multiples of a plan's `every`, which commits must not cross, policies select; at multiples of the grid, which they do not
 * cross either, and after a selection blocks are packed. On failure nothing was committed; if the backend fails while it moves
 * or packs blocks the sequence is emptied. */
int soq__kv_commit(struct soq__kv_seq *seq, uint32_t n_rows, struct soq_error *err);
/* How many rows the next commit may have at most. */
uint32_t soq__kv_max_rows(const struct soq__kv_seq *seq);
/* Back to n entries; nothing tentative may be pending. -SOQ_EINVAL where entries that a row at n sees are already freed, or
 * packed though it should see them plain, or sums of attention mass cannot be undone. */
int soq__kv_rollback(struct soq__kv_seq *seq, uint32_t n_entries, struct soq_error *err);
/* The highest number of entries, n or less, that it can go back to: n, something below, or 0. */
uint32_t soq__kv_rollback_point(const struct soq__kv_seq *seq, uint32_t n);
/* dst, fresh, becomes a copy of src; blocks are shared. */
int soq__kv_fork(struct soq__kv_seq *dst, const struct soq__kv_seq *src, struct soq_error *err);

/* The pending edits and copies reached the backend. */
void soq__kv_delivered(struct soq__kv_cache *cache);
/* Writes the segments of a sequence up to entry `end`, the last tentative row of the step, to out (room for `max`); returns
 * their number, 0 if max is too small. */
uint32_t soq__kv_segments(const struct soq__kv_seq *seq, uint32_t end, struct soq_step_segment *out, uint32_t max);
/* The most segments a sequence can have. */
uint32_t soq__kv_max_segments(const struct soq__kv_cache *cache);

/* The mass_line of the i-th tentative row. Rows of a prompt that serve the same policies share a line, rows behind it have one
 * each, so that rejecting them is possible. *line: the step's next free line, counted from 0; moved on. Called for i = 0, 1,
 * ... in one go. */
uint32_t soq__kv_mass_line(struct soq__kv_seq *seq, uint32_t i, uint32_t *line);
/* Room for the masses of a step that uses n_lines lines and entries below n_entries. */
int soq__kv_mass_begin(struct soq__kv_cache *cache, uint32_t n_lines, uint32_t n_entries, struct soq_error *err);
/* Where the masses of a layer of a group begin in its buffer, in bytes. */
uint64_t soq__kv_mass_offset(const struct soq__kv_cache *cache, uint32_t group, uint32_t layer_in_group);

/* Bytes of the blocks that a sequence holds (shared ones count fully). */
uint64_t soq__kv_seq_bytes(const struct soq__kv_seq *seq);
/* Of these, those that a view reads; and those that only the lossy one needs. */
uint64_t soq__kv_view_bytes(const struct soq__kv_seq *seq, enum soq__kv_view view);
uint64_t soq__kv_draft_bytes(const struct soq__kv_seq *seq);
/* The position that entry e of a group stands for; e is held. */
uint32_t soq__kv_position(const struct soq__kv_seq *seq, uint32_t group, uint32_t layer_in_group, uint32_t head, uint32_t e);

#endif
