/* The plugin ABI of Soquete, major 0.
 *
 * A plugin is one shared object that exports exactly one symbol, the constant `soquete_plugin_v0`, and imports none from the
 * host: services come in struct soq_host. It fills one or more roles; each role is a table of functions below.
 *
 * Rules that hold everywhere (runtime/DESIGN.md gives the failure behind each):
 *  - Every struct begins with struct_size, set by whoever fills it; fields are appended only; a reader looks at no field beyond
 * the size it was given. Arrays of structs carry a stride. While the major is 0 layouts may change and minors must be equal.
 *  - A call returns 0 or -SOQ_E... and fills the caller's struct soq_error. No plugin prints, aborts, exits or throws.
 *  - Strings passed in either direction are copied by whoever keeps them. Who allocates frees.
 *  - Optional slots and tables are NULL; the host resolves the substitute once, at load. Each slot says required or optional.
 *  - Unless a slot says otherwise: it is called from one thread at a time per instance, any thread; it is synchronous.
 *  - `self` is the instance: `instance_size` zeroed bytes, aligned to 64, allocated and freed by the host.
 */
#ifndef SOQUETE_PLUGIN_H
#define SOQUETE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "soquete/dtype.h"
#include "soquete/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SOQ_ABI_MAJOR 0

/* ---- Roles ------------------------------------------------------------------------------------------------------------- */

/* X(name, value, text, minor). Reserved roles have minor 0: a plugin that claims one is refused by this host. */
#define SOQ_ROLES(X)                                                                                                           \
    X(SOQ_ROLE_BACKEND, 1, "backend", 1)                                                                                       \
    X(SOQ_ROLE_KV_POLICY, 2, "kv_policy", 1)                                                                                   \
    X(SOQ_ROLE_KV_CODEC, 3, "kv_codec", 1)                                                                                     \
    X(SOQ_ROLE_SAMPLER, 4, "sampler", 1)                                                                                       \
    X(SOQ_ROLE_KV_STORE, 5, "kv_store", 0)                                                                                     \
    X(SOQ_ROLE_DRAFTER, 6, "drafter", 0)                                                                                       \
    X(SOQ_ROLE_CONSTRAINT, 7, "constraint", 0)                                                                                 \
    X(SOQ_ROLE_SEARCH, 8, "search", 0)                                                                                         \
    X(SOQ_ROLE_COMM, 9, "comm", 0)

enum soq_role {
#define SOQ_ROLE_ENUM(name, value, text, minor) name = value,
    SOQ_ROLES(SOQ_ROLE_ENUM)
#undef SOQ_ROLE_ENUM
};

enum { SOQ_BACKEND_MINOR = 1, SOQ_KV_POLICY_MINOR = 1, SOQ_KV_CODEC_MINOR = 1, SOQ_SAMPLER_MINOR = 1 };

/* ---- Options: the typed configuration section of a plugin ------------------------------------------------------------------
 */

enum soq_option_type {
    SOQ_OPT_INT = 1,
    SOQ_OPT_FLOAT = 2,
    SOQ_OPT_BOOL = 3, /* on|off, true|false, yes|no, 1|0 */
    SOQ_OPT_STRING = 4,
    SOQ_OPT_ENUM = 5, /* one of choices */
    SOQ_OPT_SIZE = 6, /* bytes; suffixes KiB MiB GiB TiB, kB MB GB TB */
    SOQ_OPT_PATH = 7, /* relative to the file that sets it */
};

/* One key of [backend.NAME], [kv.NAME] or [decoding.NAME]. The INI parser, --help, the man page and `soquete plugins NAME` read
 * it. */
struct soq_option {
    uint32_t struct_size;
    uint32_t type; /* enum soq_option_type */
    const char *key;
    const char *default_value; /* as written in the INI */
    double min, max;           /* inclusive, for INT, FLOAT and SIZE; no limit where min > max */
    const char *choices;       /* "a|b|c" for ENUM, else NULL */
    const char *help;          /* one sentence */
};

/* The section's values, already checked against the option table. Asking for a key that is not in the table gives 0 or "".
 * Strings are valid until the call that received the soq_config returns. */
