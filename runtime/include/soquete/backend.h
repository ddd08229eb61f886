/* The role backend: where numbers live and how they are computed. Part of the plugin ABI: include soquete/plugin.h. */
#ifndef SOQUETE_BACKEND_H
#define SOQUETE_BACKEND_H

#include "soquete/dtype.h"
#include "soquete/host.h"
#include "soquete/kv.h"
#include "soquete/step.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    X(SOQ_OP_KV_APPEND, 11, "kv_append")                                                                                       \
    X(SOQ_OP_KV_GATHER, 12, "kv_gather")                                                                                       \
    X(SOQ_OP_KV_PACK, 13, "kv_pack")

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
    uint32_t head_dim_k, head_dim_v, n_heads, n_kv_heads; /* ATTENTION, KV_APPEND, KV_GATHER, ROPE */
    uint32_t key_format, value_format;                    /* ATTENTION, KV_APPEND, KV_GATHER: soq_kv_format.kind */
    uint32_t key_dtype, value_dtype;                      /* their dtype */
    uint32_t flags;                                       /* SOQ_OPDESC_... */
    /* ATTENTION, KV_GATHER, KV_PACK: formats of packed blocks; NULL: there are none. OPAQUE ones and those that the backend has
     * no kernel for are decoded by the group's coders. */
    const struct soq_kv_format *packed_key, *packed_value;
};

enum {
    SOQ_OPDESC_TREE = 1,    /* steps that are not SOQ_STEP_LINEAR */
    SOQ_OPDESC_SOFTCAP = 2, /* attention with a softcap */
    SOQ_OPDESC_WINDOW = 4,
    SOQ_OPDESC_MASS = 8,
    SOQ_OPDESC_SEGMENTS = 16, /* more than one segment per group: sinks beside a window */
    SOQ_OPDESC_ROTATE = 32,   /* segments with SOQ_SEGMENT_ROTATE or SOQ_SEGMENT_ROLLING */
};

enum soq_weight_use {
    SOQ_USE_MATMUL = 1,
    SOQ_USE_EMBED = 2,  /* rows are looked up; with MATMUL: a tied embedding, which must not be held twice */
    SOQ_USE_VECTOR = 4, /* norm weight, bias: one row of F32 */
};

enum soq_weight_repack {
    SOQ_REPACK_ALLOWED = 1,
    SOQ_REPACK_DROPS = 2, /* data is a mapped file: pages that were read may go, by MADV_DONTNEED, before all are read */
};

struct soq_weight_desc {
    uint32_t struct_size;
    uint32_t dtype; /* of data, GGUF block layout, row by row */
    const char *name;
    const void *data; /* host memory, valid until weight_free or, unless SOQ_WEIGHT_KEEPS_SOURCE, until the call returns */
    uint64_t bytes;
    uint32_t rows, cols;                  /* outputs x inputs: y = W x; a vector has rows = 1 */
    uint32_t uses;                        /* SOQ_USE_... */
    uint32_t may_repack;                  /* SOQ_REPACK_...; 0: keep the source as it is */
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

/* K and V (f32, heads x head_dim per row, K after RoPE) of every row go to the row's entry, converted to the planes' formats.
 */
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
    struct soq_view inv_freq; /* for rotated segments; buffer 0: none */
    uint32_t rope_kind, n_rot;
    struct soq_view q, out;
    /* Attention mass, buffer 0: not wanted. For each line m that a row's mass_line names, each kv head h and each entry e of
     * the segments of that row's sequence, the uint64_t number (m * n_kv_heads + h) * mass_stride + e from mass_offset on
     * (bytes) becomes the sum, over this step's rows of the line and the query heads of h, of the probability of e in units of
     * 1 / SOQ_MASS_ONE: each rounded to a whole unit, 0 where the row does not see e. Integers, so that no order of summation
     * shows. Rows of a line belong to one sequence. */
    soq_buffer mass;
    uint64_t mass_offset;
    uint32_t mass_stride;
    uint32_t reserved;
};

#define SOQ_MASS_ONE ((uint64_t)1 << 36)

/* Copies entries together, all planes: for layer l and kv head h of the group, entry keep[l][h][i] of the blocks `src` becomes
 * entry dst_first + i of the blocks `dst`. No block is in both. Blocks of class 1 are decoded; dst are of class 0. The arrays
 * are host memory, read before the call returns. */
struct soq_kv_gather_args {
    uint32_t struct_size;
    uint32_t n_keep; /* per layer and head */
    soq_kv_group group;
    const soq_block_ref *src, *dst; /* [n_src], [n_dst]; entry e lies in block e / block_tokens of its list */
    uint32_t n_src, n_dst;
    uint32_t dst_first;
    uint32_t reserved;
    const uint32_t *keep; /* [n_layers][n_kv_heads][n_keep], each line ascending */
};

/* Encodes full blocks, all planes, layers and heads: block src[i], of class 0, becomes block dst[i], of class 1. Entries below
 * skip[i] of a block hold nothing: the first one behind them is encoded in their place. first_position[i] is for the tiles, see
 * there. The arrays are host memory, read before the call returns. */
struct soq_kv_pack_args {
    uint32_t struct_size;
    uint32_t n;
    soq_kv_group group;
    const soq_block_ref *src, *dst; /* [n] */
    const uint32_t *skip;           /* [n] below block_tokens */
    const uint32_t *first_position; /* [n] */
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
    /* Optional; without it nothing can be evicted by selection. Between steps; when it returns the copies are done, and all
     * that earlier steps wrote was seen. */
    int (*kv_gather)(void *self, const struct soq_kv_gather_args *args, struct soq_error *err);
    /* Optional; without it only PLAIN codecs can be used. As kv_gather: between steps, done when it returns. */
    int (*kv_pack)(void *self, const struct soq_kv_pack_args *args, struct soq_error *err);
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

    /* Required. begin takes over the step (uploads it, applies edits and copies), which is the host's again when begin returns;
     * ops follow, which may run at once or be recorded; end returns when all results can be read. The first failure is sticky:
     * later ops of the step do nothing and return its code, end returns it with the op's label in the message. After a failed
     * step the KV entries of its rows are undefined and the host does not commit them. A step that changes between backends
     * begins again, any number of times, with the same serial: its edits and copies are then already done. */
    int (*begin)(void *self, const struct soq_step *step, struct soq_error *err);
    int (*end)(void *self, struct soq_error *err);

    const struct soq_memory_ops *memory;           /* optional, with matmul it makes a backend */
    const struct soq_matmul_ops *matmul;           /* optional */
    const struct soq_attention_ops *attention;     /* optional */
    const struct soq_elementwise_ops *elementwise; /* optional */
};

#ifdef __cplusplus
}
#endif
#endif
