/* One sequence's block tables: promises, tentative rows, commit on the grid, rollback, fork. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/cache.h"
#include "kv/internal.h"

static uint32_t blocks_for(const struct soq__kv_cache *c, uint32_t n_entries)
{
    return (n_entries + c->block_tokens - 1) / c->block_tokens;
}

int soq__kv_seq_init(struct soq__kv_seq *seq, struct soq__kv_cache *c, struct soq_error *err)
{
    uint32_t slot = 0;

    while (slot < c->max_slots && c->slots[slot])
        slot++;
    if (slot == c->max_slots)
        return soq__fail(err, SOQ_EBUSY, "all %u sequences are in use; raise [engine] max_sequences", c->max_slots);
    *seq = (struct soq__kv_seq){.cache = c, .slot = slot};
    if (c->policy.ops->state_size && !(seq->policy_state = soq__alloc_zero(1, c->policy.ops->state_size)))
        goto no_memory;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        seq->groups[g].table = soq__alloc_array(c->groups[g].max_blocks, sizeof(soq_block_ref));
        if (!seq->groups[g].table)
            goto no_memory;
        memset(seq->groups[g].table, 0xff, c->groups[g].max_blocks * sizeof(soq_block_ref)); /* SOQ_BLOCK_NONE */
    }
    c->slots[slot] = seq;
    return 0;

no_memory:
    for (uint32_t g = 0; g < c->n_groups; g++)
        soq__free(seq->groups[g].table);
    soq__free(seq->policy_state);
    seq->cache = NULL;
    return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for the tables of a sequence");
}

/* Gives table entries [first, last) of group g back. */
static void drop_blocks(struct soq__kv_seq *seq, uint32_t g, uint32_t first, uint32_t last)
{
    struct soq__kv_seq_group *sg = &seq->groups[g];

    for (uint32_t i = first; i < last; i++) {
        if (sg->table[i] == SOQ_BLOCK_NONE)
            continue;
        soq__kv_let_go(seq->cache, g, sg->table[i]);
        sg->table[i] = SOQ_BLOCK_NONE;
        sg->n_held--;
    }
}

void soq__kv_seq_done(struct soq__kv_seq *seq)
{
    struct soq__kv_cache *c = seq->cache;

    if (!c)
        return;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        drop_blocks(seq, g, 0, c->groups[g].max_blocks);
        soq__free(seq->groups[g].table);
    }
    soq__free(seq->policy_state);
    c->slots[seq->slot] = NULL;
    *seq = (struct soq__kv_seq){0};
}

/* ---- Promises ----------------------------------------------------------------------------------------------------------- */

static uint32_t peak_blocks(const struct soq__kv_cache *c, uint32_t g, uint32_t n_entries)
{
    struct soq__kv_layout one = {.groups = {c->groups[g].layout}, .n_groups = 1, .block_tokens = c->block_tokens};

    return soq__kv_group_blocks(&one, 0, n_entries, c->chunk);
}

static int refuse(const struct soq__kv_cache *c, uint32_t n_entries, struct soq_error *err)
{
    uint64_t alone = 0;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct soq__kv_pool *pool = &c->groups[g].pool;

        alone += (peak_blocks(c, g, n_entries) + pool->blocks_per_slab - 1) / pool->blocks_per_slab * pool->slab_bytes;
    }
    if (alone > c->arena.limit)
        return soq__fail(err, SOQ_ELIMIT,
                         "KV cache: %u tokens need %.1f MiB, the limit is %.1f MiB; raise [kv] memory, or ask for fewer tokens "
                         "([engine] max_tokens)",
                         n_entries, (double)alone / (1 << 20), (double)c->arena.limit / (1 << 20));
    return soq__fail(
        err, SOQ_EBUSY,
        "KV cache: %u tokens need %.1f MiB, which other sequences hold at the moment (limit %.1f MiB, [kv] memory)", n_entries,
        (double)alone / (1 << 20), (double)c->arena.limit / (1 << 20));
}

