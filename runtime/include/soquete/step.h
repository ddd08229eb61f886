/* The step: everything that changes from one forward pass to the next. Part of the plugin ABI: include soquete/plugin.h. */
#ifndef SOQUETE_STEP_H
#define SOQUETE_STEP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flat and pointer-free: one block of total_bytes that can be uploaded to fixed addresses or broadcast to other ranks. The
 * off_... fields are byte offsets from the start of the struct; each array is 8-byte aligned.
 *
 * Vocabulary: a *row* is one token to compute. A *sequence* owns a *slot* (its line in the backend's resident block tables). An
 * *entry* is a place in a sequence's cache; its block is table[slot][group][entry / block_tokens], its place in the block entry
 * % block_tokens. The *position* is the token's logical position (RoPE, masks). New rows go to the entry of their position;
 * when entries are evicted the survivors move up to directly below the next row's, so that what a group holds is always one
 * range of entries that ends there. Edits, copies and segments of a group that an instance does not hold are another's: it
 * skips them. */
struct soq_step {
    uint32_t struct_size;
    uint32_t total_bytes;
    uint64_t serial; /* 1, 2, ...: another for each step, also for one that is tried again after a failure */
    uint32_t flags;  /* SOQ_STEP_... */
    uint32_t n_rows, n_seqs, n_segments, n_outputs, n_edits, n_copies;
    uint32_t off_rows;     /* struct soq_step_row [n_rows], grouped by sequence */
    uint32_t off_seqs;     /* struct soq_step_seq [n_seqs] */
    uint32_t off_segments; /* struct soq_step_segment [n_segments] */
    uint32_t off_outputs;  /* uint32_t [n_outputs]: rows whose logits are wanted, ascending */
    uint32_t off_edits;    /* struct soq_step_edit [n_edits], applied first, in order */
    uint32_t off_copies;   /* struct soq_step_copy [n_copies], done after the edits and before any op */
    uint32_t reserved;
};

enum {
    SOQ_STEP_LINEAR = 1, /* every row's parent is the row before it (or the cache): masks are causal by entry */
};

struct soq_step_row {
    int32_t token;         /* id, or -1: take it from token_source */
    uint32_t token_source; /* index of a sampled id still on the device, when token is -1 */
    uint32_t position;
    uint32_t entry;     /* where K and V of this row go */
    uint32_t seq;       /* index into seqs */
    int32_t parent;     /* row whose continuation this is; -1: the end of the committed cache. Trees of drafts share a parent */
    uint32_t flags;     /* SOQ_ROW_... */
    uint32_t mass_line; /* 1 + the line of soq_attention_args.mass that the row's attention mass is added to; 0: none */
};

enum {
    SOQ_ROW_LOGITS = 1,  /* logits wanted: the row is in outputs */
    SOQ_ROW_LOGPROB = 2, /* log-probabilities wanted */
    SOQ_ROW_HIDDEN = 4,  /* final hidden state wanted */
    SOQ_ROW_PADDING = 8, /* computes nothing that anybody reads (fixed-size captured graphs) */
};

struct soq_step_seq {
    uint32_t slot;
    uint32_t n_cached; /* committed entries before this step */
    uint32_t first_row, n_rows;
    uint32_t first_segment, n_segments; /* one or more per group */
};

/* A range of entries that rows of the sequence may see. Row r sees entry e of a segment when e was committed or is r itself or
 * an ancestor of r (SOQ_STEP_LINEAR: e <= entry of r), and the masks in soq_attention_args allow its position. */
struct soq_step_segment {
    uint32_t group;                 /* index of the kv group */
    uint32_t flags;                 /* SOQ_SEGMENT_... */
    uint32_t first_layer, n_layers; /* layers of the group that it holds for; all: 0, the group's n_layers */
    uint32_t first_head, n_heads;   /* kv heads */
    uint32_t first_entry, n_entries;
    int32_t position_offset; /* position of entry e is e + position_offset, for masks */
    uint32_t rotation;       /* SOQ_SEGMENT_ROTATE: keys were rotated to positions that many below those they now stand for */
};

/* Positions by slot (StreamingLLM): stored keys are never touched, the query is rotated by minus the distance instead. */
enum {
    SOQ_SEGMENT_ROTATE = 1,  /* by -rotation */
    SOQ_SEGMENT_ROLLING = 2, /* row by row, by -max(0, position of the row + 1 - window - sinks) of soq_attention_args */
};

/* Block reference: class in the top 4 bits (a class is one size and one pair of formats), index within the class below. */
typedef uint32_t soq_block_ref;
#define SOQ_BLOCK_NONE UINT32_MAX
#define SOQ_BLOCK_CLASS_SHIFT 28
#define SOQ_BLOCK_INDEX_MASK 0x0fffffffu

/* table[slot][group][index] = block */
struct soq_step_edit {
    uint32_t slot, group, index;
    soq_block_ref block;
};

/* The first n_tokens entries of block src, all layers, heads and planes, are copied to dst (copy on write). */
struct soq_step_copy {
    uint32_t group;
    soq_block_ref dst, src;
    uint32_t n_tokens;
};

#ifdef __cplusplus
}
#endif
#endif
