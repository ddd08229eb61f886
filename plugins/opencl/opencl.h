/* What the files of the OpenCL backend share: the instance, its programs, arenas, weights and groups, and how kernels are
 * called.
 *
 * Life of a step: begin checks it, uploads it once and has tables edited and blocks copied on the device; each op slot checks
 * its arguments and enqueues its kernels on the one in-order queue; end waits for the queue. A buffer handle is a cl_mem. */
#ifndef SOQ_OPENCL_H
#define SOQ_OPENCL_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdbool.h>

#include "soquete/plugin.h"

#include "fail.h"
#include "step.h"

enum {
    OPENCL_ITEMS = 64,       /* work-items of a group: the kernels' ITEMS */
    OPENCL_TILE = 16,        /* outputs and rows of a work-group of matmul */
    OPENCL_MATVEC_ROWS = 4,  /* up to so many rows matvec is used */
    OPENCL_QUERIES = 8,      /* queries of a work-group of attention */
    OPENCL_SPLIT = 512,      /* entries of a split of attention */
    OPENCL_ARENAS = 8,       /* arenas that a kernel can reach: the kernels' ARENA_PARAMETERS */
    OPENCL_RUN_AHEAD = 32,   /* launches between two looks at the host's cancel flag */
    OPENCL_EVENTS_MAX = 512, /* launches whose times are kept until they are read */
    OPENCL_DEVICES_MAX = 32,
    OPENCL_PARTIAL_BYTES = 32 << 20, /* room for attention's splits, more where one tile of queries needs it */
};

/* Every kernel: X(program, name); kernels/<file>.cl are listed in program.c. */
#define OPENCL_KERNELS(X)                                                                                                      \
    X(OPS, edit_table)                                                                                                         \
    X(OPS, norm)                                                                                                               \
    X(OPS, rope_table)                                                                                                         \
    X(OPS, rope)                                                                                                               \
    X(OPS, activation)                                                                                                         \
    X(OPS, add)                                                                                                                \
    X(OPS, scale)                                                                                                              \
    X(OPS, gather)                                                                                                             \
    X(WEIGHT, matvec)                                                                                                          \
    X(WEIGHT, matmul)                                                                                                          \
    X(WEIGHT, embed)                                                                                                           \
    X(WEIGHT, expand)                                                                                                          \
    X(KV, kv_append)                                                                                                           \
    X(KV, copy_block)                                                                                                          \
    X(KV, kv_gather)                                                                                                           \
    X(KV, attention)                                                                                                           \
    X(KV, attention_merge)                                                                                                     \
    X(KV, attention_mass)

enum opencl_kernel {
#define OPENCL_KERNEL_ENUM(program, name) OPENCL_K_##name,
    OPENCL_KERNELS(OPENCL_KERNEL_ENUM)
#undef OPENCL_KERNEL_ENUM
        OPENCL_N_KERNELS
};

/* OPS: one for the instance. WEIGHT: one for each weight type. KV: one for each kind of planes. */
enum opencl_recipe { OPENCL_OPS, OPENCL_WEIGHT, OPENCL_KV };

struct opencl_time {
    uint64_t calls, ns;
};

struct opencl_program {
    enum opencl_recipe recipe;
    char options[1024]; /* of the compiler, beside those that all have */
    char label[32];     /* for the profile: "Q4_0", "" */
    cl_program handle;
    cl_kernel kernels[OPENCL_N_KERNELS]; /* those of the recipe */
    struct opencl_time times[OPENCL_N_KERNELS];
    struct opencl_program *next;
};

/* Device memory that grows with what is asked of it; what was in it is lost. */
struct opencl_scratch {
    cl_mem mem;
    uint64_t bytes;
};

/* The same on the host. */
struct opencl_room {
    void *bytes;
    uint64_t capacity;
};

/* As in kernels/attention_mass.cl: the rows among which those of a line of attention mass lie. */
struct opencl_line {
    uint32_t line, seq, first_row, n_rows;
};

