/* A KV cache without a model whose blocks are real memory: a full group and a windowed one in pools of their own, which may
 * pack. Blocks are written by the test, so that it can tell whose contents it finds. */
#ifndef SOQ_TESTS_KV_HOST_H
#define SOQ_TESTS_KV_HOST_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"
#include "kv/swap.h"

#define P 8u
#define BLOCK 4096u
#define PACKED 1024u /* bytes of a packed block */
#define GRID (2 * P)
#define SLAB (2ull << 20)
#define PER_SLAB (SLAB / BLOCK)

/* What the host's memory is called, and how often it is to fail. */
struct host_memory {
    int n_buffers;
    int fail_write, fail_read; /* so many until one fails; negative: never */
    bool fail_pack;
    uint32_t n_packed;                 /* blocks so far */
    const struct soq__kv_cache *cache; /* whose blocks are packed */
};

static struct host_memory host_memory = {.fail_write = -1, .fail_read = -1};

static inline int host_alloc(void *self, uint64_t bytes, soq_buffer *out, struct soq_error *err)
{
    void *p = malloc(bytes);

    (void)self;
    (void)err;
    cr_assert(p != NULL);
    memset(p, 0x5a, bytes);
    host_memory.n_buffers++;
    *out = (soq_buffer)(uintptr_t)p;
    return 0;
}

static inline void host_free(void *self, soq_buffer buffer)
{
    (void)self;
    host_memory.n_buffers--;
    free((void *)(uintptr_t)buffer);
}

static inline bool fails(int *in)
{
    if (*in < 0)
        return false;
    return (*in)-- == 0;
}

static inline int host_write(void *self, soq_buffer dst, uint64_t offset, const void *src, uint64_t bytes,
                             struct soq_error *err)
{
    (void)self;
    if (fails(&host_memory.fail_write)) {
        if (err)
            err->code = -SOQ_EDEVICE;
        return -SOQ_EDEVICE;
    }
    memcpy((char *)(uintptr_t)dst + offset, src, bytes);
    return 0;
}

static inline int host_read(void *self, soq_buffer src, uint64_t offset, void *dst, uint64_t bytes, struct soq_error *err)
{
    (void)self;
    if (fails(&host_memory.fail_read)) {
        if (err)
            err->code = -SOQ_EDEVICE;
        return -SOQ_EDEVICE;
    }
    memcpy(dst, (const char *)(uintptr_t)src + offset, bytes);
    return 0;
}

static inline int host_group(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *out, struct soq_error *err)
{
    (void)self;
    (void)err;
    *out = desc->index + 1;
    return 0;
}

static inline void host_group_free(void *self, soq_kv_group group)
{
    (void)self;
    (void)group;
}

static inline int host_slab(void *self, soq_kv_group group, uint32_t class, uint32_t first, uint32_t n, soq_buffer slab,
                            struct soq_error *err)
{
    (void)self;
    (void)group;
    (void)class;
    (void)first;
    (void)n;
    (void)slab;
    (void)err;
    return 0;
}

static inline unsigned char *block_at(const struct soq__kv_cache *c, uint32_t g, soq_block_ref block)
{
    uint64_t offset;
    soq_buffer slab = soq__kv_block_place(soq__kv_pool_of(&c->groups[g], block), block, &offset);

    return (unsigned char *)(uintptr_t)slab + offset;
}

/* Where the number of entry e of a block stands: packed ones have the last first. */
static inline unsigned char *number_at(const struct soq__kv_cache *c, uint32_t g, soq_block_ref block, uint32_t e)
{
    return block_at(c, g, block) + (block >> SOQ_BLOCK_CLASS_SHIFT ? P - 1 - e % P : e % P) * sizeof(int32_t);
}

