/* The KV cache: formats and groups, and the roles kv_policy (which entries stay) and kv_codec (how they are stored). Part of
 * the plugin ABI: include soquete/plugin.h. */
#ifndef SOQUETE_KV_H
#define SOQUETE_KV_H

#include "soquete/dtype.h"
#include "soquete/host.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- KV cache formats and groups --------------------------------------------------------------------------------- */

enum soq_kv_format_kind {
    SOQ_FORMAT_PLAIN = 1,    /* elements of dtype, token by token: a tile is [tokens][width] */
    SOQ_FORMAT_AFFINE = 2,   /* codes of `bits`; x = code * scale + minimum, symmetric: (code - 2^(bits - 1)) * scale */
    SOQ_FORMAT_CODEBOOK = 3, /* codes of `bits`; x = codebook[code] * scale */
    SOQ_FORMAT_OPAQUE = 4,   /* only the codec can decode it */
    SOQ_FORMAT_E4M3 = 5,     /* codes of 8 bits: sign, exponent of 4 bits and bias 7, mantissa of 3; x = that number * scale */
};

enum soq_kv_rotation {
    SOQ_ROTATION_NONE = 0,
    SOQ_ROTATION_HADAMARD = 1,       /* what is stored of a token's x is y = H x */
    SOQ_ROTATION_HADAMARD_SIGNS = 2, /* y = H (signs * x) */
};

/* How a codec stores one tile: block_tokens x width numbers of one (layer, head). A backend has fast kernels for the
 * descriptions it knows and decodes tiles through the codec for all others.
 *
 * Tiles of the kinds AFFINE, CODEBOOK and E4M3, T tokens x W dims, hold from byte 0 on:
 *  1. scale[W / group_dims][T / group_tokens] of `dtype` (both divisions round up), then the minima of an AFFINE tile that is
 *     not symmetric, in the same shape; then zeros up to a multiple of 8 bytes.
 *  2. The codes, unsigned, in quads along the axis that attention sums over: the *inner* axis of keys are the dims, of values
 *     the tokens; the other one is the outer. `bits` is a sum of powers of two, and each, from the largest down, has a plane of
 *     that many bits of every code, lowest bits first: 5 bits are a plane of 4 and one of 1. In a plane of b bits a byte holds
 *     8 / b codes: byte [i][o][j], i below ceil(inner / (32 / b)), o the outer index, j below 4, holds at its bits from s * b
 *     on the code of the inner index (i * 8 / b + s) * 4 + j. Codes beyond the inner axis are zeros.
 * H is the orthonormal Walsh-Hadamard transform in natural order, of blocks of rotation_dims dims: a power of two. It is its
 * own inverse, so a backend may rotate queries and outputs instead of keys and values. */
struct soq_kv_format {
    uint32_t struct_size;
    uint32_t kind;  /* enum soq_kv_format_kind */
    uint32_t dtype; /* PLAIN: of the elements; else of scales and minima: F16 or F32 */
    uint32_t bits;
    uint32_t group_tokens, group_dims; /* one scale per group_tokens x group_dims */
    uint32_t symmetric;
    uint32_t rotation;        /* enum soq_kv_rotation */
    uint32_t rotation_dims;   /* 0 without a rotation */
    uint32_t outliers;        /* kept exactly, per group; only the codec can decode them */
    uint32_t sketch_bits;     /* per element, of the residual; only the codec can decode it */
    uint32_t tail_dtype;      /* of the blocks that are not packed yet, which are always PLAIN */
    uint32_t grid_tokens;     /* blocks are packed at positions that are multiples of it; 0: [kv] says */
    uint32_t residual_tokens; /* that many entries before such a position stay plain */
    uint32_t codebook_size;
    uint32_t waived;       /* SOQ_CODEC_... of the codec's traits that do not hold for these tiles */
    const float *codebook; /* [codebook_size], or NULL; the instance's, as are the signs */
    const float *signs;    /* [width] of +1 and -1, or NULL */
    uint64_t tile_bytes;   /* of one full tile, a multiple of 8 */
};

