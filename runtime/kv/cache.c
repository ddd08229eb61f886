/* Setting up the cache of a model, and what the next step must tell the backend. */
#include "kv/cache.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"

static int group_init(struct soq__kv_cache *c, const struct soq__kv_cache_params *p, uint32_t index, struct soq_error *err)
{
    struct soq__kv_group *g = &c->groups[index];
    struct soq_kv_group_desc desc;
    uint64_t most;
    int rc;

    g->layout = p->layout->groups[index];
    g->max_blocks = (p->context + c->block_tokens - 1) / c->block_tokens;
    desc = (struct soq_kv_group_desc){
        .struct_size = sizeof desc,
        .index = index,
        .kind = g->layout.kind,
        .n_layers = g->layout.n_layers,
        .block_tokens = c->block_tokens,
        .max_blocks = g->max_blocks,
        .n_planes = g->layout.n_planes,
        .plane_stride = sizeof g->layout.planes[0],
        .planes = g->layout.planes,
        .block_bytes = g->layout.block_bytes,
    };
    rc = c->arena.attention->attention->group_create(c->arena.attention_self, &desc, &g->handle, err);
    if (rc)
        return rc;
    most = (uint64_t)p->max_slots * (soq__kv_group_blocks(p->layout, index, p->context, p->chunk) + 1);
    rc = soq__kv_pool_init(&g->pool, &c->arena, g->handle, g->layout.block_bytes, most, err);
    if (rc)
        c->arena.attention->attention->group_free(c->arena.attention_self, g->handle);
    else
        c->n_groups = index + 1;
    return rc;
}

int soq__kv_cache_init(struct soq__kv_cache *c, const struct soq__kv_cache_params *p, struct soq_error *err)
{
    int rc = 0;

    *c = (struct soq__kv_cache){
        .arena = p->arena,
        .policy = p->policy,
        .block_tokens = p->layout->block_tokens,
        .context = p->context,
        .chunk = p->chunk,
        .max_slots = p->max_slots,
        .max_ranges = p->context / p->layout->block_tokens + 2,
    };
    c->slots = soq__alloc_zero(p->max_slots, sizeof(struct soq__kv_seq *));
    c->ranges = soq__alloc_array(c->max_ranges, sizeof *c->ranges);
    if (!c->slots || !c->ranges)
        rc = soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory");
    for (uint32_t i = 0; !rc && i < p->layout->n_groups; i++)
        rc = group_init(c, p, i, err);
    if (rc)
        soq__kv_cache_done(c);
    return rc;
}

void soq__kv_cache_done(struct soq__kv_cache *c)
{
    soq__kv_delivered(c);
    for (uint32_t i = 0; i < c->n_groups; i++) {
        soq__kv_pool_done(&c->groups[i].pool);
        c->arena.attention->attention->group_free(c->arena.attention_self, c->groups[i].handle);
    }
    soq__free(c->slots);
    soq__free(c->ranges);
    soq__free(c->edits);
    soq__free(c->copies);
    *c = (struct soq__kv_cache){0};
}

/* Makes room for one more element of `size` bytes. */
static void *grown(void *array, uint32_t n, uint32_t *cap, size_t size)
{
    uint32_t wanted = *cap ? *cap * 2 : 64;
    void *bigger;

    if (n < *cap)
        return array;
    bigger = soq__realloc_array(array, wanted, size);
    if (bigger)
        *cap = wanted;
    return bigger;
}

int soq__kv_push_edit(struct soq__kv_cache *c, struct soq_step_edit edit, struct soq_error *err)
{
    struct soq_step_edit *edits = grown(c->edits, c->n_edits, &c->cap_edits, sizeof edit);

    if (!edits)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for table edits");
    c->edits = edits;
    c->edits[c->n_edits++] = edit;
    return 0;
}

