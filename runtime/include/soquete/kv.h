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
    SOQ_FORMAT_AFFINE = 2,   /* codes of `bits`, scale (and minimum) per group */
    SOQ_FORMAT_CODEBOOK = 3, /* codes of `bits` into a table, scale per group */
    SOQ_FORMAT_OPAQUE = 4,   /* only the codec can decode it */
};

/* How a codec stores one tile: block_tokens x width numbers of one (layer, head). A backend has fast kernels for the
 * descriptions it knows and decodes tiles through the codec for all others. */
struct soq_kv_format {
    uint32_t struct_size;
    uint32_t kind;  /* enum soq_kv_format_kind */
    uint32_t dtype; /* PLAIN: of the elements; else of scales */
    uint32_t bits;
    uint32_t group_tokens, group_dims; /* one scale per group_tokens x group_dims */
    uint32_t symmetric;
    uint32_t rotation;    /* 0 none, 1 Hadamard, 2 Hadamard with signs */
    uint32_t outliers;    /* kept exactly, per group */
    uint32_t sketch_bits; /* per element, of the residual */
    uint32_t pre_rope;    /* keys are stored before RoPE */
    uint32_t tail_dtype;  /* of the open block at the end of a sequence, which is always PLAIN */
    uint32_t codebook_size;
    const float *codebook; /* static storage of the plugin, or NULL */
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

/* Layers that share one block table. */
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
};

/* ---- KV policy: which entries stay ------------------------------------------------------------------------------- */

/* The model's cache, as the policy may plan for it. */
struct soq_kv_shape {
    uint32_t struct_size;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t context;      /* entries a sequence may have */
    uint32_t block_tokens; /* P */
    uint32_t model_window; /* the model's own sliding window, 0: none */
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
    uint32_t n_heads, head_dim, group_heads; /* kv heads; query heads of each */
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
    uint32_t role; /* enum soq_kv_plane_role */
    uint32_t layer, head;
    uint32_t tokens, width;
};

struct soq_kv_codec_ops {
    uint32_t struct_size;
    uint32_t reserved;
    size_t instance_size;
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config,
                struct soq_error *err); /* required; [kv.NAME] */
    void (*shutdown)(void *self);       /* optional */
    /* Required. The format of tiles of that shape; refuses shapes that it cannot store (a Hadamard rotation of width 80).
     * *format_out is zeroed but for struct_size. */
    int (*describe)(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err);
    /* Required. src and dst: f32 [tokens][width], row-major, and format.tile_bytes bytes. Any thread, several at once; no
     * allocation. */
    int (*encode)(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err);
    int (*decode)(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err);
};

#ifdef __cplusplus
}
#endif
#endif