enum soq_kv_plane_role {
    SOQ_PLANE_KEY = 1,
    SOQ_PLANE_VALUE = 2,
    SOQ_PLANE_LATENT = 3, /* MLA: K and V in one */
    SOQ_PLANE_INDEX = 4,  /* keys of an indexer */
};

/* One kind of data kept per entry. Tiles of a block lie in the order [plane][layer][head]. */
struct soq_kv_plane {
    uint32_t struct_size;
    uint32_t role;
    uint32_t heads, width;     /* heads x width numbers per layer and entry */
    uint32_t tokens_per_entry; /* 1; 4 or 128 where an entry stands for several tokens */
    int32_t alias;             /* index of the plane whose storage this one is a prefix of, -1: own storage */
    struct soq_kv_format format;
};

enum soq_kv_group_kind {
    SOQ_GROUP_FULL = 1,
    SOQ_GROUP_WINDOW = 2,
    SOQ_GROUP_LATENT = 3,
    SOQ_GROUP_INDEXED = 4,
    SOQ_GROUP_RECURRENT = 5
};

/* A codec that a backend may call for the tiles it has no kernel for. */
struct soq_kv_coder {
    uint32_t struct_size;
    uint32_t reserved;
    const struct soq_kv_codec_ops *ops;
    void *self;
};

/* Layers that share one block table. Blocks of class 0 take new entries; where the group packs, full blocks become blocks of
 * class 1 later, at a commit, and are never written again. */
struct soq_kv_group_desc {
    uint32_t struct_size;
    uint32_t index; /* the `group` of the step */
    uint32_t kind;
    uint32_t n_layers;
    uint32_t block_tokens; /* P, a power of two */
    uint32_t max_blocks;   /* per sequence: length of a table line */
    uint32_t n_planes, plane_stride;
    const struct soq_kv_plane *planes;
    uint64_t block_bytes; /* of class 0 */
    /* A group of the same planes and block_bytes whose slabs hold this one's blocks too: group_slab() is called for that one
     * only, which outlives this one. 0: none. So layers or heads with budgets of their own share one pool. */
    uint64_t storage;
    /* Blocks of class 1: the same planes in other formats, [n_planes]; NULL: the group does not pack. The layers and heads of
     * the group as tiles name them. Everything that is pointed to outlives the group. */
    const struct soq_kv_plane *packed;
    uint64_t packed_bytes;             /* of a block of class 1 */
    const struct soq_kv_coder *coders; /* [n_planes] of the packed planes */
    const uint32_t *layers;            /* [n_layers] numbers in the model */
    uint32_t first_head;               /* number in the model of the group's first kv head */
    uint32_t reserved;
};

/* ---- KV policy: which entries stay ------------------------------------------------------------------------------- */

/* The model's cache, as the policy may plan for it. */
struct soq_kv_shape {
    uint32_t struct_size;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim; /* heads of a layer: for a policy those that it rules */
    uint32_t context;                                 /* entries a sequence may have */
    uint32_t block_tokens;                            /* P */
    uint32_t model_window;                            /* the model's own sliding window, 0: none */
    uint32_t head_dim_v;
    uint32_t rope_kind, n_rot; /* enum soq_rope_kind; 0: the model does not rotate */
    float rope_mscale;         /* as in soq_rope_table_args */
    const float *inv_freq;     /* [n_rot / 2] */
    /* Of the model's file, whatever its name; for codecs only. Zeros: not known. */
    unsigned char fingerprint[16];
};

