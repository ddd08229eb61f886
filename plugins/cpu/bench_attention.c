/* Times attention of one variant: bench_attention PLUGIN.so HEADS KV_HEADS WIDTH ENTRIES ROWS THREADS [LAYERS [MASS_ROWS
 * [FORMAT]]].
 *
 * The last ROWS of ENTRIES entries attend to all before them, in an F16 cache or one whose full blocks are packed (int8, int4,
 * q4_1, q5_1, kivi2, kivi4, fp8), layer after layer (30), so that keys and values come from memory where they do not fit the
 * cache; the last MASS_ROWS (0) want attention mass. Prints milliseconds a layer, gigabytes of keys and values and operations
 * (two a product term) a second, the best of several rounds. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "kvtile.h"
#include "plugin/host.h"
#include "soquete/plugin.h"

enum { ROUNDS = 7, CALLS = 60, TOKENS = 32 };

static const char *threads;

static int64_t get_int(void *ctx, const char *key)
{
    (void)ctx;
    return strcmp(key, "threads") == 0 ? atoi(threads) : 1;
}

static const char *get_string(void *ctx, const char *key)
{
    (void)ctx;
    (void)key;
    return "q8";
}

struct bench {
    const struct soq_backend_ops *ops;
    void *self;
    uint32_t n_layers, n_heads, n_kv_heads, width, entries, rows, mass_rows;
    soq_kv_group group;
    struct soq_step *step;
    struct soq_view q, out;
    uint64_t *mass; /* [kv heads][entries] */
    const struct format *format;
    double bytes; /* of an entry in a layer */
};

/* Packed formats: of keys and values. */
static const struct format {
    const char *name;
    uint32_t bits, symmetric, rotation;
    uint32_t key_tokens, key_dims;     /* a group of keys */
    uint32_t value_tokens, value_dims; /* and of values */
    uint32_t kind;
} formats[] = {
    {"int8", 8, 1, SOQ_ROTATION_NONE, 1, 32, 1, 32, SOQ_FORMAT_AFFINE},
    {"int4", 4, 1, SOQ_ROTATION_HADAMARD, 1, 32, 1, 32, SOQ_FORMAT_AFFINE},
    {"q4_1", 4, 0, SOQ_ROTATION_HADAMARD, 1, 32, 1, 32, SOQ_FORMAT_AFFINE},
    {"q5_1", 5, 0, SOQ_ROTATION_NONE, 1, 32, 1, 32, SOQ_FORMAT_AFFINE},
    {"kivi2", 2, 0, SOQ_ROTATION_NONE, TOKENS, 1, 1, 32, SOQ_FORMAT_AFFINE},
    {"kivi4", 4, 0, SOQ_ROTATION_NONE, TOKENS, 1, 1, 32, SOQ_FORMAT_AFFINE},
    {"fp8", 8, 0, SOQ_ROTATION_NONE, TOKENS, UINT32_MAX, TOKENS, UINT32_MAX, SOQ_FORMAT_E4M3},
};

static const struct format *find_format(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

/* No tile is ever coded or decoded here. */
static int no_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    (void)self, (void)tile, (void)src, (void)dst, (void)err;
    return -SOQ_EUNSUPPORTED;
}

static int no_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    (void)self, (void)tile, (void)src, (void)dst, (void)err;
    return -SOQ_EUNSUPPORTED;
}

/* The packed planes and, in a new slab, random codes under small scales. */
static int make_packed(struct bench *b, struct soq_kv_group_desc *desc, struct soq_kv_plane *packed, soq_buffer *slab,
                       struct soq_error *err)
{
    static const struct soq_kv_codec_ops ops = {.struct_size = sizeof ops, .encode = no_encode, .decode = no_decode};
    static const struct soq_kv_coder coders[2] = {{sizeof coders[0], 0, &ops, NULL}, {sizeof coders[0], 0, &ops, NULL}};
    struct kvtile tiles[2];
    uint8_t *at;
    int rc;