struct soq_config {
    uint32_t struct_size;
    uint32_t reserved;
    void *ctx;
    int64_t (*get_int)(void *ctx, const char *key); /* INT, SIZE, BOOL */
    double (*get_float)(void *ctx, const char *key);
    const char *(*get_string)(void *ctx, const char *key); /* STRING, ENUM, PATH */
};

/* ---- Host services
 * ----------------------------------------------------------------------------------------------------------- */

enum soq_log_level { SOQ_LOG_ERROR = 0, SOQ_LOG_WARN = 1, SOQ_LOG_INFO = 2, SOQ_LOG_DEBUG = 3 };

/* One thread of a parallel region. */
struct soq_worker {
    uint32_t struct_size;
    uint32_t index; /* 0 .. count - 1; 0 is the calling thread */
    uint32_t count;
    uint32_t reserved;
    void *region; /* the host's */
};

/* Valid from init until shutdown returns. Every function may be called from any thread unless it says otherwise. */
struct soq_host {
    uint32_t struct_size;
    uint32_t abi_major;
    void *ctx; /* first argument of every service */

    void (*log)(void *ctx, int level, const char *text);

    /* align: a power of two, at least 8. NULL when out of memory: the plugin then fails with SOQ_ENOMEM. free(NULL) is a no-op.
     */
    void *(*alloc)(void *ctx, size_t bytes, size_t align);
    void (*free)(void *ctx, void *p);

    /* CPUs that this process may use (affinity and cgroup quota). */
    uint32_t (*cpu_count)(void *ctx);

    /* Runs fn(arg, worker) on `threads` threads at once (the caller is one of them) and returns when all have returned. All of
     * them run concurrently, so they may wait for each other with barrier. Regions do not nest; two instances that ask at once
     * take turns. Between regions the threads sleep. Fails (nothing ran) with SOQ_ENOMEM or SOQ_ELIMIT. */
    int (*parallel)(void *ctx, uint32_t threads, void (*fn)(void *arg, const struct soq_worker *worker), void *arg);
    /* Waits until every thread of the region has arrived; full memory fence. Only inside a region. */
    void (*barrier)(void *ctx, const struct soq_worker *worker);

    /* Nonzero when the work in hand should stop: poll between ops, return SOQ_ECANCELLED from `end`. */
    int (*cancelled)(void *ctx);
};

/* ---- The step: everything that changes from one forward pass to the next
 * ------------------------------------------------------- */

/* Flat and pointer-free: one block of total_bytes that can be uploaded to fixed addresses or broadcast to other ranks. The
 * off_... fields are byte offsets from the start of the struct; each array is 8-byte aligned.
 *
 * Vocabulary: a *row* is one token to compute. A *sequence* owns a *slot* (its line in the backend's resident block tables). An
 * *entry* is a place in a sequence's cache; its block is table[slot][group][entry / block_tokens], its place in the block entry
 * % block_tokens. The *position* is the token's logical position (RoPE, masks). Entries and positions coincide until something
 * is evicted. */
struct soq_step {
    uint32_t struct_size;
    uint32_t total_bytes;
    uint64_t serial; /* 1, 2, ... */
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
    uint32_t entry; /* where K and V of this row go */
    uint32_t seq;   /* index into seqs */
    int32_t parent; /* row whose continuation this is; -1: the end of the committed cache. Trees of drafts share a parent */
    uint32_t flags; /* SOQ_ROW_... */
    uint32_t reserved;
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
    int32_t position_offset; /* position of entry e is e + position_offset */
    uint32_t reserved;
};