/* A piece of device memory that buffers are cut from, as sub-buffers. */
struct opencl_arena {
    cl_mem handle;
    struct opencl_range {
        uint64_t offset, bytes;
        bool used;
        struct opencl_range *next; /* by offset, without gaps */
    } * ranges;
    struct opencl_arena *next;
};

struct opencl_type {
    uint32_t dtype;
    const char *name;
    uint32_t elements, bytes; /* of a block */
};

struct opencl_weight {
    const struct opencl_type *type;
    struct opencl_program *program; /* NULL for a vector */
    cl_mem data;                    /* blocks as in the file, or a vector of F32 */
    uint64_t bytes, row_bytes;
    uint32_t rows, cols, uses;
    char name[64];
};

/* A plane of the blocks of one class. */
struct opencl_plane {
    uint32_t heads, width;
    uint32_t bytes; /* of a number of class 0 */
    uint64_t offset, tile_bytes;
    struct soq_kv_format format;
    struct soq_kv_coder coder; /* of class 1 */
    bool decoded;              /* by the coder: there is no kernel for the format */
};

/* Where the blocks of a group, and of those that share its slabs, lie. */
struct opencl_storage {
    uint64_t (*places)[2]; /* [n_places][class]: arena << 56 | byte of each block, OPENCL_NOWHERE where there is none */
    cl_mem device_places;
    uint32_t n_places;
    bool changed; /* since the places were uploaded */
    struct {
        cl_mem handle; /* NULL: free */
        uint32_t n_blocks;
    } arenas[OPENCL_ARENAS];
};

struct opencl_group {
    uint32_t index, n_layers, block_tokens, max_blocks;
    uint64_t block_bytes, packed_bytes; /* of blocks of class 0 and 1; 0: the group does not pack */
    struct opencl_plane key, value, packed_key, packed_value;
    const uint32_t *layers; /* as in soq_kv_group_desc */
    uint32_t first_head;
    struct opencl_program *program;
    cl_mem format_tables;  /* codebooks and rotations of the packed planes, or NULL */
    soq_block_ref *tables; /* [max_slots][max_blocks], what the device's will be after this step's edits */
    cl_mem device_tables;
    struct opencl_storage own, *storage; /* its own or another group's */
    /* What the step in hand has for it, found out by the first op. */
    bool surveyed, rotated;
    uint32_t first_entry, end_entry; /* of its segments */
    struct opencl_group *next;
};

#define OPENCL_NOWHERE UINT64_MAX
#define OPENCL_ARENA_SHIFT 56

struct opencl {
    const struct soq_host *host;
    struct soq_backend_params params;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    char device_name[128];
    uint64_t max_alloc, local_bytes, alignment;
    uint64_t memory_limit, memory_used;  /* of what this instance asked for; limit 0: none */
    uint64_t arena_bytes, decoded_bytes; /* as the options say */
    char *cache_dir;                     /* NULL: none */
    bool cache_failed;

    struct opencl_program *programs, *ops;
    struct opencl_arena *arenas;
    struct opencl_group *groups;

    /* The step in hand. */
    uint8_t *step_bytes;
    uint32_t step_capacity;
    const struct soq_step *step; /* NULL between steps */
    cl_mem device_step;
    uint64_t serial;  /* of the step whose edits and copies are done */
    uint32_t n_lines; /* of attention mass that its rows name */
    int failed;       /* the first failure, sticky */
    struct soq_error error;

    struct opencl_scratch partials, shares;     /* of attention: sums of splits; top and total of each row and head */
    struct opencl_scratch lines, lists;         /* of attention mass; of kv_gather */
    struct opencl_room host_lines;              /* those of attention mass */
    struct opencl_scratch decoded;              /* tiles that the host decoded */
    struct opencl_room packed_room, plain_room; /* the host's, for that */

    /* How far the queue may lag behind. */
    uint32_t n_launches;
    cl_event fence;

    /* Times not yet read. */
    bool profile;
    uint32_t n_events;
    struct opencl_event {
        cl_event handle;
        struct opencl_time *time;
    } * events; /* [OPENCL_EVENTS_MAX] */
};

