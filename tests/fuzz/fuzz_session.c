/* Fuzzes the reader of session files: the parts of a file, and the cache of a sequence in it. The harness makes length and
 * checksum right, so that what lies behind them is reached; whatever is accepted must be a sequence that can be used. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cursor.h"
#include "base/hash.h"
#include "engine/session.h"
#include "kv/image.h"
#include "kv/internal.h"
#include "kv/swap.h"

#define P 8u
#define BLOCK 64u
#define PACKED 32u
#define GRID 16u
#define CONTEXT 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        abort();
}

/* ---- A cache in malloc's memory ------------------------------------------------------------------------------------------ */

static int buffer_alloc(void *self, uint64_t bytes, soq_buffer *out, struct soq_error *err)
{
    (void)self;
    (void)err;
    *out = (soq_buffer)(uintptr_t)malloc(bytes);
    return 0;
}

static void buffer_free(void *self, soq_buffer buffer)
{
    (void)self;
    free((void *)(uintptr_t)buffer);
}

static int buffer_write(void *self, soq_buffer dst, uint64_t offset, const void *src, uint64_t bytes, struct soq_error *err)
{
    (void)self;
    (void)err;
    memcpy((char *)(uintptr_t)dst + offset, src, bytes);
    return 0;
}

static int group_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *out, struct soq_error *err)
{
    (void)self;
    (void)err;
    *out = desc->index + 1;
    return 0;
}

static void group_free(void *self, soq_kv_group group)
{
    (void)self;
    (void)group;
}

static int group_slab(void *self, soq_kv_group group, uint32_t class, uint32_t first, uint32_t n, soq_buffer slab,
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

static const struct soq_memory_ops memory = {
    .struct_size = sizeof memory, .buffer_alloc = buffer_alloc, .buffer_free = buffer_free, .buffer_write = buffer_write};
static const struct soq_attention_ops attention = {
    .struct_size = sizeof attention, .group_create = group_create, .group_free = group_free, .group_slab = group_slab};
static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend, .domain = "host", .memory = &memory, .attention = &attention};
static const struct soq_kv_policy_ops policy_ops = {.struct_size = sizeof policy_ops, .state_size = 16};

/* A group whose policy selects by mass, and one with a window. */
static uint32_t layers[] = {0, 1};
static struct soq__kv_group_layout groups[] = {
    {.kind = SOQ_GROUP_FULL, .n_layers = 1, .layers = &layers[0], .n_heads = 2, .n_planes = 2, .block_bytes = BLOCK},
    {.kind = SOQ_GROUP_WINDOW,
     .policy = SOQ__KV_NO_POLICY,
     .pool = 1,
     .n_layers = 1,
     .layers = &layers[1],
     .n_heads = 2,
     .window = 16,
     .n_planes = 2,
     .block_bytes = BLOCK},
};
static struct soq__kv_part parts[] = {{.group = 0, .n_heads = 2}, {.group = 1, .n_heads = 2}};
static uint32_t first_part[] = {0, 1, 2};

/* The same for codecs that pack: one that packs all it can, under the policy, and one that keeps the last entries plain. */
static struct soq__kv_group_layout packing[] = {
    {.kind = SOQ_GROUP_FULL,
     .n_layers = 1,
     .layers = &layers[0],
     .n_heads = 2,
     .n_planes = 2,
     .block_bytes = BLOCK,
     .packs = true,
     .packed_pool = 1,
     .packed_bytes = PACKED,
     .grid = GRID},
    {.kind = SOQ_GROUP_FULL,
     .policy = SOQ__KV_NO_POLICY,
     .pool = 2,
     .n_layers = 1,
     .layers = &layers[1],
     .n_heads = 2,
     .n_planes = 2,
     .block_bytes = BLOCK,
     .packs = true,
     .packed_pool = 3,
     .packed_bytes = PACKED,
     .grid = GRID,
     .residual = P},
};
#define LAYOUT(g, pools, every)                                                                                                \
    {                                                                                                                          \
        .groups = g, .n_groups = 2, .n_pools = pools, .block_tokens = P, .n_layers = 2, .n_heads = 2, .grid = every,           \
        .n_views = 1, .parts = parts, .first_part = first_part                                                                 \
    }
static const struct soq__kv_layout layouts[] = {LAYOUT(groups, 2, 0), LAYOUT(packing, 4, GRID)};
static const struct soq__kv_owner owner = {.memory = &backend, .attention = &backend};
static const struct soq__kv_policy policy = {
    .ops = &policy_ops, .plan = {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS}, .name = "fuzz"};

/* Which blocks are packed follows from the length alone. */
static bool is_packed(const struct soq__kv_seq *seq, uint32_t g, uint32_t e)
{
    const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;

    return layout->packs && e / P * P + P + layout->residual <= seq->n_committed / GRID * GRID;
}

/* Everything that the next step and the next selection read. */
static void use(const struct soq__kv_seq *seq)
{
    struct soq_step_segment segments[8];
    uint32_t n = soq__kv_segments(seq, seq->n_committed + seq->n_tentative, segments, 8);

    must(n >= 2 && seq->n_committed <= CONTEXT);
    for (uint32_t i = 0; i < n; i++) {
        const struct soq_step_segment *s = &segments[i];

        must(s->first_entry + s->n_entries <= seq->n_committed);
        for (uint32_t e = s->first_entry; e < s->first_entry + s->n_entries; e++) {
            must(seq->groups[s->group].table[e / P] != SOQ_BLOCK_NONE);
            must((seq->groups[s->group].table[e / P] >> SOQ_BLOCK_CLASS_SHIFT != 0) == is_packed(seq, s->group, e));
            for (uint32_t h = 0; h < 2; h++)
                must(soq__kv_position(seq, s->group, 0, h, e) <= e);
        }
    }
}

static void load(const uint8_t *file, size_t size, const struct soq__kv_layout *layout)
{
    const struct soq__kv_cache_params params = {.limit = 64 << 20,
                                                .owners = &owner,
                                                .layout = layout,
                                                .policies = &policy,
                                                .n_policies = 1,
                                                .context = CONTEXT,
                                                .chunk = CONTEXT,
                                                .max_slots = 1};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__session_parts p;
    struct soq__kv_cache cache;
    struct soq__kv_seq seq;
    int64_t live = soq__alloc_live();

    must(soq__kv_cache_init(&cache, &params, &err) == 0 && soq__kv_seq_init(&seq, &cache, &err) == 0);
    if (soq__session_split(file, size, &p, &err) == 0) {
        if (soq__kv_image_load(&seq, p.image.at, p.image.left, &err) == 0) {
            must(soq__kv_swap_in(&seq, &err) == 0);
            use(&seq);
        } else {
            must(err.text[0] && seq.n_committed == 0);
        }
    }
    soq__kv_seq_done(&seq);
    must(cache.budget.used == 0);
    soq__kv_cache_done(&cache);
    must(soq__alloc_live() == live);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *file = malloc(size ? size : 1);

    if (size)
        memcpy(file, data, size);
    if (size >= 40) {
        struct soq__hash sum = soq__hash(file + 40, size - 40);

        soq__put_number(file + 16, size, 8);
        memcpy(file + 24, sum.bytes, sizeof sum.bytes);
    }
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        load(file, size, &layouts[i]);
    free(file);
    return 0;
}
