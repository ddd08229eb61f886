/* The world of test_kv_schedules.c: sequences and what a model of them says, a backend that holds one number per entry,
 * policies that keep everything, that mask and that select, and codecs that pack or do not. */
#ifndef SOQ_TESTS_KV_SCHEDULE_WORLD_H
#define SOQ_TESTS_KV_SCHEDULE_WORLD_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/cache.h"
#include "kv/swap.h"

#define P 4u
#define CONTEXT 48u
#define N_SEQS 5
#define N_LAYERS 16u
#define N_HEADS 2u
#define N_LINES (N_LAYERS * N_HEADS)
#define GROUPS_MAX 16
#define POOLS_MAX 32
#define N_BLOCKS 1024
#define WINDOW 9u
#define SINKS 3u
#define MASK 8u /* positions beside the sinks */
#define CHUNK 11u
#define EVERY 5u
#define QUERIES 3u
#define TILE ((uint64_t)1 << 16)   /* bytes; two planes of 16 are a slab */
#define PACKED ((uint64_t)1 << 14) /* bytes of a packed tile */
#define GRID 8u
#define RESIDUAL 4u
#define N_SLABS 2048

enum { FULL, BY_HEAD, ALL_ROWS, LAST_ROWS, MASKED, BY_SLOT, LAST_ALONE, SLOT_ALONE, N_POLICIES };

/* Even layers have the model's own window; the heads of the others: */
static const uint32_t head_policy[N_LAYERS][N_HEADS] = {
    [1] = {FULL, FULL},     [3] = {BY_HEAD, BY_HEAD},  [5] = {ALL_ROWS, ALL_ROWS},  [7] = {LAST_ROWS, LAST_ROWS},
    [9] = {MASKED, MASKED}, [11] = {BY_SLOT, BY_SLOT}, [13] = {MASKED, LAST_ALONE}, [15] = {SLOT_ALONE, FULL}};

/* How layers are stored: the keys' codec, the values'. */
enum { PLAIN, PACKING, HOLDING_BACK, N_CODECS };
#define ALL(codec)                                                                                                             \
    {                                                                                                                          \
        codec, codec, codec, codec, codec, codec, codec, codec, codec, codec, codec, codec, codec, codec, codec, codec         \
    }
static const uint32_t layer_codecs[][N_LAYERS] = {
    ALL(PLAIN),
    ALL(PACKING),
    ALL(HOLDING_BACK),
    {PLAIN, PACKING, PACKING, PLAIN, HOLDING_BACK, PACKING, PACKING, HOLDING_BACK, PLAIN, PACKING, PLAIN, PACKING, PLAIN,
     PACKING, PLAIN, HOLDING_BACK},
};
static const uint32_t *stored_as; /* a line of these */

/* Entries below are packed in such a layer when n are committed. */
static uint32_t packed_to(uint32_t codec, uint32_t n)
{
    uint32_t residual = codec == HOLDING_BACK ? RESIDUAL : 0;

    return codec == PLAIN || n / GRID * GRID < residual ? 0 : n / GRID * GRID - residual;
}

/* LAST_ALONE and SLOT_ALONE do for one head of a layer what the others do for both. */
static uint32_t kind_of(uint32_t policy)
{
    return policy == LAST_ALONE ? LAST_ROWS : policy == SLOT_ALONE ? BY_SLOT : policy;
}

static bool selects(uint32_t layer, uint32_t head)
{
    return layer % 2 && head_policy[layer][head] != FULL && head_policy[layer][head] != MASKED;
}

static uint32_t state;

