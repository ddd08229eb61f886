/* Block pool: slabs, reference counts, the hard limit. */
#include "kv/pool.h"

#include "base/alloc.h"
#include "base/error.h"

#define SLAB_BYTES ((uint64_t)2 << 20)

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t soq__kv_slab_bytes(uint64_t block_bytes)
{
    return (SLAB_BYTES + block_bytes - 1) / block_bytes * block_bytes;
}

int soq__kv_pool_init(struct soq__kv_pool *pool, const struct soq__kv_pool_params *p, struct soq_error *err)
{
    uint64_t slab_bytes = soq__kv_slab_bytes(p->block_bytes);
    uint64_t per_slab = slab_bytes / p->block_bytes;
    uint64_t max_slabs = min_u64((p->max_blocks + per_slab - 1) / per_slab, p->budget->limit / slab_bytes);

    max_slabs = min_u64(max_slabs, SOQ_BLOCK_INDEX_MASK / per_slab);
    *pool = (struct soq__kv_pool){
        .budget = p->budget,
        .owner = *p->owner,
        .group = p->group,
        .block_class = p->block_class,
        .block_bytes = p->block_bytes,
        .slab_bytes = slab_bytes,
        .blocks_per_slab = (uint32_t)per_slab,
        .max_slabs = (uint32_t)max_slabs,
    };
    pool->slabs = soq__alloc_zero(max_slabs, sizeof *pool->slabs);
    pool->refs = soq__alloc_zero(max_slabs * per_slab, sizeof *pool->refs);
    if (!pool->slabs || !pool->refs) {
        soq__kv_pool_done(pool);
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for the tables of %llu slabs",
                         (unsigned long long)max_slabs);
    }
    return 0;
}

static void slab_release(struct soq__kv_pool *pool, uint32_t slab)
{
    const struct soq__kv_owner *o = &pool->owner;
    uint32_t first = slab * pool->blocks_per_slab;

    o->attention->attention->group_slab(o->attention_self, pool->group, pool->block_class, first, pool->blocks_per_slab, 0,
                                        NULL);
    o->memory->memory->buffer_free(o->memory_self, pool->slabs[slab].buffer);
    pool->slabs[slab].buffer = 0;
    pool->budget->used -= pool->slab_bytes;
    pool->n_slabs--;
}

void soq__kv_pool_done(struct soq__kv_pool *pool)
{
    for (uint32_t i = 0; pool->slabs && i < pool->max_slabs; i++)
        if (pool->slabs[i].buffer)
            slab_release(pool, i);
    soq__free(pool->slabs);
    soq__free(pool->refs);
    pool->slabs = NULL;
    pool->refs = NULL;
}

static int slab_add(struct soq__kv_pool *pool, uint32_t slab, struct soq_error *err)
{
    const struct soq__kv_owner *o = &pool->owner;
    struct soq__kv_budget *b = pool->budget;
    soq_buffer buffer;
    int rc;

    if (b->used + pool->slab_bytes > b->limit)
        return soq__fail(err, SOQ_ELIMIT,
                         "KV cache: %llu bytes are in use and %llu more are needed, above the limit of %llu; raise [kv] memory",
                         (unsigned long long)b->used, (unsigned long long)pool->slab_bytes, (unsigned long long)b->limit);
    rc = o->memory->memory->buffer_alloc(o->memory_self, pool->slab_bytes, &buffer, err);
    if (rc)
        return rc;
    rc = o->attention->attention->group_slab(o->attention_self, pool->group, pool->block_class, slab * pool->blocks_per_slab,
                                             pool->blocks_per_slab, buffer, err);
    if (rc) {
        o->memory->memory->buffer_free(o->memory_self, buffer);
        return rc;
    }
    pool->slabs[slab].buffer = buffer;
    pool->n_slabs++;
    b->used += pool->slab_bytes;
    b->peak = b->used > b->peak ? b->used : b->peak;
    return 0;
}

/* The lowest slab that is there and has room, else the lowest one that is not there; max_slabs if all are full. */
static uint32_t slab_with_room(struct soq__kv_pool *pool)
{
    uint32_t absent = pool->max_slabs;

    for (uint32_t i = pool->hint; i < pool->max_slabs; i++) {
        const struct soq__kv_slab *s = &pool->slabs[i];

        if (s->buffer && s->n_used < pool->blocks_per_slab) {
            pool->hint = i < absent ? i : absent;
            return i;
        }
        if (!s->buffer && absent == pool->max_slabs)
            absent = i;
        if (absent < pool->max_slabs && pool->n_slabs * (uint64_t)pool->blocks_per_slab == pool->n_used)
            break; /* every slab that is there is full */
    }
    pool->hint = absent;
    return absent;
}

int soq__kv_block_alloc(struct soq__kv_pool *pool, soq_block_ref *block_out, struct soq_error *err)
{
    uint32_t slab = slab_with_room(pool), block;

    if (slab == pool->max_slabs)
        return soq__fail(err, SOQ_ELIMIT, "KV cache: all %u slabs of a group are full; raise [kv] memory", pool->max_slabs);
    if (!pool->slabs[slab].buffer) {
        int rc = slab_add(pool, slab, err);

        if (rc)
            return rc;
    }
    block = slab * pool->blocks_per_slab;
    while (pool->refs[block])
        block++;
    pool->refs[block] = 1;
    pool->slabs[slab].n_used++;
    pool->n_used++;
    *block_out = block | pool->block_class << SOQ_BLOCK_CLASS_SHIFT;
    return 0;
}

void soq__kv_block_ref(struct soq__kv_pool *pool, soq_block_ref block)
{
    pool->refs[block & SOQ_BLOCK_INDEX_MASK]++;
}

void soq__kv_block_unref(struct soq__kv_pool *pool, soq_block_ref block)
{
    uint32_t index = block & SOQ_BLOCK_INDEX_MASK, slab = index / pool->blocks_per_slab;

    if (block == SOQ_BLOCK_NONE || --pool->refs[index])
        return;
    pool->n_used--;
    pool->hint = slab < pool->hint ? slab : pool->hint;
    if (--pool->slabs[slab].n_used == 0)
        slab_release(pool, slab);
}

bool soq__kv_block_is_shared(const struct soq__kv_pool *pool, soq_block_ref block)
{
    return pool->refs[block & SOQ_BLOCK_INDEX_MASK] > 1;
}

soq_buffer soq__kv_block_place(const struct soq__kv_pool *pool, soq_block_ref block, uint64_t *offset_out)
{
    uint32_t index = block & SOQ_BLOCK_INDEX_MASK;

    *offset_out = index % pool->blocks_per_slab * pool->block_bytes;
    return pool->slabs[index / pool->blocks_per_slab].buffer;
}

uint64_t soq__kv_pool_bytes_for(const struct soq__kv_pool *pool, uint64_t n_blocks)
{
    uint64_t slabs = (n_blocks + pool->blocks_per_slab - 1) / pool->blocks_per_slab;

    return (slabs > pool->n_slabs ? slabs : pool->n_slabs) * pool->slab_bytes;
}