int soq__kv_reserve(struct soq__kv_seq *seq, uint32_t n_entries, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    uint32_t before[SOQ__KV_GROUPS_MAX];

    if (n_entries > c->context)
        return soq__fail(err, SOQ_ELIMIT, "%u tokens exceed the context of %u; raise [model] context", n_entries, c->context);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        before[g] = seq->groups[g].peak;
        seq->groups[g].peak = peak_blocks(c, g, n_entries);
    }
    if (soq__kv_promises_fit(c))
        return 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        seq->groups[g].peak = before[g];
    return refuse(c, n_entries, err);
}

void soq__kv_unreserve(struct soq__kv_seq *seq)
{
    for (uint32_t g = 0; g < seq->cache->n_groups; g++)
        seq->groups[g].peak = 0;
}

/* ---- Tentative rows ----------------------------------------------------------------------------------------------------- */

/* Makes table entry i of group g a block that only this sequence holds; what it shared so far is copied up to entry `used`. */
static int own_block(struct soq__kv_seq *seq, uint32_t g, uint32_t i, uint32_t used, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    struct soq__kv_seq_group *sg = &seq->groups[g];
    struct soq__kv_pool *pool = &c->groups[g].pool;
    soq_block_ref old = sg->table[i], block;
    int rc;

    if (old != SOQ_BLOCK_NONE && !soq__kv_block_is_shared(pool, old))
        return 0;
    rc = soq__kv_block_alloc(pool, &block, err);
    if (rc)
        return rc;
    rc = soq__kv_push_edit(c, (struct soq_step_edit){.slot = seq->slot, .group = g, .index = i, .block = block}, err);
    if (!rc && old != SOQ_BLOCK_NONE && used)
        rc = soq__kv_push_copy(c, (struct soq_step_copy){.group = g, .dst = block, .src = old, .n_tokens = used}, err);
    if (rc) {
        soq__kv_block_unref(pool, block);
        return rc;
    }
    soq__kv_let_go(c, g, old);
    sg->n_held += old == SOQ_BLOCK_NONE;
    sg->table[i] = block;
    return 0;
}

int soq__kv_prepare(struct soq__kv_seq *seq, uint32_t n_rows, struct soq_error *err)
{
    const struct soq__kv_cache *c = seq->cache;
    uint32_t start = seq->n_committed, end;

    if (seq->n_tentative || n_rows > c->context - start)
        return soq__fail(err, SOQ_EINTERNAL, "KV cache: %u rows do not fit behind %u entries of %u", n_rows, start, c->context);
    end = start + n_rows;
    for (uint32_t g = 0; g < c->n_groups; g++)
        for (uint32_t i = start / c->block_tokens; i < blocks_for(c, end); i++) {
            uint32_t first = i * c->block_tokens;
            int rc = own_block(seq, g, i, start > first ? start - first : 0, err);

            if (rc)
                return rc;
        }
    seq->n_tentative = n_rows;
    return 0;
}

void soq__kv_abandon(struct soq__kv_seq *seq)
{
    const struct soq__kv_cache *c = seq->cache;

    for (uint32_t g = 0; g < c->n_groups; g++)
        drop_blocks(seq, g, blocks_for(c, seq->n_committed), c->groups[g].max_blocks);
    seq->n_tentative = 0;
}

/* ---- Commit ------------------------------------------------------------------------------------------------------------- */

/* Frees every whole block of group g between its sinks and `keep_from` (an entry). */
static void free_behind(struct soq__kv_seq *seq, uint32_t g, uint32_t sinks, uint32_t keep_from)
{
    struct soq__kv_seq_group *sg = &seq->groups[g];
    uint32_t first = blocks_for(seq->cache, sinks), last = keep_from / seq->cache->block_tokens;
    uint32_t done = sg->freed_to / seq->cache->block_tokens;

    if (last <= first || last <= done)
        return;
    drop_blocks(seq, g, done > first ? done : first, last);
    sg->freed_to = last * seq->cache->block_tokens;
}

/* First position beyond the sinks that rows from n on can still see. */
static uint32_t visible_from(const struct soq__kv_group_layout *layout, uint32_t n)
{
    return layout->window && n + 1 > layout->window ? n + 1 - layout->window : 0;
}

/* A plan without SELECTION promises that only what no later row sees goes: anything else would depend on how rows were batched.
 */