static uint32_t roll(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

/* ---- The sequences ------------------------------------------------------------------------------------------------------- */

struct held {
    uint32_t n, positions[CONTEXT];
};

static struct soq__kv_layout layout;
static struct soq__kv_cache cache;
static struct actor {
    struct soq__kv_seq seq;
    bool there;
    uint32_t promised; /* entries; 0: nothing */
    uint32_t rows;     /* in the step in hand */
    uint32_t values[CONTEXT];
    struct held held[N_LAYERS][N_HEADS]; /* of layers whose policy selects */
    uint32_t sums_from;                  /* LAST_ROWS: the first row that is summed up; CONTEXT: none */
} actors[N_SEQS], *committing;           /* the one whose policies are asked */

/* What the row at r gives to position p, in units of mass. */
static uint64_t given(uint32_t r, uint32_t p)
{
    return p <= r ? (r * 31 + p * 17) % 13 + 1 : 0;
}

/* Rows whose mass counts towards the next selection. */
static uint64_t sum_for(const struct actor *a, uint32_t policy, uint32_t position, uint32_t n)
{
    uint64_t sum = 0;

    for (uint32_t r = policy == ALL_ROWS ? 0 : a->sums_from; r < n; r++)
        sum += given(r, position);
    return sum;
}

/* ---- The backend --------------------------------------------------------------------------------------------------------- */

struct entry {
    uint32_t value, position;
    bool coded; /* it has been packed */
};

static struct entry stored[POOLS_MAX][N_BLOCKS][N_LINES][P]; /* by pool; [layer in group][head] */
static bool present[POOLS_MAX][N_BLOCKS];
static soq_block_ref tables[N_SEQS][GROUPS_MAX][CONTEXT / P];
static bool gather_fails, pack_fails;
static uint64_t n_coded, n_coded_again; /* entries, all lines counted */
static struct slab {
    soq_buffer buffer; /* 0: not there */
    uint32_t pool, first;
} slabs[N_SLABS];

static uint32_t pool_of(uint32_t g, uint32_t class)
{
    return class ? layout.groups[g].packed_pool : layout.groups[g].pool;
}

/* The entries of a block of a group: [line][P]. */
static struct entry (*block_of(uint32_t g, soq_block_ref block))[P]
{
    uint32_t class = block >> SOQ_BLOCK_CLASS_SHIFT, index = block & SOQ_BLOCK_INDEX_MASK;

    cr_assert(class < 2 && (!class || layout.groups[g].packs), "group %u: block %x", g, block);
    cr_assert(present[pool_of(g, class)][index], "group %u: block %x: no such slab", g, block);
    return stored[pool_of(g, class)][index];
}

/* The entries of the block at `offset` of a slab; NULL: the buffer is none. */
static void *block_at(soq_buffer buffer, uint64_t offset)
{
    for (uint32_t i = 0; i < N_SLABS; i++)
        if (slabs[i].buffer == buffer) {
            uint64_t bytes = cache.pools[slabs[i].pool].block_bytes;

            cr_assert_eq(offset % bytes, 0);
            return stored[slabs[i].pool][slabs[i].first + offset / bytes];
        }
    return NULL;
}

static int buffer_alloc(void *self, uint64_t bytes, soq_buffer *out, struct soq_error *err)
{
    (void)self;
    (void)err;
    *out = (soq_buffer)(uintptr_t)calloc(1, bytes);
    return *out ? 0 : -SOQ_ENOMEM;
}

static void buffer_free(void *self, soq_buffer buffer)
{
    (void)self;
    free((void *)(uintptr_t)buffer);
}

/* Of blocks only what stands for them is moved: stored[pool][block]. */
static int buffer_read(void *self, soq_buffer src, uint64_t offset, void *dst, uint64_t bytes, struct soq_error *err)
{
    const void *block = block_at(src, offset);

    (void)self;
    (void)err;
    if (block)
        memcpy(dst, block, sizeof stored[0][0]);
    else
        memcpy(dst, (const char *)(uintptr_t)src + offset, bytes);
    return 0;
}

static int buffer_write(void *self, soq_buffer dst, uint64_t offset, const void *src, uint64_t bytes, struct soq_error *err)
{
    void *block = block_at(dst, offset);

    (void)self;
    (void)bytes;
    (void)err;
    cr_assert_not_null(block, "only blocks are written");
    memcpy(block, src, sizeof stored[0][0]);
    return 0;
}

static int group_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *out, struct soq_error *err)
{
    (void)self;
    (void)err;
    if (desc->storage)
        cr_assert_eq(layout.groups[desc->storage - 1].pool, layout.groups[desc->index].pool);
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
    uint32_t pool = pool_of((uint32_t)group - 1, class), at = 0;

    (void)self;
    (void)err;
    cr_assert_leq(first + n, N_BLOCKS);
    for (uint32_t i = first; i < first + n; i++)
        present[pool][i] = slab != 0;
    while (slab ? slabs[at].buffer : slabs[at].pool != pool || slabs[at].first != first || !slabs[at].buffer)
        cr_assert_lt(++at, N_SLABS);
    slabs[at] = (struct slab){slab, pool, first};
    return 0;
}