/* What a policy needs, soq_kv_plan.needs. */
enum soq_kv_need {
    SOQ_NEED_SELECTION = 1,     /* keeps sets that a window and sinks do not describe: select() is called */
    SOQ_NEED_MASS = 2,          /* with SELECTION: soq_kv_head.mass */
    SOQ_NEED_KEYS = 4,          /* with SELECTION: soq_kv_head.keys */
    SOQ_NEED_LAYER_BUDGETS = 8, /* layers may keep different numbers of entries */
    SOQ_NEED_HEAD_BUDGETS = 16, /* heads of a layer may, too */
};

struct soq_kv_plan {
    uint32_t struct_size;
    uint32_t needs;  /* SOQ_NEED_... */
    uint32_t window; /* rows of layers without a window of their own see the last `window`, themselves included; 0: all */
    uint32_t sinks;  /* and the first `sinks` */
    /* Positions by slot: rows stand directly behind what is kept, whatever lay between (StreamingLLM). Needs sinks; of a
     * selection the first `sinks` entries must be positions 0, 1, ... and the others one run up to the end. */
    uint32_t slot_positions;
    uint32_t grid;  /* on_commit is wanted every `grid` tokens; 0: every block_tokens */
    uint32_t every; /* with SELECTION: select() at positions that are multiples of it, beyond the prompt; 0: at its end only */
    /* With MASS: of the last `queries` rows before a selection (fewer where those before were not computed for it). 0: of all
     * rows so far, added up. */
    uint32_t queries;
    uint32_t no_prefix_hits, no_drafts; /* nonzero: cannot work with them */
};

/* Positions [first, last) stay. */
struct soq_kv_range {
    uint32_t first, last;
};

/* A commit on the grid. All layers and heads alike. */
struct soq_kv_commit {
    uint32_t struct_size;
    uint32_t n_positions;   /* tokens committed so far, this commit included */
    uint32_t end_of_prompt; /* nonzero: the prompt ends here */
    uint32_t max_ranges;    /* room in ranges */
};

/* The entries that one kv head of a layer holds, oldest first, and which of them stay. */
struct soq_kv_head {
    uint32_t n;                /* entries; the last is the newest token's */
    uint32_t n_keep;           /* out; in: n */
    const uint32_t *positions; /* [n] ascending */
    /* [n] with MASS: softmax probabilities added up over the rows (soq_kv_plan.queries) and the query heads of this kv head.
     * Sums of multiples of 2^-36 without rounding, so they do not depend on the order of summation. */
    const double *mass;
    const float *keys; /* [n][head_dim] with KEYS: as stored, after RoPE */
    uint32_t *keep;    /* out: [n_keep] indices below n, ascending; in: 0 ... n - 1 */
};

struct soq_kv_selection {
    uint32_t struct_size;
    uint32_t layer, n_layers;                /* of the model */
    uint32_t n_heads, head_dim, group_heads; /* kv heads that it rules; query heads of each */
    uint32_t n_positions;                    /* tokens committed so far */
    uint32_t end_of_prompt;                  /* nonzero: the prompt ends here */
    uint32_t n_prompt;                       /* tokens up to the end of the latest prompt */
    uint32_t n_queries;                      /* rows in `mass` */
    uint32_t head_stride;                    /* bytes from one head to the next */
    struct soq_kv_head *heads;               /* [n_heads] */
    void *scratch;                           /* as soq_kv_policy_ops.scratch says, uninitialised, 64-byte aligned */
};

/* Properties of the strategy itself, whatever its options: the compatibility table of `soquete plugins`. */
enum soq_kv_policy_trait {
    SOQ_POLICY_NO_CHUNKS = 1,      /* prompts cannot be computed in chunks */
    SOQ_POLICY_NO_PREFIX_HITS = 2, /* needs to see every row of a prompt: what another sequence computed does not serve */
    SOQ_POLICY_NO_DRAFTS = 4,
    SOQ_POLICY_NO_FORK = 8,
    SOQ_POLICY_NO_SAVE = 16, /* its sequences cannot be saved */
};