enum {
    SOQ_SEGMENT_POSITIONS = 1, /* positions come from the block's position plane instead (entries that survived an eviction) */
    SOQ_SEGMENT_ROTATE = 2,    /* keys lie at other positions than they were rotated to: rotate the query by -position_offset */
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

/* ---- Backend
 * ------------------------------------------------------------------------------------------------------------------- */

/* Handles. A buffer handle in domain "host" is the address (uintptr_t), in "cuda" and "hip" the device address, in "opencl" the
 * cl_mem; so a plugin may bring one table for another plugin's domain. 0 is no buffer, no weight. */
typedef uint64_t soq_buffer;
typedef uint64_t soq_weight;
typedef uint64_t soq_kv_group;

/* A matrix in a buffer: element (r, c) at offset + (r * row_stride + c) * sizeof element. Always SOQ_DTYPE_F32 unless a slot
 * says otherwise. Rows are the step's rows (or its outputs); the host never passes more rows than max_rows. */
struct soq_view {
    soq_buffer buffer;
    uint64_t offset; /* bytes */
    uint32_t rows, cols;
    uint32_t row_stride; /* elements */
    uint32_t dtype;
};

struct soq_device {
    uint32_t struct_size;
    uint32_t index;
    char name[128];
    char id[64];                        /* PCI address or UUID; "" on the host */
    uint64_t memory_total, memory_free; /* bytes, 0 unknown */
};

/* Limits of the instance, known at load. */
struct soq_backend_params {
    uint32_t struct_size;
    uint32_t device;    /* index from devices() */
    uint32_t max_rows;  /* rows of a step */
    uint32_t max_slots; /* sequences with a table */
};

/* Ops, for supports() and for labels. X(name, value, text) */
#define SOQ_OPS(X)                                                                                                             \
    X(SOQ_OP_MATMUL, 1, "matmul")                                                                                              \
    X(SOQ_OP_EMBED, 2, "embed")                                                                                                \
    X(SOQ_OP_NORM, 3, "norm")                                                                                                  \
    X(SOQ_OP_ROPE_TABLE, 4, "rope_table")                                                                                      \
    X(SOQ_OP_ROPE, 5, "rope")                                                                                                  \
    X(SOQ_OP_ACTIVATION, 6, "activation")                                                                                      \
    X(SOQ_OP_ADD, 7, "add")                                                                                                    \
    X(SOQ_OP_SCALE, 8, "scale")                                                                                                \
    X(SOQ_OP_GATHER, 9, "gather")                                                                                              \
    X(SOQ_OP_ATTENTION, 10, "attention")                                                                                       \
    X(SOQ_OP_KV_APPEND, 11, "kv_append")

enum soq_op {
#define SOQ_OP_ENUM(name, value, text) name = value,
    SOQ_OPS(SOQ_OP_ENUM)
#undef SOQ_OP_ENUM
};

/* What the host is about to use, asked once at load; nothing is discovered in mid-step. */
struct soq_op_desc {
    uint32_t struct_size;
    uint32_t op;                                          /* enum soq_op */
    uint32_t weight_dtype;                                /* MATMUL, EMBED */
    uint32_t kind;                                        /* NORM, ACTIVATION, ROPE: the kind below */
    uint32_t rows, cols;                                  /* MATMUL: outputs x inputs of the weight */
    uint32_t head_dim_k, head_dim_v, n_heads, n_kv_heads; /* ATTENTION, KV_APPEND, ROPE */
    uint32_t key_format, value_format;                    /* ATTENTION, KV_APPEND: soq_kv_format.kind */
    uint32_t key_dtype, value_dtype;                      /* their dtype */
    uint32_t flags;                                       /* SOQ_OPDESC_... */
};

enum {
    SOQ_OPDESC_TREE = 1,    /* steps that are not SOQ_STEP_LINEAR */
    SOQ_OPDESC_SOFTCAP = 2, /* attention with a softcap */
    SOQ_OPDESC_WINDOW = 4,
    SOQ_OPDESC_MASS = 8,
    SOQ_OPDESC_SEGMENTS = 16, /* more than one segment, positions or rotation */
};

enum soq_weight_use {
    SOQ_USE_MATMUL = 1,
    SOQ_USE_EMBED = 2,  /* rows are looked up; with MATMUL: a tied embedding, which must not be held twice */
    SOQ_USE_VECTOR = 4, /* norm weight, bias: one row of F32 */
};

struct soq_weight_desc {
    uint32_t struct_size;
    uint32_t dtype; /* of data, GGUF block layout, row by row */
    const char *name;
    const void *data; /* host memory, valid until weight_free or, unless SOQ_WEIGHT_KEEPS_SOURCE, until the call returns */
    uint64_t bytes;
    uint32_t rows, cols;                  /* outputs x inputs: y = W x; a vector has rows = 1 */
    uint32_t uses;                        /* SOQ_USE_... */
    uint32_t may_repack;                  /* 0: keep the source as it is */
    uint32_t shard, n_shards, shard_axis; /* 0, 1, 0 when not sharded; axis 0 rows, 1 cols */
    uint32_t reserved;
};

enum { SOQ_WEIGHT_KEEPS_SOURCE = 1 };

struct soq_weight_info {
    uint32_t struct_size;
    uint32_t flags; /* SOQ_WEIGHT_... */
    soq_weight weight;
    uint64_t bytes; /* held by the backend beside the source */
};

/* Where numbers live. Optional as a whole: a plugin without it brings tables for another plugin's domain. */
struct soq_memory_ops {
    uint32_t struct_size;
    uint32_t reserved;
    /* Required. 64-byte aligned or better; contents undefined. Never called during a step. */
    int (*buffer_alloc)(void *self, uint64_t bytes, soq_buffer *buffer_out, struct soq_error *err);
    void (*buffer_free)(void *self, soq_buffer buffer);
    /* Required. Synchronous, outside begin/end. */
    int (*buffer_write)(void *self, soq_buffer dst, uint64_t offset, const void *src, uint64_t bytes, struct soq_error *err);
    int (*buffer_read)(void *self, soq_buffer src, uint64_t offset, void *dst, uint64_t bytes, struct soq_error *err);
    /* Required. Takes over a tensor for the given uses; may repack. Called tensor by tensor at load so that sources can be
     * released. */
    int (*weight_prepare)(void *self, const struct soq_weight_desc *desc, struct soq_weight_info *info_out,
                          struct soq_error *err);
    void (*weight_free)(void *self, soq_weight weight);
};

/* Op arguments are copied at submit: handles, shapes and offsets only. */

/* y[r, n] = sum over k of W[n, k] x[r, k] (+ y[r, n] before when accumulate). x and y do not overlap. The result of a row does
 * not depend on the number of rows when the backend is SOQ_BACKEND_BATCH_INVARIANT. */
struct soq_matmul_args {
    uint32_t struct_size;
    uint32_t accumulate;
    soq_weight weight;
    soq_weight bias; /* vector, 0: none */
    struct soq_view x, y;
};

struct soq_matmul_ops {
    uint32_t struct_size;
    uint32_t reserved;
    int (*matmul)(void *self, const struct soq_matmul_args *args); /* required */
};

/* y[r] = scale * W[token of row r] */
struct soq_embed_args {
    uint32_t struct_size;
    float scale;
    soq_weight weight;
    struct soq_view y;
};

enum soq_norm_kind { SOQ_NORM_RMS = 1, SOQ_NORM_LAYER = 2 };

/* Normalises each run of `width` columns on its own (width = cols for a layer norm, the head size for qk-norm). x may be y. */
struct soq_norm_args {
    uint32_t struct_size;
    uint32_t kind;
    uint32_t width;
    float eps;
    soq_weight weight; /* vector [width] */
    soq_weight bias;   /* vector, 0: none */
    struct soq_view x, y;
};

/* table[r, 2i] = mscale * cos(a), table[r, 2i + 1] = mscale * sin(a), a = position of row r * inv_freq[i]; i < n_rot / 2.
 * Scaling (linear, llama3, YaRN, longrope) is already in inv_freq and mscale: the host computes it once. */
struct soq_rope_table_args {
    uint32_t struct_size;
    float mscale;
    struct soq_view inv_freq; /* 1 x n_rot / 2 */
    struct soq_view table;    /* rows x n_rot */
};

enum soq_rope_kind { SOQ_ROPE_INTERLEAVED = 1 /* pairs (2i, 2i + 1) */, SOQ_ROPE_HALF = 2 /* pairs (i, i + n_rot / 2) */ };

/* Rotates the first n_rot elements of every head in place. */
struct soq_rope_args {
    uint32_t struct_size;
    uint32_t kind;
    uint32_t n_heads, head_dim;
    struct soq_view x, table; /* n_rot = table.cols */
};

enum soq_activation_kind { SOQ_ACT_SILU = 1, SOQ_ACT_GELU_TANH = 2, SOQ_ACT_GELU_ERF = 3, SOQ_ACT_RELU = 4 };

/* y = act(gate) * up; without up (buffer 0) y = act(gate). y may be gate. */
struct soq_activation_args {
    uint32_t struct_size;
    uint32_t kind;
    struct soq_view gate, up, y;
};

/* y = a + b; y may be a or b */
struct soq_add_args {
    uint32_t struct_size;
    uint32_t reserved;
    struct soq_view a, b, y;
};

/* x = x * scale, then cap * tanh(x / cap) where cap > 0 */
struct soq_scale_args {
    uint32_t struct_size;
    float scale, cap;
    uint32_t reserved;
    struct soq_view x;
};

/* y[i] = x[outputs[i]] */
struct soq_gather_args {
    uint32_t struct_size;
    uint32_t reserved;
    struct soq_view x, y;
};

/* Every slot optional. */
struct soq_elementwise_ops {
    uint32_t struct_size;
    uint32_t reserved;
    int (*embed)(void *self, const struct soq_embed_args *args);
    int (*norm)(void *self, const struct soq_norm_args *args);
    int (*rope_table)(void *self, const struct soq_rope_table_args *args);
    int (*rope)(void *self, const struct soq_rope_args *args);
    int (*activation)(void *self, const struct soq_activation_args *args);
    int (*add)(void *self, const struct soq_add_args *args);
    int (*scale)(void *self, const struct soq_scale_args *args);
    int (*gather)(void *self, const struct soq_gather_args *args);
};

/* ---- KV cache formats and groups
 * ------------------------------------------------------------------------------------------------- */

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
    SOQ_PLANE_LATENT = 3,   /* MLA: K and V in one */
    SOQ_PLANE_INDEX = 4,    /* keys of an indexer */
    SOQ_PLANE_POSITION = 5, /* int32 per head and entry, after an eviction */
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
};