extern const struct soq_memory_ops opencl_memory_ops;
extern const struct soq_matmul_ops opencl_matmul_ops;
extern const struct soq_attention_ops opencl_attention_ops;
extern const struct soq_elementwise_ops opencl_elementwise_ops;

/* What the kernels of attention are told, as in kernels/queries.cl. */
struct opencl_tiles {
    uint64_t key_first, key_tile, value_first, value_tile;
};
struct opencl_attention {
    struct opencl_tiles plain, packed;
    uint64_t decoded_values;
    uint64_t q_offset, freq_offset;
    uint32_t q_stride;
    uint32_t group, layer, max_blocks;
    uint32_t ratio;
    uint32_t first_tile, first_split, n_splits;
    uint32_t at_tile, at_split, at_line;
    uint32_t decoded_block;
    float scale, softcap;
    uint32_t window, sinks;
    uint32_t rope_kind, n_rot;
};

/* device.c */
struct opencl_found {
    cl_device_id handle;
    cl_device_type type;
    struct soq_device about;
};
/* Every device that can be used: GPUs first, then accelerators, then processors; the index of `about` is the place in the list.
 */
int opencl_find_devices(struct opencl_found found[OPENCL_DEVICES_MAX], uint32_t *count_out, struct soq_error *err);
int opencl_devices(const struct soq_host *host, const struct soq_config *config, struct soq_device *devices, uint32_t stride,
                   uint32_t capacity, uint32_t *count_out, struct soq_error *err);
/* Bytes of text, cut to size; "" where the device has no answer. */
void opencl_device_text(cl_device_id device, cl_device_info what, char *text, size_t size);
uint64_t opencl_device_number(cl_device_id device, cl_device_info what, size_t bytes);

/* instance.c */
int opencl_init(void *self, const struct soq_host *host, const struct soq_config *config,
                const struct soq_backend_params *params, struct soq_error *err);
void opencl_shutdown(void *self);
/* supports.c */
int opencl_supports(void *self, const struct soq_op_desc *desc, struct soq_error *why);

/* status.c. "CL_OUT_OF_RESOURCES"; what the host is told for it. */
const char *opencl_status_name(cl_int status);
enum soq_error_code opencl_status_code(cl_int status);

/* program.c. The program of that recipe and options, built or found. It lives as long as the instance. */
int opencl_program(struct opencl *ocl, enum opencl_recipe recipe, const char *options, const char *label,
                   struct opencl_program **program_out, struct soq_error *err);
void opencl_programs_free(struct opencl *ocl);
const char *opencl_kernel_name(enum opencl_kernel kernel);

/* sources.c, made by embed.sh: the text of kernels/<name>.cl. */
struct opencl_source {
    const char *name, *text;
    size_t bytes;
};
extern const struct opencl_source opencl_sources[];
extern const size_t opencl_n_sources;

/* cache.c. A built program from the cache, or NULL; and into it. Failures are not fatal: the program is built instead. */
uint64_t opencl_cache_key(const struct opencl *ocl, const char *options, const struct opencl_source *const *sources,
                          size_t n_sources);
cl_program opencl_cache_load(struct opencl *ocl, uint64_t key);
void opencl_cache_store(struct opencl *ocl, uint64_t key, cl_program program);

/* memory.c. Device memory within the instance's limit. */
int opencl_mem_create(struct opencl *ocl, uint64_t bytes, const char *what, cl_mem *mem_out, struct soq_error *err);
void opencl_mem_free(struct opencl *ocl, cl_mem mem);
/* At least so many bytes. */
int opencl_reserve(struct opencl *ocl, struct opencl_scratch *scratch, uint64_t bytes, const char *what, struct soq_error *err);
int opencl_write(struct opencl *ocl, cl_mem mem, uint64_t offset, const void *src, uint64_t bytes, const char *what,
                 struct soq_error *err);
int opencl_read(struct opencl *ocl, cl_mem mem, uint64_t offset, void *dst, uint64_t bytes, const char *what,
                struct soq_error *err);