/* Memory that select() may use: fixed + per_entry * (heads of a layer) * (entries of a head) bytes. */
struct soq_kv_scratch {
    uint64_t fixed, per_entry;
};

struct soq_kv_policy_ops {
    uint32_t struct_size;
    uint32_t traits; /* SOQ_POLICY_... */
    size_t instance_size;
    /* Required. config is [kv.NAME]; no device, no thread: a policy is arithmetic on positions. */
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err);
    void (*shutdown)(void *self); /* optional */
    /* Required. Fills the plan for this model; refuses what cannot work (a budget below sinks + window). *plan_out is zeroed
     * but for struct_size and means "keep everything" as it comes. Called once per instance, before any commit. */
    int (*describe)(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err);
    /* Bytes of per-sequence state: plain data, zeroed at the start of a sequence, owned by the host, which copies it for forks
     * and swaps and restores it on rollback. */
    size_t state_size;
    /* Optional; without it everything stays. Called after a successful step for each grid point passed. Writes the positions
     * that stay as ascending disjoint ranges; only what the window and the sinks of the plan hide from later rows may go. Must
     * be a pure function of state and commit. */
    int (*on_commit)(void *self, void *state, const struct soq_kv_commit *commit, struct soq_kv_range *ranges,
                     uint32_t *n_ranges_out, struct soq_error *err);
    /* Required with SELECTION. Which entries of a layer stay. Called layer by layer, first to last, after the step that ended a
     * prompt or reached a multiple of `every`; never inside a prompt. All heads keep equally many entries, and all layers too,
     * unless the plan says otherwise. A pure function of state and selection. Afterwards the others' memory is free. */
    int (*select)(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err);
    struct soq_kv_scratch scratch; /* for select() */
    /* Required with SELECTION. The most entries that the kv heads of `layer` hold together after a selection at n_positions
     * tokens, n_prompt of them the prompt: for admission and forecasts. */
    uint64_t (*budget)(const void *self, uint32_t layer, uint32_t n_positions, uint32_t n_prompt);
};

/* ---- KV codec: how blocks are stored ----------------------------------------------------------------------------- */

/* One tile: block_tokens x width numbers of one layer and head. */
struct soq_kv_tile {
    uint32_t struct_size;
    uint32_t role;        /* enum soq_kv_plane_role */
    uint32_t layer, head; /* numbers in the model */
    uint32_t tokens, width;
    /* Of its first token; the others follow. Entries that were selected say UINT32_MAX. Holds for encode() only: a codec that
     * needs it in decode() stores it in the tile. */
    uint32_t first_position;
    uint32_t reserved;
};

enum soq_kv_codec_trait {
    SOQ_CODEC_NEEDS_POSITIONS = 1, /* of every tile: does not work with policies that select, but where a format waives it */
};

struct soq_kv_codec_ops {
    uint32_t struct_size;
    uint32_t traits; /* SOQ_CODEC_... */
    size_t instance_size;
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config,
                struct soq_error *err); /* required; [kv.NAME] */
    void (*shutdown)(void *self);       /* optional */
    /* Required. The format of tiles of that shape, whatever their layer, head and position; refuses shapes that it cannot store
     * (a Hadamard rotation of width 80). *format_out is zeroed but for struct_size. */
    int (*describe)(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err);
    /* Required. src and dst: f32 [tokens][width], row-major, and format.tile_bytes bytes. Keys come after RoPE. Any thread,
     * several at once; no allocation. What is not finite is stored as something finite, which the codec documents, by all kinds
     * of formats but PLAIN. */
    int (*encode)(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err);
    int (*decode)(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err);
    /* Optional. The model whose cache it is, before describe(); what shape points to outlives the instance. Codecs that were
     * calibrated for one model, or undo RoPE, refuse others here. */
    int (*prepare)(void *self, const struct soq_kv_shape *shape, struct soq_error *err);
};

#ifdef __cplusplus
}
#endif
#endif