static int check_ranges(const struct soq__kv_cache *c, uint32_t n_ranges, uint32_t n, struct soq_error *err)
{
    const struct soq__kv_group_layout mask = {.window = c->policy.plan.window};
    uint32_t at = 0, from = visible_from(&mask, n), sinks = c->policy.plan.sinks < n ? c->policy.plan.sinks : n;

    for (uint32_t i = 0; i <= n_ranges; i++) {
        struct soq_kv_range r = i < n_ranges ? c->ranges[i] : (struct soq_kv_range){n, n};

        if (r.first < at || r.last < r.first || r.last > n)
            return soq__fail(err, SOQ_EINVAL, "KV policy: range %u, [%u, %u), is not ascending or lies beyond %u", i, r.first,
                             r.last, n);
        if (r.first > at && (at < sinks || r.first > from))
            return soq__fail(err, SOQ_EINVAL, "KV policy: drops positions [%u, %u), which rows can still see", at, r.first);
        at = r.last;
    }
    return 0;
}

/* Where the last of the checked ranges begins: all between the sinks and there may go. */
static uint32_t recent_from(const struct soq__kv_cache *c, uint32_t n_ranges, uint32_t n)
{
    const struct soq_kv_range *last = n_ranges ? &c->ranges[n_ranges - 1] : NULL;

    return !last || (last->last < n) ? n : last->first;
}

/* Asks the policy what stays at n positions and frees the rest of the groups it rules. */
static int apply_policy(struct soq__kv_seq *seq, uint32_t n, bool end_of_prompt, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    struct soq_kv_commit commit = {
        .struct_size = sizeof commit,
        .n_positions = n,
        .end_of_prompt = end_of_prompt,
        .max_ranges = c->max_ranges,
    };
    uint32_t n_ranges = 0;
    int rc;

    if (!c->policy.ops->on_commit)
        return 0;
    rc = c->policy.ops->on_commit(c->policy.self, seq->policy_state, &commit, c->ranges, &n_ranges, err);
    if (rc)
        return rc;
    if (n_ranges > c->max_ranges)
        return soq__fail(err, SOQ_EINVAL, "KV policy: %u ranges, but there is room for %u", n_ranges, c->max_ranges);
    rc = check_ranges(c, n_ranges, n, err);
    for (uint32_t g = 0; !rc && g < c->n_groups; g++)
        if (c->groups[g].layout.kind == SOQ_GROUP_FULL)
            free_behind(seq, g, c->policy.plan.sinks, recent_from(c, n_ranges, n));
    return rc;
}

static int at_grid(struct soq__kv_seq *seq, uint32_t n, bool end_of_prompt, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;

    for (uint32_t g = 0; g < c->n_groups; g++)
        if (c->groups[g].layout.kind == SOQ_GROUP_WINDOW)
            free_behind(seq, g, c->groups[g].layout.sinks, visible_from(&c->groups[g].layout, n));
    return apply_policy(seq, n, end_of_prompt, err);
}

int soq__kv_commit(struct soq__kv_seq *seq, uint32_t n_rows, bool end_of_prompt, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    uint32_t grid = c->policy.plan.grid ? c->policy.plan.grid : c->block_tokens;
    uint32_t old = seq->n_committed, now;
    int rc = 0;

    if (n_rows > seq->n_tentative)
        return soq__fail(err, SOQ_EINTERNAL, "KV cache: commit of %u rows, but %u are tentative", n_rows, seq->n_tentative);
    now = old + n_rows;
    for (uint32_t g = 0; g < c->n_groups; g++)
        drop_blocks(seq, g, blocks_for(c, now), blocks_for(c, old + seq->n_tentative));
    seq->n_committed = now;
    seq->n_tentative = 0;
    for (uint32_t n = (old / grid + 1) * grid; !rc && n <= now; n += grid)
        rc = at_grid(seq, n, end_of_prompt && n == now, err);
    if (!rc && end_of_prompt && now % grid)
        rc = at_grid(seq, now, true, err);
    return rc;
}

