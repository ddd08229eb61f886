/* What the files of the CPU backend share: the instance, its weights and groups, and the recorded op.
 *
 * Life of a step: begin copies it; each op slot checks its arguments and records an op; end runs all of them in one parallel
 * region of the host, with a barrier where an op reads what an earlier one wrote. Work is divided over the threads by ranges
 * that never change what is computed for an element, so results depend neither on the threads nor on the other rows.
 *
 * The variants of the plugin are these same sources compiled for different machines; simd/ holds what differs. */
#ifndef SOQ_CPU_H
#define SOQ_CPU_H

#include <stdatomic.h>
#include <stdbool.h>

#include "soquete/plugin.h"

#include "arena.h"
#include "barrier.h"
#include "codes.h"
#include "fail.h"
#include "formats.h"
#include "step.h"

enum {
    CPU_OPS_MAX = 4096,                           /* recorded before they must run; a step with more runs in pieces */
    CPU_TILE_K = 256,                             /* inputs that the float kernel expands at once */
    CPU_SPANS_BYTES = CPU_TILE_K * CPU_LANES * 4, /* room for their packed spans, of any type */
    CPU_PARTIAL_BYTES = 4 << 20,                  /* room for the sums of splits that run in parallel, twice */
};

/* One tensor. Exactly one of vector, packed and source is set. */
struct cpu_weight {
    const struct cpu_format *format; /* NULL for a vector */
    uint32_t rows, cols;
    uint32_t uses; /* SOQ_USE_... */
    float *vector; /* [cols] */
    uint8_t *packed;
    struct cpu_arena *arena; /* of packed */
    const uint8_t *source;   /* the caller's, in GGUF layout */
    uint64_t row_bytes;      /* of source */
    uint64_t group_bytes;    /* of packed: CPU_LANES rows */
    char name[64];
};

/* The keys or the values in blocks of one class. Tiles of a format other than PLAIN are coded and decoded by the coder. */
struct cpu_plane {
    uint32_t role, heads, width;
    uint64_t offset; /* of the first tile in a block */
    struct soq_kv_format format;
    struct soq_kv_coder coder; /* of packed ones */
    struct cpu_codes codes;    /* of those that are computed on as they are */
};

enum { CPU_KEY, CPU_VALUE, CPU_SIDES };
enum { CPU_PLAIN, CPU_PACKED, CPU_CLASSES }; /* of blocks */

/* Blocks of one size. */
struct cpu_class {
    struct cpu_plane planes[CPU_SIDES];
    uint64_t block_bytes; /* 0: the group has no such blocks */
    uint8_t **blocks;     /* [n_blocks]: where block i lies, or NULL */
    uint32_t n_blocks;
};

/* A KV group and its resident block tables. */
struct cpu_group {
    uint32_t index, n_layers, block_tokens, max_blocks;
    struct cpu_class classes[CPU_CLASSES];
    const uint32_t *layers;  /* [n_layers] numbers in the model; NULL: 0, 1, ... */
    uint32_t first_head;     /* number in the model */
    soq_block_ref *tables;   /* [max_slots][max_blocks] */
    struct cpu_group *store; /* whose slabs hold the blocks: often the group itself */
    bool checked;            /* the blocks of the step in hand are known to be there */
    struct cpu_group *next;
};

struct cpu_thread {
    uint32_t index, count;
    struct cpu_barrier *barrier; /* of `count` threads */
    uint8_t *scratch;            /* [instance.scratch_bytes] */
    uint32_t *splits;            /* attention ops so far that ran in splits; the same in all threads */
};

struct cpu;
struct cpu_op;
typedef void cpu_run_fn(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread);

struct cpu_op {
    cpu_run_fn *run;
    uint32_t op;   /* enum soq_op, for the label */
    bool head;     /* first of a run of ops that need no barrier among them */
    bool sync;     /* a barrier comes first */
    bool quantise; /* MATMUL: x is not yet in the scratch */
    union {
        struct soq_matmul_args matmul;
        struct soq_embed_args embed;
        struct soq_norm_args norm;
        struct soq_rope_table_args rope_table;
        struct soq_rope_args rope;
        struct soq_activation_args activation;
        struct soq_add_args add;
        struct soq_scale_args scale;
        struct soq_gather_args gather;
        struct soq_kv_append_args kv_append;
        struct soq_attention_args attention;
    } args;
};

/* Activations in 8 bits. Rows lie in strips of CPU_ROWS side by side; the last strip is only as wide as it must be. A strip of
 * R rows is for each 32 inputs a block:
 *
 *     i8 code[8][R][4]    step i: inputs 4i ... 4i + 3
 *     f32 scale[R]
 *     f32 sum[R]          of the 32 values
 *     i32 minus[R]        the sum of the 32 codes, negative: what a weight's zero point takes off
 *     i32 half[2][R]      the same of the first and second 16 */