static inline int host_pack(void *self, const struct soq_kv_pack_args *args, struct soq_error *err)
{
    uint32_t g = (uint32_t)args->group - 1;

    (void)self;
    if (host_memory.fail_pack)
        return soq__fail(err, SOQ_EDEVICE, "no packing today");
    for (uint32_t i = 0; i < args->n; i++)
        for (uint32_t e = 0; e < P; e++)
            memcpy(number_at(host_memory.cache, g, args->dst[i], e), number_at(host_memory.cache, g, args->src[i], e),
                   sizeof(int32_t));
    host_memory.n_packed += args->n;
    return 0;
}

static const struct soq_memory_ops host_memory_ops = {
    .struct_size = sizeof host_memory_ops,
    .buffer_alloc = host_alloc,
    .buffer_free = host_free,
    .buffer_write = host_write,
    .buffer_read = host_read,
};
static const struct soq_attention_ops host_attention_ops = {
    .struct_size = sizeof host_attention_ops,
    .group_create = host_group,
    .group_free = host_group_free,
    .group_slab = host_slab,
    .kv_pack = host_pack,
};
/* The same memory as the host's, and as a device's, which is only read through the backend. */
static const struct soq_backend_ops host_backend = {
    .struct_size = sizeof host_backend, .domain = "host", .memory = &host_memory_ops, .attention = &host_attention_ops};
static const struct soq_backend_ops device_backend = {
    .struct_size = sizeof device_backend, .domain = "device", .memory = &host_memory_ops, .attention = &host_attention_ops};

static inline int keep_all(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan, struct soq_error *err)
{
    (void)self;
    (void)shape;
    (void)plan;
    (void)err;
    return 0;
}

static const struct soq_kv_policy_ops full_policy = {.struct_size = sizeof full_policy, .describe = keep_all};

struct kv_host {
    struct soq__kv_group_layout groups[2];
    uint32_t layer_numbers[2];
    struct soq__kv_part parts[2];
    uint32_t first_part[3];
    struct soq__kv_layout layout;
    struct soq__kv_owner owners[2];
    struct soq__kv_policy policy;
    struct soq__kv_cache cache;
};

struct kv_host_params {
    uint32_t window; /* of the second group; 0: there is none */
    uint64_t limit, swap;
    uint32_t context, slots;
    bool device; /* the second group's blocks are a device's */
    bool packs;  /* every GRID tokens */
    uint32_t residual;
};

static inline void kv_host_init(struct kv_host *k, const struct kv_host_params *params)
{
    struct soq__kv_cache_params p = {
        .limit = params->limit,
        .swap_limit = params->swap,
        .owners = k->owners,
        .layout = &k->layout,
        .policies = &k->policy,
        .n_policies = 1,
        .context = params->context,
        .chunk = params->context,
        .max_slots = params->slots,
    };
    struct soq_error err = SOQ_ERROR_INIT;

    *k = (struct kv_host){.layer_numbers = {0, 1}, .first_part = {0, 1, 2}};
    host_memory = (struct host_memory){.fail_write = -1, .fail_read = -1};
    k->policy = (struct soq__kv_policy){.ops = &full_policy, .plan = {.struct_size = sizeof k->policy.plan}, .name = "full"};
    k->owners[0] = (struct soq__kv_owner){.memory = &host_backend, .attention = &host_backend};
    k->owners[1] = (struct soq__kv_owner){.memory = &device_backend, .attention = &device_backend};
    for (uint32_t g = 0; g < 2; g++) {
        k->groups[g] = (struct soq__kv_group_layout){
            .kind = g ? SOQ_GROUP_WINDOW : SOQ_GROUP_FULL,
            .owner = g && params->device,
            .policy = g ? SOQ__KV_NO_POLICY : 0,
            .pool = g,
            .n_layers = 1,
            .layers = &k->layer_numbers[g],
            .n_heads = 1,
            .window = g ? params->window : 0,
            .n_planes = 2,
            .block_bytes = BLOCK,
            .packs = params->packs,
            .packed_pool = params->packs ? (params->window ? 2 : 1) + g : 0,
            .packed_bytes = params->packs ? PACKED : BLOCK,
            .grid = params->packs ? GRID : 0,
            .residual = params->residual,
        };
        k->parts[g] = (struct soq__kv_part){.group = g, .n_heads = 1};
    }
    k->layout = (struct soq__kv_layout){
        .groups = k->groups,
        .n_groups = params->window ? 2 : 1,
        .n_pools = (params->window ? 2u : 1u) * (params->packs ? 2u : 1u),
        .grid = params->packs ? GRID : 0,
        .block_tokens = P,
        .n_layers = params->window ? 2 : 1,
        .n_heads = 1,
        .n_views = 1,
        .parts = k->parts,
        .first_part = k->first_part,
    };
    cr_assert_eq(soq__kv_cache_init(&k->cache, &p, &err), 0, "%s", err.text);
    host_memory.cache = &k->cache;
}