/* K and V (f32, heads x head_dim per row) of every row go to the row's entry, converted to the planes' formats. Before RoPE
 * where the format says pre_rope, else after. */
struct soq_kv_append_args {
    uint32_t struct_size;
    uint32_t layer; /* within the group */
    soq_kv_group group;
    struct soq_view k, v;
};

/* out[r, h] = softmax over visible entries e of (scale * q[r, h] . k[e, h / R]) applied to v[e, h / R]. Accumulates in f32;
 * softcap before the mask; a row that sees nothing gives zeros. Entry at position p is visible to a row at position q when p <=
 * q and (window == 0 or p > q - window or p < sinks), within the step's segments. */
struct soq_attention_args {
    uint32_t struct_size;
    uint32_t layer; /* within the group */
    soq_kv_group group;
    uint32_t n_heads, n_kv_heads, head_dim_k, head_dim_v;
    float scale;
    float softcap;            /* cap * tanh(s / cap) on scores, 0: none */
    uint32_t window;          /* entries a row sees, itself included; 0: all */
    uint32_t sinks;           /* first positions that stay visible beside a window */
    soq_weight sink_logits;   /* vector [n_heads]: an extra logit per head that takes mass and gives nothing; 0: none */
    struct soq_view inv_freq; /* for SOQ_SEGMENT_ROTATE and pre_rope formats; buffer 0: none */
    uint32_t rope_kind, n_rot;
    struct soq_view q, out;
    struct soq_view mass; /* probability mass per entry, added up over the rows; buffer 0: not wanted */
};