enum { CPU_Q8_BYTES = CPU_BLOCK + 5 * 4 }; /* of a block, a row */

/* The width of a strip that so many rows are left for. */
static inline uint32_t cpu_strip_rows(uint32_t left)
{
    return left == 1 ? 1 : left <= CPU_ROWS / 2 ? CPU_ROWS / 2 : CPU_ROWS;
}

/* Whether threads divide the rounding of a product's x by inputs, not by rows: rows of one strip share its cache lines. It then
 * needs a barrier in front, too. */
static inline bool cpu_rounds_by_inputs(uint32_t rows)
{
    return rows > 1 && rows <= CPU_ROWS;
}

struct cpu {
    const struct soq_host *host;
    struct soq_backend_params params;
    uint32_t threads;
    bool q8;     /* activations = q8 */
    bool repack; /* repack = on */

    struct cpu_group *groups;
    struct cpu_arena *arena; /* of the next weight */

    /* The step in hand. */
    uint8_t *step_bytes;
    uint32_t step_capacity;
    uint64_t serial;             /* of the last step whose edits and copies were done */
    const struct soq_step *step; /* NULL between steps */
    struct cpu_op *ops;          /* [CPU_OPS_MAX] */
    _Atomic uint32_t *taken;     /* [CPU_OPS_MAX]: pieces of an op's work that threads have taken */
    uint32_t n_ops;
    int failed; /* the first failure, sticky */
    struct soq_error error;

    /* Scratch, sized when weights and groups are made. */
    uint32_t max_cols;
    uint8_t *q8_strips; /* max_rows of max_cols */
    uint8_t *scratch;   /* [threads][scratch_bytes] */
    uint64_t scratch_bytes;
    float *partials; /* [2] of CPU_PARTIAL_BYTES */

    struct cpu_barrier barrier;
    _Atomic uint32_t stop_at;  /* ops from this one on are not run */
    _Atomic bool codec_failed; /* in some thread; the first one's words are in codec_error */
    struct soq_error codec_error;
};

extern const struct soq_memory_ops cpu_memory_ops;
extern const struct soq_matmul_ops cpu_matmul_ops;
extern const struct soq_attention_ops cpu_attention_ops;
extern const struct soq_elementwise_ops cpu_elementwise_ops;

/* instance.c */
int cpu_devices(const struct soq_host *host, const struct soq_config *config, struct soq_device *devices, uint32_t stride,
                uint32_t capacity, uint32_t *count_out, struct soq_error *err);
int cpu_init(void *self, const struct soq_host *host, const struct soq_config *config, const struct soq_backend_params *params,
             struct soq_error *err);
void cpu_shutdown(void *self);
int cpu_supports(void *self, const struct soq_op_desc *desc, struct soq_error *why);

/* step.c */
int cpu_begin(void *self, const struct soq_step *step, struct soq_error *err);
int cpu_end(void *self, struct soq_error *err);