static int kv_gather(void *self, const struct soq_kv_gather_args *args, struct soq_error *err)
{
    uint32_t index = (uint32_t)args->group - 1, n_lines = layout.groups[index].n_layers * layout.groups[index].n_heads;

    (void)self;
    if (gather_fails)
        return soq__fail(err, SOQ_EINTERNAL, "no gather today");
    for (uint32_t line = 0; line < n_lines; line++)
        for (uint32_t i = 0; i < args->n_keep; i++) {
            uint32_t from = args->keep[(size_t)line * args->n_keep + i], to = args->dst_first + i;

            cr_assert(from < args->n_src * P && to < args->n_dst * P);
            cr_assert_eq(args->dst[to / P] >> SOQ_BLOCK_CLASS_SHIFT, 0);
            block_of(index, args->dst[to / P])[line][to % P] = block_of(index, args->src[from / P])[line][from % P];
        }
    return 0;
}

/* A full block: what it is said to hold is what was written. */
static void pack_block(uint32_t index, const struct soq_kv_pack_args *args, uint32_t i)
{
    const struct soq__kv_group_layout *g = &layout.groups[index];
    struct entry(*src)[P] = block_of(index, args->src[i]), (*dst)[P] = block_of(index, args->dst[i]);
    bool anywhere = args->first_position[i] == UINT32_MAX;

    cr_assert(args->src[i] >> SOQ_BLOCK_CLASS_SHIFT == 0 && args->dst[i] >> SOQ_BLOCK_CLASS_SHIFT == 1);
    cr_assert_lt(args->skip[i], P);
    cr_assert(selects(g->layers[0], g->first_head) || !(anywhere || args->skip[i]));
    for (uint32_t line = 0; line < g->n_layers * g->n_heads; line++)
        for (uint32_t e = args->skip[i]; e < P; e++) {
            cr_assert(anywhere || src[line][e].position == args->first_position[i] + e);
            n_coded++;
            n_coded_again += src[line][e].coded;
            dst[line][e] = src[line][e];
            dst[line][e].coded = true;
        }
}

static int kv_pack(void *self, const struct soq_kv_pack_args *args, struct soq_error *err)
{
    (void)self;
    if (pack_fails)
        return soq__fail(err, SOQ_EINTERNAL, "no packing today");
    for (uint32_t i = 0; i < args->n; i++)
        pack_block((uint32_t)args->group - 1, args, i);
    return 0;
}

static const struct soq_memory_ops memory = {.struct_size = sizeof memory,
                                             .buffer_alloc = buffer_alloc,
                                             .buffer_free = buffer_free,
                                             .buffer_read = buffer_read,
                                             .buffer_write = buffer_write};
static const struct soq_attention_ops attention = {.struct_size = sizeof attention,
                                                   .group_create = group_create,
                                                   .group_free = group_free,
                                                   .group_slab = group_slab,
                                                   .kv_gather = kv_gather,
                                                   .kv_pack = kv_pack};
static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend, .domain = "test", .memory = &memory, .attention = &attention};

/* ---- The policies -------------------------------------------------------------------------------------------------------- */

static bool select_fails;

/* Entries that a head keeps. */
static uint32_t capacity_of(uint32_t policy, uint32_t head)
{
    return policy == BY_HEAD ? 5 + 6 * head : policy == ALL_ROWS ? 8 : policy == LAST_ROWS ? 13 : 10;
}

static uint32_t rank(uint32_t policy, const struct soq_kv_head *h, uint32_t i)
{
    if (policy == BY_SLOT) /* the sinks, then the newest */
        return h->positions[i] < SINKS ? UINT32_MAX : h->positions[i];
    return policy == BY_HEAD ? h->positions[i] * 2654435761u >> 8 : (uint32_t)(h->mass[i] * (double)SOQ_MASS_ONE);
}

/* What the policy is shown is what the model of the sequence holds. */
static void check_head(uint32_t policy, const struct soq_kv_selection *s, uint32_t head, const struct soq_kv_head *h)
{
    const struct held *held = &committing->held[s->layer][head];

    cr_assert_eq(h->n, held->n, "layer %u, head %u: %u entries, not %u", s->layer, head, h->n, held->n);
    for (uint32_t i = 0; i < h->n; i++) {
        uint64_t sum = !h->mass ? 0 : sum_for(committing, policy, held->positions[i], s->n_positions);

        cr_assert_eq(h->positions[i], held->positions[i]);
        cr_assert(h->mass || policy == BY_HEAD || policy == BY_SLOT);
        if (h->mass)
            cr_assert_eq((uint64_t)(h->mass[i] * (double)SOQ_MASS_ONE), sum, "policy %u, position %u at %u: mass %g, not %u",
                         policy, h->positions[i], s->n_positions, h->mass[i] * (double)SOQ_MASS_ONE, (uint32_t)sum);
    }
}

