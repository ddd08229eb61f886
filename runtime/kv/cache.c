/* Setting up the cache of a model, and what the next step must tell the backend. */
#include "kv/cache.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"

/* The group whose slabs hold the blocks of group `index` too: the first one of its pools. */
static uint32_t leader_of(const struct soq__kv_layout *layout, uint32_t index)
{
    uint32_t g = 0;

    while (layout->groups[g].pool != layout->groups[index].pool)
        g++;
    return g;
}

static int group_init(struct soq__kv_cache *c, const struct soq__kv_cache_params *p, uint32_t index, struct soq_error *err)
{
    const struct soq__kv_group_layout *layout = &p->layout->groups[index];
    const struct soq__kv_policy *policy = layout->policy == SOQ__KV_NO_POLICY ? NULL : &c->policies[layout->policy];
    const struct soq__kv_owner *owner = &p->owners[layout->owner];
    struct soq__kv_group *g = &c->groups[index];
    uint32_t leader = leader_of(p->layout, index);
    struct soq_kv_group_desc desc;
    int rc;

    *g = (struct soq__kv_group){
        .layout = layout,
        .pools = {&c->pools[layout->pool], layout->packs ? &c->pools[layout->packed_pool] : NULL},
        .max_blocks = (p->context + c->block_tokens - 1) / c->block_tokens,
        .selects = policy && soq__kv_selects(policy),
        .weighs = policy && soq__kv_weighs(policy),
    };
    desc = (struct soq_kv_group_desc){
        .struct_size = sizeof desc,
        .index = index,
        .kind = layout->kind,
        .n_layers = layout->n_layers,
        .block_tokens = c->block_tokens,
        .max_blocks = g->max_blocks,
        .n_planes = layout->n_planes,
        .plane_stride = sizeof layout->planes[0],
        .planes = layout->planes,
        .block_bytes = layout->block_bytes,
        .storage = leader < index ? c->groups[leader].handle : 0,
        .packed = layout->packs ? layout->packed : NULL,
        .packed_bytes = layout->packs ? layout->packed_bytes : 0,
        .coders = layout->packs ? layout->coders : NULL,
        .layers = layout->layers,
        .first_head = layout->first_head,
    };
    rc = owner->attention->attention->group_create(owner->attention_self, &desc, &g->handle, err);
    if (rc)
        return rc;
    g->owner = *owner;
    c->n_groups = index + 1;
    return 0;
}

/* Attention runs over one view: where a lossy one's policies want its mass, that of the full one serves. */
static void choose_tellers(struct soq__kv_cache *c)
{
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct soq__kv_group_layout *layout = c->groups[g].layout;

        for (uint32_t i = 0; c->groups[g].weighs && i < layout->n_layers * layout->n_heads; i++) {
            const struct soq__kv_part *part = soq__kv_teller(c->layout, g, i / layout->n_heads, i % layout->n_heads);

            c->groups[part ? part->group : g].tells = true;
        }
    }
}

/* As many blocks as all sequences can ever hold; while survivors are copied a group holds them twice. */
static uint64_t most_blocks(const struct soq__kv_cache *c, uint32_t pool)
{
    uint64_t blocks = 0;

    for (uint32_t g = 0; g < c->n_groups; g++)
        if (soq__kv_uses_pool(&c->layout->groups[g], pool))
            blocks += (uint64_t)c->max_slots * (c->groups[g].max_blocks + 1) * (c->groups[g].selects ? 2 : 1);
    return blocks;
}

static int init_pools(struct soq__kv_cache *c, struct soq_error *err)
{
    int rc = 0;

    for (; !rc && c->n_pools < c->layout->n_pools; c->n_pools += !rc) {
        const struct soq__kv_group *leader = c->groups;

        while (!soq__kv_uses_pool(leader->layout, c->n_pools))
            leader++;
        rc = soq__kv_pool_init(&c->pools[c->n_pools],
                               &(struct soq__kv_pool_params){
                                   .budget = &c->budget,
                                   .owner = &leader->owner,
                                   .group = leader->handle,
                                   .block_class = leader->layout->pool != c->n_pools,
                                   .block_bytes = soq__kv_pool_block_bytes(c->layout, c->n_pools),
                                   .max_blocks = most_blocks(c, c->n_pools),
                               },
                               err);
    }
    return rc;
}