    for (int i = 0; i < 2; i++) {
        struct soq_kv_format *f = &packed[i].format;

        packed[i] = desc->planes[i];
        *f = (struct soq_kv_format){.struct_size = sizeof *f, .kind = b->format->kind, .dtype = SOQ_DTYPE_F16};
        f->bits = b->format->bits;
        f->symmetric = b->format->symmetric;
        f->rotation = b->format->rotation;
        f->rotation_dims = f->rotation ? b->width : 0;
        f->group_tokens = i ? b->format->value_tokens : b->format->key_tokens;
        f->group_dims = i ? b->format->value_dims : b->format->key_dims;
        f->group_dims = f->group_dims < b->width ? f->group_dims : b->width;
        tiles[i] = kvtile_of(f, packed[i].role, TOKENS, b->width);
        f->tile_bytes = tiles[i].bytes;
        desc->packed_bytes += tiles[i].bytes * b->n_layers * b->n_kv_heads;
    }
    desc->packed = packed;
    desc->coders = coders;
    rc = b->ops->memory->buffer_alloc(b->self, desc->packed_bytes * desc->max_blocks, slab, err);
    if (rc)
        return rc;
    at = (uint8_t *)(uintptr_t)*slab;
    for (uint64_t i = 0; i < desc->packed_bytes * desc->max_blocks; i++)
        at[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint64_t t = 0; t < (uint64_t)desc->max_blocks * 2 * b->n_layers * b->n_kv_heads; t++) {
        const struct kvtile *tile = &tiles[t / (b->n_layers * b->n_kv_heads) % 2];

        for (uint64_t k = 0; k < tile->planes[0].at; k += 2)
            memcpy(at + k, &(uint16_t){(uint16_t)(0x2000 + t % 64)}, 2);
        at += tile->bytes;
    }
    return 0;
}

static struct soq_view matrix(uint32_t rows, uint32_t cols)
{
    float *p = malloc((size_t)rows * cols * sizeof *p);

    for (size_t i = 0; i < (size_t)rows * cols; i++)
        p[i] = (float)(i % 251) / 100.0f - 1.2f;
    return (struct soq_view){(soq_buffer)(uintptr_t)p, 0, rows, cols, cols, SOQ_DTYPE_F32};
}

static int make_group(struct bench *b, struct soq_error *err)
{
    uint64_t tile = (uint64_t)TOKENS * b->width * 2;
    struct soq_kv_plane planes[2];
    struct soq_kv_group_desc desc = {
        .struct_size = sizeof desc,
        .kind = SOQ_GROUP_FULL,
        .n_layers = b->n_layers,
        .block_tokens = TOKENS,
        .max_blocks = (b->entries + TOKENS - 1) / TOKENS,
        .n_planes = 2,
        .plane_stride = sizeof planes[0],
        .planes = planes,
        .block_bytes = 2 * tile * b->n_layers * b->n_kv_heads,
    };
    struct soq_kv_plane packed[2];
    soq_buffer slab, packed_slab = 0;
    int rc = 0;

    for (int i = 0; i < 2; i++)
        planes[i] = (struct soq_kv_plane){
            .struct_size = sizeof planes[i],
            .role = i ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY,
            .heads = b->n_kv_heads,
            .width = b->width,
            .tokens_per_entry = 1,
            .alias = -1,
            .format = {
                .struct_size = sizeof planes[i].format, .kind = SOQ_FORMAT_PLAIN, .dtype = SOQ_DTYPE_F16, .tile_bytes = tile}};
    if (b->format)
        rc = make_packed(b, &desc, packed, &packed_slab, err);
    b->bytes = (double)(b->format ? desc.packed_bytes : desc.block_bytes) / TOKENS / b->n_layers;
    if (!rc)
        rc = b->ops->attention->group_create(b->self, &desc, &b->group, err);
    if (!rc && b->format)
        rc = b->ops->attention->group_slab(b->self, b->group, 1, 0, desc.max_blocks, packed_slab, err);
    if (!rc)
        rc = b->ops->memory->buffer_alloc(b->self, desc.block_bytes * desc.max_blocks, &slab, err);
    if (rc)
        return rc;
    for (uint64_t i = 0; i < desc.block_bytes * desc.max_blocks / 2; i++)
        ((uint16_t *)(uintptr_t)slab)[i] = (uint16_t)(0x3000 + i * 2654435761u % 0x800 + (i * 40503u >> 4) % 2 * 0x8000);
    return b->ops->attention->group_slab(b->self, b->group, 0, 0, desc.max_blocks, slab, err);
}

static void make_step(struct bench *b)
{
    uint32_t n_blocks = (b->entries + TOKENS - 1) / TOKENS, first = b->entries - b->rows;
    size_t rows = b->rows * sizeof(struct soq_step_row), edits = n_blocks * sizeof(struct soq_step_edit);
    size_t off_seqs = sizeof *b->step + rows, off_segments = off_seqs + sizeof(struct soq_step_seq);
    size_t off_edits = off_segments + sizeof(struct soq_step_segment), bytes = off_edits + edits;
    struct soq_step *step = calloc(1, bytes);

    *step = (struct soq_step){.struct_size = sizeof *step,
                              .total_bytes = (uint32_t)bytes,
                              .flags = SOQ_STEP_LINEAR,
                              .n_rows = b->rows,
                              .n_seqs = 1,
                              .n_segments = 1,
                              .n_edits = n_blocks,
                              .off_rows = sizeof *step,
                              .off_seqs = (uint32_t)off_seqs,
                              .off_segments = (uint32_t)off_segments,
                              .off_outputs = (uint32_t)off_edits,
                              .off_edits = (uint32_t)off_edits,
                              .off_copies = (uint32_t)off_edits};
    for (uint32_t i = 0; i < b->rows; i++)
        ((struct soq_step_row *)((uint8_t *)step + step->off_rows))[i] = (struct soq_step_row){
            .position = first + i, .entry = first + i, .parent = (int32_t)i - 1, .mass_line = i >= b->rows - b->mass_rows};
    *(struct soq_step_seq *)((uint8_t *)step + off_seqs) =
        (struct soq_step_seq){.n_cached = first, .n_rows = b->rows, .n_segments = 1};
    *(struct soq_step_segment *)((uint8_t *)step + off_segments) =
        (struct soq_step_segment){.n_layers = b->n_layers, .n_heads = b->n_kv_heads, .n_entries = b->entries};
    for (uint32_t i = 0; i < n_blocks; i++)
        ((struct soq_step_edit *)((uint8_t *)step + off_edits))[i] =
            (struct soq_step_edit){0, 0, i, i | (b->format && i < first / TOKENS ? 1u << SOQ_BLOCK_CLASS_SHIFT : 0)};
    b->step = step;
}