/* Keeps those with the highest ranks, lower positions first. */
static void keep_best(uint32_t policy, struct soq_kv_head *h, uint32_t capacity)
{
    uint32_t n = 0;

    if (h->n <= capacity)
        return;
    for (uint32_t i = 0; i < h->n; i++) {
        uint32_t better = 0;

        for (uint32_t j = 0; j < h->n; j++)
            better += rank(policy, h, j) > rank(policy, h, i) || (rank(policy, h, j) == rank(policy, h, i) && j < i);
        if (better < capacity)
            h->keep[n++] = i;
    }
    h->n_keep = n;
}

static int select_entries(void *self, void *policy_state, const struct soq_kv_selection *s, struct soq_error *err)
{
    uint32_t policy = *(uint32_t *)self;

    (void)policy_state;
    if (select_fails && s->layer == N_LAYERS - 1)
        return soq__fail(err, SOQ_EINVAL, "no selection today");
    for (uint32_t head = 0, at = 0; head < N_HEADS; head++) {
        struct soq_kv_head *h = (struct soq_kv_head *)(void *)((char *)s->heads + (size_t)at * s->head_stride);

        if (head_policy[s->layer][head] != policy)
            continue;
        cr_assert_lt(at++, s->n_heads);
        check_head(kind_of(policy), s, head, h);
        keep_best(kind_of(policy), h, capacity_of(kind_of(policy), head));
    }
    return 0;
}

static uint64_t budget(const void *self, uint32_t layer, uint32_t n, uint32_t n_prompt)
{
    uint32_t policy = *(const uint32_t *)self;
    uint64_t all = 0;

    (void)n;
    (void)n_prompt;
    for (uint32_t head = 0; head < N_HEADS; head++)
        all += head_policy[layer][head] == policy ? capacity_of(kind_of(policy), head) : 0;
    return all;
}

/* Takes over what was kept, position by position, from the cache: that it is what the policy said is checked by contents. */
static void note_kept(void *arg, const struct soq__kv_kept *kept)
{
    (void)arg;
    if (selects(kept->layer, kept->head)) {
        struct held *held = &committing->held[kept->layer][kept->head];

        held->n = kept->n_kept;
        memcpy(held->positions, kept->kept, kept->n_kept * sizeof held->positions[0]);
    }
}

/* What no later row sees goes. */
static int mask(void *self, void *policy_state, const struct soq_kv_commit *commit, struct soq_kv_range *ranges,
                uint32_t *n_ranges_out, struct soq_error *err)
{
    uint32_t n = commit->n_positions;

    (void)self;
    (void)policy_state;
    (void)err;
    ranges[0] = (struct soq_kv_range){0, n < SINKS + MASK ? n : SINKS};
    ranges[1] = (struct soq_kv_range){n - MASK + 1, n};
    *n_ranges_out = n < SINKS + MASK ? 1 : 2;
    return 0;
}

static const struct soq_kv_policy_ops full = {.struct_size = sizeof full};
static const struct soq_kv_policy_ops masking = {.struct_size = sizeof masking, .on_commit = mask};
static const struct soq_kv_policy_ops selecting = {.struct_size = sizeof selecting, .select = select_entries, .budget = budget};
static uint32_t selves[N_POLICIES] = {FULL, BY_HEAD, ALL_ROWS, LAST_ROWS, MASKED, BY_SLOT, LAST_ALONE, SLOT_ALONE};
static const struct soq__kv_policy policies[N_POLICIES] = {
    {.ops = &full, .name = "full"},
    {.ops = &selecting,
     .self = &selves[BY_HEAD],
     .n_heads = 2,
     .name = "by head",
     .plan = {.needs = SOQ_NEED_SELECTION | SOQ_NEED_HEAD_BUDGETS | SOQ_NEED_LAYER_BUDGETS}},
    {.ops = &selecting,
     .self = &selves[ALL_ROWS],
     .n_heads = 2,
     .name = "all rows",
     .plan = {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS, .every = EVERY}},
    {.ops = &selecting,
     .self = &selves[LAST_ROWS],
     .n_heads = 2,
     .name = "last rows",
     .plan = {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS, .every = EVERY, .queries = QUERIES}},
    {.ops = &masking, .name = "masked", .plan = {.window = MASK, .sinks = SINKS, .slot_positions = 1}},
    {.ops = &selecting,
     .self = &selves[BY_SLOT],
     .n_heads = 2,
     .name = "by slot",
     .plan = {.needs = SOQ_NEED_SELECTION, .every = EVERY, .sinks = SINKS, .slot_positions = 1}},
    {.ops = &selecting,
     .self = &selves[LAST_ALONE],
     .n_heads = 1,
     .name = "last rows, alone",
     .plan = {.needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS, .every = EVERY, .queries = QUERIES}},
    {.ops = &selecting,
     .self = &selves[SLOT_ALONE],
     .n_heads = 1,
     .name = "by slot, alone",
     .plan = {.needs = SOQ_NEED_SELECTION, .every = EVERY, .sinks = SINKS, .slot_positions = 1}},
};

