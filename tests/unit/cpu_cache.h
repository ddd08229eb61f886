/* A cache of one sequence for the tests of the CPU backend: a group, its slab, and keys, values and queries that the test
 * knows. */
#ifndef SOQ_TESTS_CPU_CACHE_H
#define SOQ_TESTS_CPU_CACHE_H

#include "cpu_support.h"

struct shape {
    uint32_t n_heads, n_kv_heads, dk, dv, layers, block_tokens, dtype;
    float softcap;
    uint32_t window, sinks;
    bool sink_logits;
};

/* A cache of one sequence whose keys and values the test knows, over a group whose blocks lie in the slab backwards. */
struct cache {
    struct cpu_fixture f;
    struct shape s;
    soq_kv_group group;
    soq_buffer slab;
    uint32_t n_blocks, n_entries;
    struct cpu_matrix q, k, v; /* of every position */
    soq_weight sinks;
    float sink_values[64];
};

enum { LAYER = 1 };

/* A group of that shape, whose planes go to planes[2]. */
static inline struct soq_kv_group_desc cache_desc(const struct shape *s, uint32_t n_blocks, struct soq_kv_plane *planes)
{
    uint64_t size = s->dtype == SOQ_DTYPE_F32 ? 4 : 2;
    struct soq_kv_group_desc desc = {
        .struct_size = sizeof desc,
        .kind = SOQ_GROUP_FULL,
        .n_layers = s->layers,
        .block_tokens = s->block_tokens,
        .max_blocks = n_blocks,
        .n_planes = 2,
        .plane_stride = sizeof planes[0],
        .planes = planes,
    };

    for (int i = 0; i < 2; i++) {
        uint32_t width = i ? s->dv : s->dk;
        uint64_t bytes = (s->block_tokens * width * size + 7) / 8 * 8;

        planes[i] = (struct soq_kv_plane){.struct_size = sizeof planes[i],
                                          .role = i ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY,
                                          .heads = s->n_kv_heads,
                                          .width = width,
                                          .tokens_per_entry = 1,
                                          .alias = -1,
                                          .format = {.struct_size = sizeof planes[i].format,
                                                     .kind = SOQ_FORMAT_PLAIN,
                                                     .dtype = s->dtype,
                                                     .tail_dtype = s->dtype,
                                                     .tile_bytes = bytes}};
        desc.block_bytes += bytes * s->layers * s->n_kv_heads;
    }
    return desc;
}

static inline void open_cache_with(struct cache *c, const char *variant, const char *threads, const char *activations,
                                   struct shape s, uint32_t n_entries)
{
    struct soq_kv_plane planes[2];
    struct soq_kv_group_desc desc = cache_desc(&s, (n_entries + s.block_tokens - 1) / s.block_tokens, planes);
    struct soq_error err = SOQ_ERROR_INIT;

    c->s = s;
    c->n_entries = n_entries;
    c->n_blocks = desc.max_blocks;
    cpu_setup(&c->f, variant, threads, activations, "1", 512);
    cr_assert_eq(c->f.ops->attention->group_create(c->f.self, &desc, &c->group, &err), 0, "%s", err.text);
    cr_assert_eq(c->f.ops->memory->buffer_alloc(c->f.self, desc.block_bytes * c->n_blocks, &c->slab, &err), 0);
    memset((void *)(uintptr_t)c->slab, 0xff, desc.block_bytes * c->n_blocks);
    cr_assert_eq(c->f.ops->attention->group_slab(c->f.self, c->group, 0, 0, c->n_blocks, c->slab, &err), 0, "%s", err.text);
    c->q = cpu_matrix(n_entries, s.n_heads * s.dk, 0, 1);
    c->k = cpu_matrix(n_entries, s.n_kv_heads * s.dk, 5, 2);
    c->v = cpu_matrix(n_entries, s.n_kv_heads * s.dv, 0, 3);
    for (uint32_t h = 0; h < s.n_heads; h++)
        c->sink_values[h] = 0.5f * (float)h - 1.0f;
    c->sinks = s.sink_logits ? cpu_vector(&c->f, c->sink_values, s.n_heads) : 0;
}

static inline void open_cache(struct cache *c, const char *variant, const char *threads, struct shape s, uint32_t n_entries)
{
    open_cache_with(c, variant, threads, "f32", s, n_entries);
}

static inline void close_cache(struct cache *c)
{
    c->f.ops->memory->weight_free(c->f.self, c->sinks);
    c->f.ops->attention->group_free(c->f.self, c->group);
    c->f.ops->memory->buffer_free(c->f.self, c->slab);
    cpu_teardown(&c->f);
    cpu_matrix_done(&c->q);
    cpu_matrix_done(&c->k);
    cpu_matrix_done(&c->v);
}

static inline struct soq_view rows_of(const struct cpu_matrix *m, uint32_t first, uint32_t n)
{
    struct soq_view view = m->view;

    view.offset += (uint64_t)first * view.row_stride * sizeof(float);
    view.rows = n;
    return view;
}

/* Attention of positions [first, first + n), to the same rows of out. */
static inline struct soq_attention_args args_of(const struct cache *c, uint32_t first, uint32_t n, const struct cpu_matrix *out)
{
    return (struct soq_attention_args){
        .struct_size = sizeof(struct soq_attention_args),
        .layer = LAYER,
        .group = c->group,
        .n_heads = c->s.n_heads,
        .n_kv_heads = c->s.n_kv_heads,
        .head_dim_k = c->s.dk,
        .head_dim_v = c->s.dv,
        .scale = 0.7f,
        .softcap = c->s.softcap,
        .window = c->s.window,
        .sinks = c->s.sinks,
        .sink_logits = c->sinks,
        .q = rows_of(&c->q, first, n),
        .out = rows_of(out, first, n),
    };
}

static inline struct soq_step_segment segment(uint32_t first, uint32_t n)
{
    return (struct soq_step_segment){.n_layers = UINT32_MAX, .n_heads = UINT32_MAX, .first_entry = first, .n_entries = n};
}

#endif