struct soq_attention_ops {
    uint32_t struct_size;
    uint32_t reserved;
    /* Required. Creates the resident table [max_slots][max_blocks], all SOQ_BLOCK_NONE. desc is copied. */
    int (*group_create)(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *group_out, struct soq_error *err);
    void (*group_free)(void *self, soq_kv_group group);
    /* Required. Blocks [first_block, first_block + n_blocks) of a class lie in `slab` from byte 0, each block_bytes long; slab
     * 0 takes them back. Called between steps. */
    int (*group_slab)(void *self, soq_kv_group group, uint32_t block_class, uint32_t first_block, uint32_t n_blocks,
                      soq_buffer slab, struct soq_error *err);
    int (*kv_append)(void *self, const struct soq_kv_append_args *args); /* required */
    int (*attention)(void *self, const struct soq_attention_args *args); /* required */
};

enum {
    SOQ_BACKEND_BATCH_INVARIANT = 1, /* a row's result does not depend on the other rows of the step */
};

struct soq_backend_ops {
    uint32_t struct_size;
    uint32_t flags;       /* SOQ_BACKEND_... */
    const char *domain;   /* "host", "cuda", "hip", "opencl", a vendor's */
    size_t instance_size; /* bytes of self */

    /* Required. Lists the devices without keeping anything open; at most `capacity` are written, *count_out is how many exist.
     * None: 0 devices and a reason in err, with return value -SOQ_ENOTFOUND. */
    int (*devices)(const struct soq_host *host, const struct soq_config *config, struct soq_device *devices, uint32_t stride,
                   uint32_t capacity, uint32_t *count_out, struct soq_error *err);
    /* Required. config is the section [backend.NAME]. A failed init leaves nothing behind. */
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config,
                const struct soq_backend_params *params, struct soq_error *err);
    void (*shutdown)(void *self); /* required; everything made from self was freed before */

    /* Required. 0 when the op can run exactly as described, else -SOQ_EUNSUPPORTED and why. */
    int (*supports)(void *self, const struct soq_op_desc *desc, struct soq_error *why);

    /* Required. begin takes over the step (uploads it, applies edits and copies); ops follow, which may run at once or be
     * recorded; end returns when all results can be read. The first failure is sticky: later ops of the step do nothing and
     * return its code, end returns it with the op's label in the message. After a failed step the KV entries of its rows are
     * undefined and the host does not commit them. */
    int (*begin)(void *self, const struct soq_step *step, struct soq_error *err);
    int (*end)(void *self, struct soq_error *err);

    const struct soq_memory_ops *memory;           /* optional, with matmul it makes a backend */
    const struct soq_matmul_ops *matmul;           /* optional */
    const struct soq_attention_ops *attention;     /* optional */
    const struct soq_elementwise_ops *elementwise; /* optional */
};