int opencl_reserve_room(struct opencl *ocl, struct opencl_room *room, uint64_t bytes, const char *what, struct soq_error *err);
/* arena.c. A sub-buffer of an arena. */
int opencl_arena_alloc(struct opencl *ocl, uint64_t bytes, cl_mem *mem_out, struct soq_error *err);
void opencl_arena_free(struct opencl *ocl, cl_mem parent, cl_mem mem);
/* The buffer that mem was cut from and its first byte there; mem itself and 0 where it was not cut. */
cl_mem opencl_mem_parent(cl_mem mem, uint64_t *offset_out);

/* weights.c */
const struct opencl_type *opencl_type(uint32_t dtype);
int opencl_weight_prepare(void *self, const struct soq_weight_desc *desc, struct soq_weight_info *info_out,
                          struct soq_error *err);
void opencl_weight_free(void *self, soq_weight weight);

/* group.c */
int opencl_group_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *group_out, struct soq_error *err);
void opencl_group_free(void *self, soq_kv_group group);
int opencl_group_slab(void *self, soq_kv_group group, uint32_t block_class, uint32_t first_block, uint32_t n_blocks,
                      soq_buffer slab, struct soq_error *err);
/* What group_slab changed since the last step. */
int opencl_upload_places(struct opencl *ocl, struct soq_error *err);
struct opencl_group *opencl_find_group(struct opencl *ocl, uint32_t index);
bool opencl_has_block(const struct opencl_group *group, soq_block_ref block);
/* Where a block that is there lies. */
cl_mem opencl_block_mem(const struct opencl_group *group, soq_block_ref block, uint64_t *offset_out);
static inline uint32_t opencl_class(soq_block_ref block)
{
    return block >> SOQ_BLOCK_CLASS_SHIFT;
}

/* In a block: the first tile of a layer. */
static inline uint64_t opencl_layer_tile(const struct opencl_plane *plane, uint32_t layer)
{
    return plane->offset + (uint64_t)layer * plane->heads * plane->tile_bytes;
}

/* format.c. Whether the kernels read the format; otherwise the coder decodes it. */
bool opencl_format_fused(const struct soq_kv_format *format, uint32_t width);
int opencl_format_check(const struct opencl_group *group, const struct opencl_plane *plane, uint32_t role,
                        struct soq_error *err);
void opencl_format_options(const struct opencl_group *group, char *options, size_t size); /* for the compiler */
int opencl_format_tables(struct opencl *ocl, struct opencl_group *group, struct soq_error *err);

/* kv_gather.c, pack.c */
int opencl_kv_gather(void *self, const struct soq_kv_gather_args *args, struct soq_error *err);
int opencl_kv_pack(void *self, const struct soq_kv_pack_args *args, struct soq_error *err);

/* decode.c. Coders at work on the host; what they decode goes to ocl->decoded. */
struct soq_kv_tile opencl_tile(const struct opencl_group *group, uint32_t role, uint32_t layer, uint32_t head,
                               uint32_t first_position);
/* n numbers of a tile of class 0, from the first on. */
void opencl_numbers(const struct opencl_plane *plane, const uint8_t *tile, uint64_t first, uint32_t n, float *numbers);
/* Room for a packed block; and for the images of n blocks of class 0, with a tile in F32 behind their image_bytes. */
int opencl_reserve_rooms(struct opencl *ocl, const struct opencl_group *group, uint32_t n, struct soq_error *err);
uint64_t opencl_image_bytes(const struct opencl_group *group, uint32_t n);
/* Blocks src[0 .. n): those of class 1 among them, as blocks of class 0. */
int opencl_decode_blocks(struct opencl *ocl, const struct opencl_group *group, const soq_block_ref *src, uint32_t n,
                         struct soq_error *err);
/* Whether attention needs the coders. */
static inline bool opencl_decodes(const struct opencl_group *group)
{
    return group->packed_key.decoded || group->packed_value.decoded;
}
/* Entries whose tiles of a layer fit into [backend.opencl] decoded: a multiple of OPENCL_SPLIT, one at least. */
uint32_t opencl_decodable(const struct opencl *ocl, const struct opencl_group *group);
/* Entries [first, end) of a sequence for attention, which `a` tells where they lie: those in blocks of class 1, of the planes
 * that no kernel decodes. The step fails where that fails. */