int soq__kv_rollback(struct soq__kv_seq *seq, uint32_t n, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;

    if (seq->n_tentative || n > seq->n_committed)
        return soq__fail(err, SOQ_EINVAL, "KV cache: cannot go back to %u entries, %u are committed", n, seq->n_committed);
    if (n == seq->n_committed)
        return 0;
    if (n && c->policy.ops->state_size)
        return soq__fail(err, SOQ_EINVAL, "KV cache: the policy keeps a state, which has no earlier copy to go back to");
    for (uint32_t g = 0; n && g < c->n_groups; g++)
        if (seq->groups[g].freed_to > visible_from(&c->groups[g].layout, n))
            return soq__fail(err, SOQ_EINVAL, "KV cache: cannot go back to %u entries, those before %u are already freed", n,
                             seq->groups[g].freed_to);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        drop_blocks(seq, g, blocks_for(c, n), blocks_for(c, seq->n_committed));
        if (!n)
            seq->groups[g].freed_to = 0;
    }
    if (!n && seq->policy_state)
        memset(seq->policy_state, 0, c->policy.ops->state_size);
    seq->n_committed = n;
    return 0;
}

int soq__kv_fork(struct soq__kv_seq *dst, const struct soq__kv_seq *src, struct soq_error *err)
{
    struct soq__kv_cache *c = src->cache;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct soq__kv_seq_group *from = &src->groups[g];
        struct soq__kv_seq_group *to = &dst->groups[g];

        for (uint32_t i = 0; i < blocks_for(c, src->n_committed); i++) {
            int rc = 0;

            if (from->table[i] == SOQ_BLOCK_NONE)
                continue;
            rc = soq__kv_push_edit(
                c, (struct soq_step_edit){.slot = dst->slot, .group = g, .index = i, .block = from->table[i]}, err);
            if (rc) { /* edits already pushed name blocks that dst does not list, which nothing reads */
                soq__kv_rollback(dst, 0, NULL);
                return rc;
            }
            soq__kv_block_ref(&c->groups[g].pool, from->table[i]);
            to->table[i] = from->table[i];
            to->n_held++;
            dst->n_committed = (i + 1) * c->block_tokens;
        }
        to->freed_to = from->freed_to;
    }
    if (src->policy_state)
        memcpy(dst->policy_state, src->policy_state, c->policy.ops->state_size);
    dst->n_committed = src->n_committed;
    if (!soq__kv_promises_fit(c)) { /* the source may have to copy its tail now */
        soq__kv_rollback(dst, 0, NULL);
        return soq__fail(err, SOQ_EBUSY, "KV cache: no room for another fork under the limit of %.1f MiB; raise [kv] memory",
                         (double)c->arena.limit / (1 << 20));
    }
    return 0;
}

/* ---- What the backend reads -----------------------------------------------------------------------------------------------
 */

static void put_segment(const struct soq__kv_seq *seq, uint32_t g, uint32_t first, uint32_t last, struct soq_step_segment *out)
{
    *out = (struct soq_step_segment){
        .group = g,
        .n_layers = seq->cache->groups[g].layout.n_layers,
        .n_heads = seq->cache->groups[g].layout.planes[0].heads,
        .first_entry = first,
        .n_entries = last - first,
    };
}

uint32_t soq__kv_segments(const struct soq__kv_seq *seq, struct soq_step_segment *out, uint32_t max)
{
    const struct soq__kv_cache *c = seq->cache;
    uint32_t n = 0, end = seq->n_committed + seq->n_tentative;

    if (max < soq__kv_max_segments(c))
        return 0;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint32_t freed = seq->groups[g].freed_to, sinks = 0;

        while (freed && sinks < freed && seq->groups[g].table[sinks / c->block_tokens] != SOQ_BLOCK_NONE)
            sinks += c->block_tokens;
        if (sinks && sinks < freed)
            put_segment(seq, g, 0, sinks, &out[n++]);
        put_segment(seq, g, freed, end, &out[n++]);
    }
    return n;
}

uint64_t soq__kv_seq_bytes(const struct soq__kv_seq *seq)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < seq->cache->n_groups; g++)
        bytes += seq->groups[g].n_held * seq->cache->groups[g].pool.block_bytes;
    return bytes;
}