/* ---- KV policy: which entries stay
 * ---------------------------------------------------------------------------------------------- */

/* The model's cache, as the policy may plan for it. */
struct soq_kv_shape {
    uint32_t struct_size;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t context;      /* entries a sequence may have */
    uint32_t block_tokens; /* P */
    uint32_t model_window; /* the model's own sliding window, 0: none */
};

enum soq_kv_need {
    SOQ_NEED_MASS = 1,         /* attention mass per entry */
    SOQ_NEED_LAST_QUERIES = 2, /* the last `queries` queries */
    SOQ_NEED_PRE_ROPE_KEYS = 4,
    SOQ_NEED_CROSS_HEAD = 8, /* budgets differ between heads */
    SOQ_NEED_SELECTION = 16, /* keeps sets that are not sinks + window: survivors are copied together */
};

struct soq_kv_plan {
    uint32_t struct_size;
    uint32_t needs;                     /* SOQ_NEED_... */
    uint32_t window;                    /* a row sees the last `window` positions, itself included; 0: all */
    uint32_t sinks;                     /* and the first `sinks` */
    uint32_t grid;                      /* on_commit is wanted every `grid` tokens; 0: every block_tokens */
    uint32_t queries;                   /* for SOQ_NEED_LAST_QUERIES */
    uint32_t no_prefix_hits, no_drafts; /* nonzero: cannot work with them */
    uint64_t
        peak_entries; /* the most entries a sequence of `context` tokens holds per layer and head, for admission; 0: context */
};

/* Positions [first, last) stay. */
struct soq_kv_range {
    uint32_t first, last;
};

/* A commit on the grid. All layers and heads alike unless the plan says SOQ_NEED_CROSS_HEAD. */
struct soq_kv_commit {
    uint32_t struct_size;
    uint32_t n_positions;   /* tokens committed so far, this commit included */
    uint32_t end_of_prompt; /* nonzero: the prompt ends here */
    uint32_t max_ranges;    /* room in ranges */
    const float *mass;      /* [layer][kv_head][position], or NULL */
};

struct soq_kv_policy_ops {
    uint32_t struct_size;
    uint32_t reserved;
    size_t instance_size;
    /* Required. config is [kv.NAME]; no device, no thread: a policy is arithmetic on positions. */
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err);
    void (*shutdown)(void *self); /* optional */
    /* Required. Fills the plan for this model; refuses what cannot work (a budget below sinks + window). *plan_out is zeroed
     * but for struct_size and means "keep everything" as it comes. */
    int (*describe)(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err);
    /* Bytes of per-sequence state: plain data, zeroed at the start of a sequence, owned by the host, which copies it for forks
     * and swaps and restores it on rollback. */
    size_t state_size;
    /* Optional; without it everything stays. Called after a successful step for each grid point passed. Writes the positions
     * that stay as ascending disjoint ranges; what no later row can see may go. Must be a pure function of state and commit. */
    int (*on_commit)(void *self, void *state, const struct soq_kv_commit *commit, struct soq_kv_range *ranges,
                     uint32_t *n_ranges_out, struct soq_error *err);
};