static inline void kv_host_done(struct kv_host *k)
{
    soq__kv_cache_done(&k->cache);
    cr_expect_eq(host_memory.n_buffers, 0);
}

/* What a row computes of its token: its place in the block holds it. */
static inline void write_rows(struct soq__kv_seq *seq, const int32_t *tokens, uint32_t first, uint32_t last)
{
    for (uint32_t g = 0; g < seq->cache->n_groups; g++)
        for (uint32_t e = first; e < last; e++) {
            int32_t value = tokens[e] * 2 + (int32_t)g;

            memcpy(number_at(seq->cache, g, seq->groups[g].table[e / P], e), &value, sizeof value);
        }
}

/* Copies that wait for the next step are done as a backend would. */
static inline void deliver(struct soq__kv_cache *c)
{
    for (uint32_t i = 0; i < c->n_copies; i++) {
        const struct soq_step_copy *copy = &c->copies[i];

        memcpy(block_at(c, copy->group, copy->dst), block_at(c, copy->group, copy->src), BLOCK);
    }
    soq__kv_delivered(c);
}

/* Computes tokens [n_committed, n) without committing them. */
static inline void compute(struct soq__kv_seq *seq, const int32_t *tokens, uint32_t n)
{
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t first = seq->n_committed;

    seq->n_prompt = n;
    cr_assert_eq(soq__kv_prepare(seq, n - first, &err), 0, "%s", err.text);
    deliver(seq->cache);
    write_rows(seq, tokens, first, n);
}

static inline void commit(struct soq__kv_seq *seq)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(soq__kv_commit(seq, seq->n_tentative, &err), 0, "%s", err.text);
}

/* Computes and commits them, at most `step` at a time. */
static inline void advance(struct soq__kv_seq *seq, const int32_t *tokens, uint32_t n, uint32_t step)
{
    while (seq->n_committed < n) {
        uint32_t left = n - seq->n_committed, most;

        seq->n_prompt = n;
        most = soq__kv_max_rows(seq);
        left = left < step ? left : step;
        compute(seq, tokens, seq->n_committed + (left < most ? left : most));
        seq->n_prompt = n;
        commit(seq);
    }
}

/* Every entry that a row at the end may see has the token's contents. */
static inline void expect_contents(const struct soq__kv_seq *seq, const int32_t *tokens, uint32_t n)
{
    cr_assert_eq(seq->n_committed, n, "%u entries, not %u", seq->n_committed, n);
    for (uint32_t g = 0; g < seq->cache->n_groups; g++) {
        uint32_t window = seq->cache->groups[g].layout->window, from = window && n + 1 > window ? n + 1 - window : 0;

        for (uint32_t e = from; e < n; e++) {
            int32_t value;

            cr_assert_neq(seq->groups[g].table[e / P], SOQ_BLOCK_NONE, "group %u: entry %u is not there", g, e);
            memcpy(&value, number_at(seq->cache, g, seq->groups[g].table[e / P], e), sizeof value);
            cr_assert_eq(value, tokens[e] * 2 + (int32_t)g, "group %u: entry %u is another's", g, e);
        }
    }
}

#endif
