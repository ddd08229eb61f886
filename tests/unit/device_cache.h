/* A KV cache on a device whose keys and values the test knows: what the tests of attention and of eviction share. */
#ifndef SOQ_TESTS_DEVICE_CACHE_H
#define SOQ_TESTS_DEVICE_CACHE_H

#include "device_support.h"

struct shape {
    uint32_t n_heads, n_kv_heads, dk, dv, layers, block_tokens, dtype;
    float softcap;
    uint32_t window, sinks;
    bool sink_logits;
};

/* A cache of one sequence whose keys and values the test knows, over a group whose blocks lie backwards in their slabs. */
struct cache {
    struct device d;
    struct shape s;
    soq_kv_group group;
    soq_buffer slabs[8];
    uint32_t n_slabs, n_blocks, n_entries;
    struct matrix q, k, v; /* of every position */
    soq_weight sinks;
    float sink_values[64];
};

enum { LAYER = 1 };

static inline uint64_t cache_describe(const struct shape *s, uint32_t n_blocks, struct soq_kv_plane planes[2],
                                      struct soq_kv_group_desc *desc)
{
    uint64_t size = s->dtype == SOQ_DTYPE_F32 ? 4 : 2;

    *desc = (struct soq_kv_group_desc){
        .struct_size = sizeof *desc,
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

        planes[i] = (struct soq_kv_plane){
            .struct_size = sizeof planes[0],
            .role = i ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY,
            .heads = s->n_kv_heads,
            .width = width,
            .tokens_per_entry = 1,
            .alias = -1,
            .format = {.struct_size = sizeof planes[0].format,
                       .kind = SOQ_FORMAT_PLAIN,
                       .dtype = s->dtype,
                       .tail_dtype = s->dtype,
                       .tile_bytes = bytes},
        };
        desc->block_bytes += bytes * s->layers * s->n_kv_heads;
    }
    return desc->block_bytes;
}

/* Blocks over n_slabs slabs, filled with NaN. */
static inline void cache_add_slabs(struct cache *c, uint64_t block_bytes, uint32_t n_slabs)
{
    uint32_t each = (c->n_blocks + n_slabs - 1) / n_slabs;
    uint8_t *nan = malloc(each * block_bytes);
    struct soq_error err = SOQ_ERROR_INIT;

    memset(nan, 0xff, each * block_bytes);
    for (uint32_t first = 0; first < c->n_blocks; first += each) {
        uint32_t n = c->n_blocks - first < each ? c->n_blocks - first : each;

        c->slabs[c->n_slabs] = device_buffer(&c->d, n * block_bytes);
        cr_assert_eq(c->d.ops->memory->buffer_write(c->d.self, c->slabs[c->n_slabs], 0, nan, n * block_bytes, &err), 0);
        cr_assert_eq(c->d.ops->attention->group_slab(c->d.self, c->group, 0, first, n, c->slabs[c->n_slabs], &err), 0, "%s",
                     err.text);
        c->n_slabs++;
    }
    free(nan);
}

static inline void cache_open(struct cache *c, struct shape s, uint32_t n_entries, uint32_t n_slabs)
{
    struct soq_kv_plane planes[2];
    struct soq_kv_group_desc desc;
    struct soq_error err = SOQ_ERROR_INIT;

    *c = (struct cache){.s = s, .n_entries = n_entries, .n_blocks = (n_entries + s.block_tokens - 1) / s.block_tokens};
    device_open(&c->d, 512);
    cache_describe(&s, c->n_blocks, planes, &desc);
    cr_assert_eq(c->d.ops->attention->group_create(c->d.self, &desc, &c->group, &err), 0, "%s", err.text);
    cache_add_slabs(c, desc.block_bytes, n_slabs);
    c->q = device_matrix(&c->d, n_entries, s.n_heads * s.dk, 0, 1);
    c->k = device_matrix(&c->d, n_entries, s.n_kv_heads * s.dk, 5, 2);
    c->v = device_matrix(&c->d, n_entries, s.n_kv_heads * s.dv, 0, 3);
    for (uint32_t h = 0; h < s.n_heads; h++)
        c->sink_values[h] = 0.5f * (float)h - 1.0f;
    c->sinks = s.sink_logits ? device_vector(&c->d, c->sink_values, s.n_heads) : 0;
}

static inline void cache_close(struct cache *c)
{
    struct device *d = &c->d;

    d->ops->memory->weight_free(d->self, c->sinks);
    d->ops->attention->group_free(d->self, c->group);
    for (uint32_t i = 0; i < c->n_slabs; i++)
        d->ops->memory->buffer_free(d->self, c->slabs[i]);
    device_matrix_done(d, &c->q);
    device_matrix_done(d, &c->k);
    device_matrix_done(d, &c->v);
    device_close(d);
}

static inline struct soq_step_segment cache_segment(uint32_t first, uint32_t n)
{
    return (struct soq_step_segment){.n_layers = UINT32_MAX, .n_heads = UINT32_MAX, .first_entry = first, .n_entries = n};
}

static inline struct soq_attention_args cache_args(const struct cache *c)
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
    };
}

/* Appends positions [first, first + n) and, given a matrix, attends from them; results go to the same rows of out. */
static inline void cache_chunk(struct cache *c, uint32_t first, uint32_t n, struct matrix *out)
{
    struct device_step *step = device_step(n, first);
    struct soq_kv_append_args append = {sizeof append, LAYER, c->group, device_rows(&c->k, first, n),
                                        device_rows(&c->v, first, n)};
    struct soq_attention_args args = cache_args(c);

    if (first == 0)
        for (uint32_t i = 0; i < c->n_blocks; i++)
            step->edits[step->step.n_edits++] = (struct soq_step_edit){0, 0, i, c->n_blocks - 1 - i};
    step->segments[0] = cache_segment(0, first + n);
    step->step.n_segments = step->seqs[0].n_segments = 1;
    device_begin(&c->d, step);
    cr_assert_eq(c->d.ops->attention->kv_append(c->d.self, &append), 0);
    if (out) {
        args.q = device_rows(&c->q, first, n);
        args.out = device_rows(out, first, n);
        cr_assert_eq(c->d.ops->attention->attention(c->d.self, &args), 0);
    }
    device_end(&c->d);
    free(step);
}

#endif