/* Takes the policies over and gives each a place in the state of a sequence. */
static void take_policies(struct soq__kv_cache *c, const struct soq__kv_cache_params *p)
{
    const size_t align = _Alignof(max_align_t);

    for (uint32_t i = 0; i < p->n_policies; i++) {
        c->policies[i] = p->policies[i];
        c->policies[i].state_at = c->state_size;
        c->state_size += (p->policies[i].ops->state_size + align - 1) / align * align;
    }
    c->n_policies = p->n_policies;
}

int soq__kv_cache_init(struct soq__kv_cache *c, const struct soq__kv_cache_params *p, struct soq_error *err)
{
    int rc = 0;

    *c = (struct soq__kv_cache){
        .budget = {.limit = p->limit},
        .swap = {.limit = p->swap_limit},
        .layout = p->layout,
        .block_tokens = p->layout->block_tokens,
        .context = p->context,
        .chunk = p->chunk,
        .max_slots = p->max_slots,
        .max_ranges = p->context / p->layout->block_tokens + 2,
    };
    take_policies(c, p);
    c->slots = soq__alloc_zero(p->max_slots, sizeof(struct soq__kv_seq *));
    c->ranges = soq__alloc_array(c->max_ranges, sizeof *c->ranges);
    c->groups = soq__alloc_zero(p->layout->n_groups, sizeof *c->groups);
    c->pools = soq__alloc_zero(p->layout->n_pools, sizeof *c->pools);
    if (!c->slots || !c->ranges || !c->groups || !c->pools)
        rc = soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory");
    for (uint32_t i = 0; !rc && i < p->layout->n_groups; i++)
        rc = group_init(c, p, i, err);
    choose_tellers(c);
    if (!rc)
        rc = init_pools(c, err);
    if (!rc && c->layout->grid)
        rc = soq__kv_packing_init(&c->packing, c->groups[0].max_blocks, err);
    if (rc)
        soq__kv_cache_done(c);
    return rc;
}

/* Slabs go before the groups that know of them, groups before the one whose slabs they use. */
void soq__kv_cache_done(struct soq__kv_cache *c)
{
    soq__kv_delivered(c);
    for (uint32_t i = 0; i < c->n_pools; i++)
        soq__kv_pool_done(&c->pools[i]);
    for (uint32_t i = c->n_groups; i-- > 0;) {
        const struct soq__kv_owner *owner = &c->groups[i].owner;

        soq__kv_mass_free(&c->groups[i]);
        owner->attention->attention->group_free(owner->attention_self, c->groups[i].handle);
    }
    soq__kv_packing_done(&c->packing);
    soq__free(c->slots);
    soq__free(c->ranges);
    soq__free(c->groups);
    soq__free(c->pools);
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

void soq__kv_drop_edits(const struct soq__kv_seq *seq)
{
    struct soq__kv_cache *c = seq->cache;
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n_edits; i++)
        if (c->edits[i].slot != seq->slot)
            c->edits[n++] = c->edits[i];
    c->n_edits = n;
}

int soq__kv_push_copy(struct soq__kv_cache *c, struct soq_step_copy copy, struct soq_error *err)
{
    struct soq_step_copy *copies = grown(c->copies, c->n_copies, &c->cap_copies, sizeof copy);

    if (!copies)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for block copies");
    c->copies = copies;
    c->copies[c->n_copies++] = copy;
    soq__kv_block_ref(c->groups[copy.group].pools[0], copy.src);
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
    while (block != SOQ_BLOCK_NONE) {
        struct soq__kv_pool *pool = soq__kv_pool_of(&c->groups[group], block);
        soq_block_ref src = soq__kv_block_is_shared(pool, block) ? SOQ_BLOCK_NONE : take_copy(c, group, block);

        soq__kv_block_unref(pool, block);
        block = src; /* which may be waiting for a copy of its own */
    }
}

void soq__kv_delivered(struct soq__kv_cache *c)
{
    for (uint32_t i = 0; i < c->n_copies; i++)
        soq__kv_block_unref(c->groups[c->copies[i].group].pools[0], c->copies[i].src);
    c->n_copies = 0;
    c->n_edits = 0;
}

uint32_t soq__kv_max_segments(const struct soq__kv_cache *c)
{
    return 2 * c->n_groups;
}