static double round_of(struct bench *b)
{
    struct soq_error err = SOQ_ERROR_INIT;
    double start = soq__clock_now();

    b->step->serial++;
    b->ops->begin(b->self, b->step, &err);
    for (uint32_t i = 0; i < CALLS; i++) {
        struct soq_attention_args args = {.struct_size = sizeof args,
                                          .layer = i % b->n_layers,
                                          .group = b->group,
                                          .n_heads = b->n_heads,
                                          .n_kv_heads = b->n_kv_heads,
                                          .head_dim_k = b->width,
                                          .head_dim_v = b->width,
                                          .scale = 0.125f,
                                          .q = b->q,
                                          .out = b->out,
                                          .mass = b->mass_rows ? (soq_buffer)(uintptr_t)b->mass : 0,
                                          .mass_stride = b->entries};

        b->ops->attention->attention(b->self, &args);
    }
    if (b->ops->end(b->self, &err))
        printf("%s\n", err.text);
    return soq__clock_now() - start;
}

static uint32_t number(int argc, char **argv, int i, uint32_t otherwise)
{
    return argc > i ? (uint32_t)atoi(argv[i]) : otherwise;
}

int main(int argc, char **argv)
{
    void *object = argc > 7 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const struct soq_plugin *plugin = object ? dlsym(object, SOQ_PLUGIN_SYMBOL) : NULL;
    struct soq_config config = {.struct_size = sizeof config, .get_int = get_int, .get_string = get_string};
    struct soq_error err = SOQ_ERROR_INIT;
    struct bench b = {.n_heads = number(argc, argv, 2, 1),
                      .n_kv_heads = number(argc, argv, 3, 1),
                      .width = number(argc, argv, 4, 1),
                      .entries = number(argc, argv, 5, 1),
                      .rows = number(argc, argv, 6, 1),
                      .n_layers = number(argc, argv, 8, 30),
                      .mass_rows = number(argc, argv, 9, 0),
                      .format = argc > 10 ? find_format(argv[10]) : NULL};
    struct soq_backend_params params = {.struct_size = sizeof params, .max_rows = b.rows, .max_slots = 1};
    double best = 1e9, seen;
    struct soq__pool *pool;
    struct soq__host host;

    if (!plugin || b.rows > b.entries || b.mass_rows > b.rows || (argc > 10 && !b.format)) {
        fprintf(stderr, "usage: %s PLUGIN.so HEADS KV_HEADS WIDTH ENTRIES ROWS THREADS [LAYERS [MASS_ROWS [FORMAT]]]\n%s\n",
                argv[0], argc > 7 && !object ? dlerror() : "");
        return 2;
    }
    threads = argv[7];
    b.q = matrix(b.rows, b.n_heads * b.width);
    b.out = matrix(b.rows, b.n_heads * b.width);
    b.mass = malloc((size_t)b.n_kv_heads * b.entries * sizeof *b.mass);
    b.ops = plugin->roles->ops;
    b.self = calloc(1, b.ops->instance_size + 64);
    soq__pool_create(&pool, &err);
    soq__host_init(&host, pool);
    if (b.ops->init(b.self, &host.services, &config, &params, &err) || make_group(&b, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    make_step(&b);
    for (int i = 0; i < ROUNDS; i++) {
        double t = round_of(&b) / CALLS;

        best = t < best ? t : best;
    }
    seen = (double)b.rows * (b.entries - (b.rows - 1) / 2.0) * b.n_heads;
    printf("%u/%u heads of %u, %u entries, %u rows, %s threads: %9.4f ms %7.2f GB/s %8.1f GFLOP/s\n", b.n_heads, b.n_kv_heads,
           b.width, b.entries, b.rows, threads, best * 1e3, 1e-9 * b.bytes * b.entries / best, 4e-9 * seen * b.width / best);
    return 0;
}