int soq__kv_push_copy(struct soq__kv_cache *c, struct soq_step_copy copy, struct soq_error *err)
{
    struct soq_step_copy *copies = grown(c->copies, c->n_copies, &c->cap_copies, sizeof copy);

    if (!copies)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for block copies");
    c->copies = copies;
    c->copies[c->n_copies++] = copy;
    soq__kv_block_ref(&c->groups[copy.group].pool, copy.src);
    return 0;
}

/* Takes the pending copy to a block off the list; returns its source with the reference that the copy held, or SOQ_BLOCK_NONE.
 */
static soq_block_ref take_copy(struct soq__kv_cache *c, uint32_t group, soq_block_ref dst)
{
    for (uint32_t i = 0; i < c->n_copies; i++) {
        struct soq_step_copy copy = c->copies[i];

        if (copy.group != group || copy.dst != dst)
            continue;
        c->n_copies--;
        memmove(c->copies + i, c->copies + i + 1, (c->n_copies - i) * sizeof copy);
        return copy.src;
    }
    return SOQ_BLOCK_NONE;
}

void soq__kv_let_go(struct soq__kv_cache *c, uint32_t group, soq_block_ref block)
{
    struct soq__kv_pool *pool = &c->groups[group].pool;

    while (block != SOQ_BLOCK_NONE) {
        soq_block_ref src = soq__kv_block_is_shared(pool, block) ? SOQ_BLOCK_NONE : take_copy(c, group, block);

        soq__kv_block_unref(pool, block);
        block = src; /* which may be waiting for a copy of its own */
    }
}

void soq__kv_delivered(struct soq__kv_cache *c)
{
    for (uint32_t i = 0; i < c->n_copies; i++)
        soq__kv_block_unref(&c->groups[c->copies[i].group].pool, c->copies[i].src);
    c->n_copies = 0;
    c->n_edits = 0;
}

/* 1 when the sequence's next row lands in a block that others hold too: the copy on write needs one more. */
static uint32_t tail_copies(const struct soq__kv_seq *seq, uint32_t g)
{
    const struct soq__kv_cache *c = seq->cache;
    soq_block_ref tail;

    if (seq->n_committed % c->block_tokens == 0)
        return 0;
    tail = seq->groups[g].table[seq->n_committed / c->block_tokens];
    return tail != SOQ_BLOCK_NONE && soq__kv_block_is_shared(&c->groups[g].pool, tail);
}

/* Blocks behind a window that the sequence holds together with others: when it lets go of them the pool gets nothing back. */
static uint32_t shared_behind(const struct soq__kv_seq *seq, uint32_t g)
{
    const struct soq__kv_seq_group *sg = &seq->groups[g];
    uint32_t p = seq->cache->block_tokens, n = 0;

    for (uint32_t i = sg->freed_to / p; i * p < seq->n_committed; i++)
        n += sg->table[i] != SOQ_BLOCK_NONE && soq__kv_block_is_shared(&seq->cache->groups[g].pool, sg->table[i]);
    return n;
}

/* Promised to sequences beyond what they hold, in blocks of group g. */
static uint64_t promised(const struct soq__kv_cache *c, uint32_t g)
{
    uint64_t blocks = 0;

    for (uint32_t i = 0; i < c->max_slots; i++) {
        const struct soq__kv_seq *seq = c->slots[i];

        if (!seq || !seq->groups[g].peak)
            continue;
        blocks += c->groups[g].layout.window ? shared_behind(seq, g) : tail_copies(seq, g);
        if (seq->groups[g].peak > seq->groups[g].n_held)
            blocks += seq->groups[g].peak - seq->groups[g].n_held;
    }
    return blocks;
}

bool soq__kv_promises_fit(const struct soq__kv_cache *c)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < c->n_groups; g++)
        bytes += soq__kv_pool_bytes_for(&c->groups[g].pool, c->groups[g].pool.n_used + promised(c, g));
    return bytes <= c->arena.limit;
}

uint32_t soq__kv_max_segments(const struct soq__kv_cache *c)
{
    return 2 * c->n_groups;
}