/* record.c. Appends an op with its arguments; returns 0 or, when the step has failed, the code. */
int cpu_record(struct cpu *cpu, uint32_t op, cpu_run_fn *run, const void *args, size_t size);
/* order.c. Decides which barriers the op, the last of ops[], can do without. */
void cpu_order(const struct cpu_op *ops, struct cpu_op *op);
/* The step fails with this code and message, the op's name in front; returns the code. */
int cpu_refuse(struct cpu *cpu, uint32_t op, enum soq_error_code code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
const char *cpu_op_name(uint32_t op);
/* Checks that view is an F32 matrix of that shape in a buffer; returns 0 or refuses. */
int cpu_check_view(struct cpu *cpu, uint32_t op, const char *what, const struct soq_view *view, uint32_t rows, uint32_t cols);
/* Checks a vector weight of that length; 0 is allowed where optional. */
int cpu_check_vector(struct cpu *cpu, uint32_t op, const char *what, soq_weight weight, uint32_t length, bool optional);

/* run.c. Runs the recorded ops and forgets them. */
int cpu_run(struct cpu *cpu);

/* instance.c. Makes the per-thread scratch at least that large. */
int cpu_reserve_scratch(struct cpu *cpu, uint64_t bytes, struct soq_error *err);

/* kernels/store_outputs.c. sums[n_rows][CPU_LANES] are outputs of a group, for rows from first_row on: bias, accumulation,
 * store. */
void cpu_store_outputs(const struct soq_matmul_args *args, uint32_t first_row, uint32_t n_rows, uint64_t group,
                       const float *sums);

/* Bytes of scratch that a thread of an op needs. */
uint64_t cpu_matmul_scratch(const struct cpu *cpu);
uint64_t cpu_matmul_q8_scratch(void);
uint64_t cpu_attention_scratch(const struct cpu_group *group);
uint64_t cpu_attention_mass_scratch(const struct cpu_group *group, const struct soq_step *step);

static inline struct cpu_weight *cpu_weight(soq_weight handle)
{
    return (struct cpu_weight *)(uintptr_t)handle;
}

static inline const float *cpu_vector(soq_weight handle)
{
    return handle ? cpu_weight(handle)->vector : NULL;
}

static inline float *cpu_view_row(const struct soq_view *view, uint32_t row)
{
    return (float *)((uintptr_t)view->buffer + view->offset) + (size_t)row * view->row_stride;
}

/* The thread's contiguous share of n pieces. */
static inline void cpu_share(const struct cpu_thread *thread, uint64_t n, uint64_t *first_out, uint64_t *last_out)
{
    *first_out = n * thread->index / thread->count;
    *last_out = n * (thread->index + 1) / thread->count;
}

static inline const struct cpu_plane *cpu_plane(const struct cpu_group *group, soq_block_ref ref, uint32_t side)
{
    return &group->classes[ref >> SOQ_BLOCK_CLASS_SHIFT].planes[side];
}

/* Where a block lies; NULL: nowhere. */
static inline uint8_t *cpu_block_at(const struct cpu_group *group, soq_block_ref ref)
{
    uint32_t class = ref >> SOQ_BLOCK_CLASS_SHIFT, index = ref & SOQ_BLOCK_INDEX_MASK;

    return class < CPU_CLASSES && index < group->store->classes[class].n_blocks ? group->store->classes[class].blocks[index]
                                                                                : NULL;
}

/* What a place in a table says. */
static inline soq_block_ref cpu_block_ref(const struct cpu_group *group, uint32_t slot, uint32_t index)
{
    return group->tables[(size_t)slot * group->max_blocks + index];
}

/* The block of a place in a table: NULL where there is none. */
static inline uint8_t *cpu_block(const struct cpu_group *group, uint32_t slot, uint32_t index)
{
    return cpu_block_at(group, cpu_block_ref(group, slot, index));
}

/* kernels/plane.c. Numbers of a PLAIN tile: their bytes, n of them to F32 and back. */
size_t cpu_number_bytes(uint32_t dtype);
void cpu_widen(uint32_t dtype, const uint8_t *src, size_t n, float *out);
void cpu_narrow(uint32_t dtype, const float *x, size_t n, uint8_t *out);
/* Where a tile of a block lies: of layer `layer` and head `head` of the group. */
static inline uint64_t cpu_tile_at(const struct cpu_plane *plane, uint32_t layer, uint32_t head)
{
    return plane->offset + ((uint64_t)layer * plane->heads + head) * plane->format.tile_bytes;
}

/* A tile of a block, to [block_tokens][width] and back, in any thread: failures are kept for cpu_codec_result(). Where it
 * fails, decoded numbers are zeros. */
struct cpu_tile {
    const struct cpu_group *group;
    const struct cpu_plane *plane;
    uint32_t layer, head; /* of the group */
    uint32_t first_position;
};
void cpu_decode(struct cpu *cpu, const struct cpu_tile *tile, const uint8_t *src, float *out);
void cpu_encode(struct cpu *cpu, const struct cpu_tile *tile, const float *x, uint8_t *dst);
/* When the threads are done: 0, or the first failure of a codec since the last call. */
int cpu_codec_result(struct cpu *cpu, uint32_t op, struct soq_error *err);

/* kernels/: one file each. */
/* Rounds n inputs to place `lane` of a strip of that width. */
void cpu_quantise_row(const float *x, uint32_t n, uint32_t width, uint32_t lane, uint8_t *strip);
/* The same of n inputs of eight rows that fill a strip. */
void cpu_quantise_strip(const float *const rows[8], uint32_t n, uint8_t *strip);
/* Zero headers for lanes from `first` on. */
void cpu_clear_lanes(uint32_t n, uint32_t width, uint32_t first, uint8_t *strip);
cpu_run_fn cpu_run_matmul, cpu_run_matmul_q8, cpu_run_embed, cpu_run_norm, cpu_run_rope_table, cpu_run_rope, cpu_run_activation,
    cpu_run_add, cpu_run_scale, cpu_run_gather, cpu_run_kv_append, cpu_run_attention;
int cpu_kv_gather(void *self, const struct soq_kv_gather_args *args, struct soq_error *err);
int cpu_kv_pack(void *self, const struct soq_kv_pack_args *args, struct soq_error *err);

#endif