static int describe_tile(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *out, struct soq_error *err)
{
    uint32_t codec = *(uint32_t *)self;

    (void)tile;
    (void)err;
    out->kind = codec == PLAIN ? SOQ_FORMAT_PLAIN : SOQ_FORMAT_OPAQUE;
    out->dtype = out->tail_dtype = SOQ_DTYPE_F16;
    out->tile_bytes = codec == PLAIN ? TILE : PACKED;
    out->residual_tokens = codec == HOLDING_BACK ? RESIDUAL : 0;
    return 0;
}

static const struct soq_kv_codec_ops codec_ops = {.struct_size = sizeof codec_ops, .describe = describe_tile};
static uint32_t codec_selves[N_CODECS] = {PLAIN, PACKING, HOLDING_BACK};
static const struct soq__kv_codec codecs[N_CODECS] = {{.ops = &codec_ops, .self = &codec_selves[PLAIN], .name = "plain"},
                                                      {.ops = &codec_ops, .self = &codec_selves[PACKING], .name = "packing"},
                                                      {.ops = &codec_ops, .self = &codec_selves[HOLDING_BACK], .name = "back"}};

static void make_cache(uint64_t n_slabs)
{
    static const struct soq__kv_owner owner = {.memory = &backend, .attention = &backend};
    static const struct soq__hparams hp = {.n_layers = N_LAYERS,
                                           .n_heads = N_HEADS,
                                           .n_kv_heads = N_HEADS,
                                           .head_dim_k = 8192,
                                           .head_dim_v = 8192,
                                           .window = WINDOW,
                                           .window_pattern = 2};
    struct soq__kv_codec_pair pairs[N_LAYERS];
    const struct soq__kv_layout_params lp = {
        .hparams = &hp,
        .block_tokens = P,
        .policies = policies,
        .head_policy = {&head_policy[0][0]},
        .codecs = codecs,
        .layer_codecs = {pairs},
        .pack_grid = GRID,
    };
    struct soq__kv_cache_params p = {
        .limit = n_slabs << 21,
        .swap_limit = n_slabs << 18,
        .owners = &owner,
        .layout = &layout,
        .policies = policies,
        .n_policies = N_POLICIES,
        .context = CONTEXT,
        .chunk = CHUNK,
        .max_slots = N_SEQS,
    };
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t l = 0; l < N_LAYERS; l++)
        pairs[l] = (struct soq__kv_codec_pair){stored_as[l], stored_as[l]};
    cr_assert_eq(soq__kv_layout_init(&layout, &lp, &err), 0, "%s", err.text);
    cr_assert(layout.n_groups <= GROUPS_MAX && layout.n_pools <= POOLS_MAX);
    if (stored_as == layer_codecs[PLAIN])
        cr_assert_eq(layout.n_groups, 12, "the model's window, one for each policy, one more for a head, four for heads apart");
    if (stored_as == layer_codecs[PLAIN])
        cr_assert_eq(layout.n_pools, 7);
    if (stored_as == layer_codecs[PACKING])
        cr_assert_eq(layout.n_pools, 14, "as many for packed blocks");
    memset(slabs, 0, sizeof slabs);
    memset(actors, 0, sizeof actors);
    memset(present, 0, sizeof present);
    memset(tables, 0xff, sizeof tables);
    cr_assert_eq(soq__kv_cache_init(&cache, &p, &err), 0, "%s", err.text);
    cache.trace.fn = note_kept;
}

#endif