int opencl_decode_entries(struct opencl *ocl, const struct opencl_group *group, const struct soq_step_seq *seq, uint32_t first,
                          uint32_t end, struct opencl_attention *a);

/* mass.c. The lines of mass that the step's rows name, uploaded. */
int opencl_upload_lines(struct opencl *ocl, const struct soq_step *step, struct soq_error *err);
int opencl_check_mass(struct opencl *ocl, const struct soq_attention_args *args);
/* Behind attention, which left the shares. */
int opencl_attention_mass(struct opencl *ocl, const struct soq_attention_args *args, struct opencl_attention *a);

/* step.c */
int opencl_begin(void *self, const struct soq_step *step, struct soq_error *err);
int opencl_end(void *self, struct soq_error *err);

/* check.c. The step fails with this code and message, the op's name in front; returns the code. */
int opencl_refuse(struct opencl *ocl, uint32_t op, enum soq_error_code code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
const char *opencl_op_name(uint32_t op);
/* Checks that view is an F32 matrix of that shape in a buffer; returns 0 or refuses. */
int opencl_check_view(struct opencl *ocl, uint32_t op, const char *what, const struct soq_view *view, uint32_t rows,
                      uint32_t cols);
/* Checks a vector weight of that length; 0 is allowed where optional. */
int opencl_check_vector(struct opencl *ocl, uint32_t op, const char *what, soq_weight weight, uint32_t length, bool optional);

/* call.c. A kernel being called: arguments in the order of its parameters, then a launch. The first trouble is kept and comes
 * back from the launch as a refusal of the step. A launch without work does nothing. */
struct opencl_call {
    struct opencl *ocl;
    uint32_t op; /* enum soq_op, for the label */
    enum opencl_kernel kernel;
    cl_kernel handle;
    struct opencl_time *time;
    cl_uint n_args;
    cl_int status;
};
struct opencl_call opencl_call(struct opencl *ocl, uint32_t op, struct opencl_program *program, enum opencl_kernel kernel);
void opencl_arg(struct opencl_call *call, const void *value, size_t bytes);
void opencl_arg_u32(struct opencl_call *call, uint32_t value);
void opencl_arg_u64(struct opencl_call *call, uint64_t value);
void opencl_arg_f32(struct opencl_call *call, float value);
void opencl_arg_mem(struct opencl_call *call, cl_mem mem);                   /* NULL: the kernel sees NULL */
void opencl_arg_view(struct opencl_call *call, const struct soq_view *view); /* buffer, offset and stride in elements */
void opencl_arg_vector(struct opencl_call *call, soq_weight weight);
void opencl_arg_arenas(struct opencl_call *call, const struct opencl_group *group);
/* What attention and attention_mass begin with; in attention.c. */
void opencl_arg_attention(struct opencl_call *call, const struct soq_attention_args *args, const struct opencl_attention *a);
/* n x rows work-items, in groups of OPENCL_ITEMS of a row: the kernel finds up to OPENCL_ITEMS - 1 too many. */
int opencl_launch_items(struct opencl_call *call, uint64_t n, uint64_t rows);
int opencl_launch_groups(struct opencl_call *call, uint64_t x, uint64_t y, uint64_t z);
/* Waits for everything enqueued; a status that is not CL_SUCCESS means that some of it failed. */
cl_int opencl_finish(struct opencl *ocl);

/* profile.c */
void opencl_profile_add(struct opencl *ocl, cl_event event, struct opencl_time *time);
void opencl_profile_collect(struct opencl *ocl); /* of events that are complete */
void opencl_profile_log(struct opencl *ocl);

/* log.c */
void opencl_log(const struct soq_host *host, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static inline struct opencl_weight *opencl_weight(soq_weight handle)
{
    return (struct opencl_weight *)(uintptr_t)handle;
}

static inline cl_mem opencl_mem(soq_buffer handle)
{
    return (cl_mem)(uintptr_t)handle;
}

#endif