/* ---- KV codec: how blocks are stored
 * ----------------------------------------------------------------------------------------------- */

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
    /* Required. The format of tiles of that shape; refuses shapes that it cannot store (a Hadamard rotation of width 80). */
    int (*describe)(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err);
    /* Required. src and dst: f32 [tokens][width], row-major, and format.tile_bytes bytes. Any thread, several at once; no
     * allocation. */
    int (*encode)(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err);
    int (*decode)(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err);
};

/* ---- Sampler: logits to a token
 * ---------------------------------------------------------------------------------------------------- */

struct soq_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY bans the token */
};

/* What a request asks for; the host has checked nothing but struct_size. */
struct soq_sampling {
    uint32_t struct_size;
    int32_t top_k;           /* <= 0: off */
    float temperature;       /* 0: greedy */
    float top_p;             /* 1: off */
    float min_p;             /* 0: off */
    float repeat_penalty;    /* 1: off */
    float presence_penalty;  /* 0: off */
    float frequency_penalty; /* 0: off */
    int32_t repeat_last_n;   /* tokens of history that penalties look at; 0: none, -1: all */
    uint64_t seed;
    uint32_t n_bias, bias_stride;
    const struct soq_logit_bias *bias; /* valid during the sequence */
};

struct soq_sampler_row {
    uint32_t struct_size;
    uint32_t n_vocab;
    float *logits;          /* [n_vocab], scratch that the sampler may overwrite */
    uint32_t *scratch;      /* [n_vocab], for indices */
    const uint32_t *mask;   /* bit per token that is allowed, or NULL */
    const int32_t *history; /* tokens so far, prompt included */
    uint32_t n_history;
    uint32_t position; /* of the token to be sampled: random numbers are a function of (seed, position) */
};

struct soq_sampled {
    uint32_t struct_size;
    int32_t token;
    float logprob; /* natural log of the token's probability under the model: softmax of the logits as they came, no temperature
                    */
    uint32_t n_candidates; /* that were left to draw from */
};

struct soq_sampler_ops {
    uint32_t struct_size;
    uint32_t reserved;
    size_t instance_size;
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config,
                struct soq_error *err); /* required; [decoding.NAME] */
    void (*shutdown)(void *self);       /* optional */
    /* Required. Fills the defaults of the section; the request's own values are laid over them by the host. */
    int (*defaults)(void *self, struct soq_sampling *sampling_out, struct soq_error *err);
    /* Required. Refuses values out of range, naming the parameter. */
    int (*check)(void *self, const struct soq_sampling *sampling, uint32_t n_vocab, struct soq_error *err);
    size_t state_size; /* per sequence, as for policies; 0 when the sampler is a pure function */
    /* Required. Any thread, several at once (different rows); no allocation. All candidates masked or NaN logits: SOQ_EINVAL.
     */
    int (*sample)(void *self, void *state, const struct soq_sampling *sampling, const struct soq_sampler_row *row,
                  struct soq_sampled *sampled_out, struct soq_error *err);
};

/* ---- The descriptor
 * ------------------------------------------------------------------------------------------------------------------- */

struct soq_role_entry {
    uint32_t struct_size;
    uint32_t role;      /* enum soq_role */
    uint32_t minor;     /* of the role, as built: SOQ_..._MINOR */
    uint32_t min_minor; /* oldest host minor it works with */
    const void *ops;    /* struct soq_<role>_ops */
    const struct soq_option *options;
    uint32_t n_options, option_stride;
};

struct soq_plugin {
    uint32_t struct_size;
    uint32_t abi_major;
    const char *name;    /* as in the manifest and the configuration */
    const char *variant; /* "" or as in the manifest */
    const char *version;
    const char *summary; /* one line */
    const char *licence; /* SPDX */
    uint32_t n_roles, role_stride;
    const struct soq_role_entry *roles;
};

#define SOQ_PLUGIN_SYMBOL "soquete_plugin_v0"
extern __attribute__((visibility("default"))) const struct soq_plugin soquete_plugin_v0;

#ifdef __cplusplus
}
#endif
#endif
