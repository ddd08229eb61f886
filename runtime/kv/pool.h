/* Blocks of one class of one KV group: allocated in slabs under a hard byte limit, reference-counted.
 *
 * A slab is as few blocks as make 2 MiB, so that it covers a huge page: keys and values of one head lie in pieces of some KiB,
 * and with small pages each piece is a walk of page tables. The lowest slab with room is filled first so that high slabs drain;
 * an empty slab goes back to the backend at once. References carry the class. Not thread-safe; called between steps only. */
#ifndef SOQ_KV_POOL_H
#define SOQ_KV_POOL_H

#include <stdbool.h>

#include "soquete/plugin.h"

/* How much all pools of a cache may take together. */
struct soq__kv_budget {
    uint64_t limit, used, peak; /* bytes */
};

/* Who holds a group's slabs. */
struct soq__kv_owner {
    const struct soq_backend_ops *memory; /* allocates them */
    void *memory_self;
    const struct soq_backend_ops *attention; /* must know where they lie */
    void *attention_self;
};

struct soq__kv_slab {
    soq_buffer buffer; /* 0: not there */
    uint32_t n_used;   /* blocks */
};

struct soq__kv_pool {
    struct soq__kv_budget *budget; /* not owned */
    struct soq__kv_owner owner;
    soq_kv_group group;
    uint32_t block_class;
    uint64_t block_bytes, slab_bytes;
    uint32_t blocks_per_slab, max_slabs;
    uint32_t n_slabs;           /* that are there */
    uint32_t n_used;            /* blocks with references */
    uint32_t hint;              /* every slab below is there and full */
    struct soq__kv_slab *slabs; /* [max_slabs] */
    uint32_t *refs;             /* [max_slabs * blocks_per_slab] */
};

struct soq__kv_pool_params {
    struct soq__kv_budget *budget;
    const struct soq__kv_owner *owner;
    soq_kv_group group;
    uint32_t block_class;
    uint64_t block_bytes;
    uint64_t max_blocks; /* the most that can ever be in use at once; the budget's limit may allow fewer */
};

int soq__kv_pool_init(struct soq__kv_pool *pool, const struct soq__kv_pool_params *params, struct soq_error *err);
void soq__kv_pool_done(struct soq__kv_pool *pool);

/* A block with one reference; contents undefined. */
int soq__kv_block_alloc(struct soq__kv_pool *pool, soq_block_ref *block_out, struct soq_error *err);
void soq__kv_block_ref(struct soq__kv_pool *pool, soq_block_ref block);
void soq__kv_block_unref(struct soq__kv_pool *pool, soq_block_ref block); /* SOQ_BLOCK_NONE is a no-op */
bool soq__kv_block_is_shared(const struct soq__kv_pool *pool, soq_block_ref block);

/* Where a block that is in use lies: byte *offset_out of the buffer. */
soq_buffer soq__kv_block_place(const struct soq__kv_pool *pool, soq_block_ref block, uint64_t *offset_out);

/* Slab bytes that the pool takes once it holds n_blocks, and never less than now. */
uint64_t soq__kv_pool_bytes_for(const struct soq__kv_pool *pool, uint64_t n_blocks);
/* Bytes of the slab for blocks of that size. */
uint64_t soq__kv_slab_bytes(uint64_t block_bytes);

#endif
