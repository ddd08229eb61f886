/* What sequences will need, and who was promised what. */
#include "kv/promise.h"

#include "base/error.h"
#include "base/minmax.h"
#include "base/size.h"
#include "kv/internal.h"

/* ---- What a sequence needs ----------------------------------------------------------------------------------------------- */

/* Blocks that entries [first, last) lie in. */
static uint32_t spanned(uint32_t p, uint32_t first, uint32_t last)
{
    return last > first ? (last + p - 1) / p - first / p : 0;
}

/* Of these the ones of a class when n entries are committed: a packed block ends below packed_to. */
static uint32_t of_class(const struct soq__kv_group_layout *g, bool packed, uint32_t p, uint32_t first, uint32_t last,
                         uint32_t n)
{
    uint32_t n_packed = spanned(p, first, soq__min_u32(last, soq__kv_packed_to(g, n)));

    return packed ? n_packed : spanned(p, first, last) - n_packed;
}

/* At most so many of `all` blocks are plain, up to the moment when the next ones are packed. */
static uint32_t most_plain(const struct soq__kv_group_layout *g, uint32_t p, uint32_t all)
{
    return g->packs ? soq__min_u32(all, (g->residual + g->grid) / p) : all;
}

/* Before a commit a windowed group holds its sinks, the window behind the first row of the chunk, what has not reached the last
 * grid point, and the chunk; each end may cut a block. */
static uint32_t masked_blocks(const struct soq__kv_layout *layout, const struct soq__kv_group_layout *g, uint32_t n_entries,
                              uint32_t chunk)
{
    uint64_t p = layout->block_tokens, all = (n_entries + p - 1) / p, most;

    if (!g->window)
        return (uint32_t)all;
    most = (g->sinks + p - 1) / p + ((uint64_t)g->window + chunk + p - 1) / p + 2;
    return (uint32_t)(most < all ? most : all);
}

/* Blocks of a class with n entries; `way`: the most on the way there. */
static uint32_t masked_of_class(const struct soq__kv_need_params *params, const struct soq__kv_group_layout *g, bool packed,
                                uint32_t n, bool way)
{
    uint32_t p = params->layout->block_tokens, all = masked_blocks(params->layout, g, n, params->chunk);

    if (packed)
        return soq__min_u32(all, soq__kv_packed_to(g, n) / p);
    return way || g->window ? most_plain(g, p, all) : of_class(g, false, p, 0, n, n);
}

/* ... once all that no row from n on sees is gone. */
static uint32_t masked_kept(const struct soq__kv_need_params *params, const struct soq__kv_group_layout *g, bool packed,
                            uint32_t n)
{
    uint32_t p = params->layout->block_tokens, sinks = spanned(p, 0, soq__min_u32(g->sinks, n));
    uint32_t from = soq__kv_visible_from(g->window, n) / p;

    if (from <= sinks)
        return of_class(g, packed, p, 0, n, n);
    return of_class(g, packed, p, 0, sinks * p, n) + of_class(g, packed, p, from * p, n, n);
}

/* A group whose policy selects, at a given moment. Where heads are split nobody knows how a layer's budget spreads over them:
 * entries are a head's even share, and blocks are rounded up so that their sum is enough. */
struct selecting {
    const struct soq__kv_need_params *params;
    const struct soq__kv_group_layout *group;
    const struct soq__kv_policy *policy;
    bool packed;             /* the class that is asked about */
    uint32_t layer, n_heads; /* kv heads of the layer under the policy */
    bool is_split;           /* the group holds one of them, and each has a budget of its own */
    uint32_t base, n;        /* entries [base, n) are there */
};

/* Blocks that n entries of the group lie in, wherever they are: each end may cut one. Of split heads n is the even share of
 * what they hold together; rounded up, so many for each are enough for all, however it spreads over them. */
static uint32_t spanned_anywhere(const struct selecting *s, uint64_t n)
{
    uint64_t p = s->params->layout->block_tokens;

    return n ? (uint32_t)((n + 2 * p - 2 + (s->is_split ? p - 1 : 0)) / p) : 0;
}

/* Entries per head after a selection at n. */
static uint32_t kept_at(const struct selecting *s, uint32_t n)
{
    uint64_t all = s->policy->ops->budget(s->policy->self, s->layer, n, s->params->n_prompt);
    uint64_t each = (all + (s->is_split ? s->n_heads - 1 : 0)) / s->n_heads;

    return each < UINT32_MAX ? (uint32_t)each : UINT32_MAX;
}

/* Blocks of the group with the most survivors, which are plain at first. */
static uint32_t fresh_blocks(const struct selecting *s, uint32_t n, uint32_t kept)
{
    uint32_t p = s->params->layout->block_tokens, held = n - s->base;
    uint64_t most = s->is_split ? (uint64_t)kept * s->n_heads : kept; /* all of a layer's budget may go to one head */

    if (kept >= held || s->packed)
        return 0;
    return spanned(p, n - (most < held ? (uint32_t)most : held), n);
}

static void after_prompt(struct selecting *s, struct soq__kv_need *need)
{
    uint32_t p = s->params->layout->block_tokens, n = s->params->n_prompt, kept = soq__min_u32(kept_at(s, n), n - s->base);
    uint32_t all = of_class(s->group, s->packed, p, s->base, n, n);

    need->prompt += all;
    need->computing += s->packed ? all : most_plain(s->group, p, spanned(p, s->base, n));
    need->fresh = soq__max_u32(need->fresh, fresh_blocks(s, n, kept));
    need->kept += s->is_split ? soq__min_u32(spanned_anywhere(s, kept), all) : of_class(s->group, s->packed, p, n - kept, n, n);
    s->base = n - kept;
    s->n = n;
}

static void while_decoding(const struct selecting *s, bool is_exact, struct soq__kv_need *need)
{
    uint32_t p = s->params->layout->block_tokens, end = s->params->n_entries, every = s->policy->plan.every;
    uint32_t all = (end + p - 1) / p, most = s->packed ? soq__kv_packed_to(s->group, end) / p : most_plain(s->group, p, all);
    uint64_t held = s->n - s->base, kept;

    if (!every || s->n / every == end / every) {
        uint32_t exactly = spanned(p, s->base, s->packed ? soq__kv_packed_to(s->group, end) : end);

        need->grown += soq__min_u32(most, is_exact ? exactly : spanned_anywhere(s, held + end - s->n));
        return;
    }
    kept = soq__max_u32((uint32_t)held, kept_at(s, end));
    need->grown += soq__min_u32(most, spanned_anywhere(s, kept + every));
    if (!s->packed)
        need->again = soq__max_u32(need->again, soq__min_u32(all, spanned_anywhere(s, s->is_split ? kept * s->n_heads : kept)));
}

static void need_of_group(const struct soq__kv_need_params *params, uint32_t g, bool packed, struct soq__kv_need *need)
{
    const struct soq__kv_group_layout *layout = &params->layout->groups[g];
    const struct soq__kv_seq *seq = params->seq;
    const struct soq__kv_policy *policy = layout->policy == SOQ__KV_NO_POLICY ? NULL : &params->policies[layout->policy];
    struct selecting s = {
        .params = params,
        .group = layout,
        .packed = packed,
        .policy = policy,
        .layer = layout->layers[0],
        .n_heads = policy ? policy->n_heads : 0,
        .base = seq ? seq->groups[g].base : 0,
        .n = seq ? seq->n_committed : 0,
    };
    bool has_prompt = params->n_prompt > s.n;

    s.is_split = policy && policy->plan.needs & SOQ_NEED_HEAD_BUDGETS && s.n_heads > 1;

    if (!policy || !soq__kv_selects(policy)) {
        uint32_t n = soq__max_u32(params->n_prompt, s.n), blocks = masked_of_class(params, layout, packed, n, false);

        need->prompt += blocks;
        need->computing += masked_of_class(params, layout, packed, n, true);
        need->kept += masked_kept(params, layout, packed, n);
        need->grown += masked_of_class(params, layout, packed, params->n_entries, true);
        return;
    }
    if (has_prompt)
        after_prompt(&s, need);
    while_decoding(&s, !has_prompt || !s.is_split, need);
}

void soq__kv_need(const struct soq__kv_need_params *params, uint32_t pool, struct soq__kv_need *out)
{
    *out = (struct soq__kv_need){0};
    for (uint32_t g = 0; g < params->layout->n_groups; g++)
        if (soq__kv_uses_pool(&params->layout->groups[g], pool))
            need_of_group(params, g, params->layout->groups[g].pool != pool, out);
}

uint32_t soq__kv_need_peak(const struct soq__kv_need *need)
{
    return soq__max_u32(need->computing + need->fresh, need->grown + need->again);
}

/* ---- Promises ------------------------------------------------------------------------------------------------------------ */

/* 1 when the sequence's next row lands in a block that others hold too: the copy on write needs one more. */
static uint32_t tail_copies(const struct soq__kv_seq *seq, uint32_t g)
{
    const struct soq__kv_cache *c = seq->cache;
    soq_block_ref tail;

    if (seq->n_committed % c->block_tokens == 0)
        return 0;
    tail = seq->groups[g].table[seq->n_committed / c->block_tokens];
    return tail != SOQ_BLOCK_NONE && soq__kv_block_is_shared(c->groups[g].pools[0], tail);
}

/* Blocks of a class that the sequence holds together with others: when it lets go of them the pool gets nothing back. */
static uint32_t shared_blocks(const struct soq__kv_seq *seq, uint32_t g, bool packed)
{
    const struct soq__kv_seq_group *sg = &seq->groups[g];
    const struct soq__kv_pool *pool = seq->cache->groups[g].pools[packed];
    uint32_t p = seq->cache->block_tokens, n = 0;

    for (uint32_t i = soq__max_u32(sg->freed_to, sg->base) / p; i * p < seq->n_committed; i++)
        n += sg->table[i] != SOQ_BLOCK_NONE && sg->table[i] >> SOQ_BLOCK_CLASS_SHIFT == packed &&
             soq__kv_block_is_shared(pool, sg->table[i]);
    return n;
}

/* Blocks behind a window go as rows come, those of a selection when it is due, plain ones when they are packed. */
static bool will_let_go(const struct soq__kv_seq *seq, uint32_t g, bool packed)
{
    const struct soq__kv_group *group = &seq->cache->groups[g];

    if (group->layout->packs && !packed)
        return true;
    if (group->selects)
        return seq->n_committed < seq->n_prompt || seq->cache->policies[group->layout->policy].plan.every;
    return group->layout->window;
}

/* Blocks of a pool that the sequence will take without giving one back for each. */
static uint64_t unreturned(const struct soq__kv_seq *seq, uint32_t pool)
{
    const struct soq__kv_cache *c = seq->cache;
    uint64_t blocks = 0;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct soq__kv_group_layout *layout = c->groups[g].layout;
        bool packed = layout->pool != pool;

        if (soq__kv_uses_pool(layout, pool))
            blocks += will_let_go(seq, g, packed) ? shared_blocks(seq, g, packed) : packed ? 0 : tail_copies(seq, g);
    }
    return blocks;
}

/* Promised to sequences beyond what they hold, in blocks of a pool. */
static uint64_t promised(const struct soq__kv_cache *c, uint32_t pool)
{
    uint64_t blocks = 0;

    for (uint32_t i = 0; i < c->max_slots; i++) {
        const struct soq__kv_seq *seq = c->slots[i];

        if (!seq || !seq->pools[pool].peak)
            continue;
        blocks += unreturned(seq, pool);
        if (seq->pools[pool].peak > seq->pools[pool].held)
            blocks += seq->pools[pool].peak - seq->pools[pool].held;
    }
    return blocks;
}

bool soq__kv_promises_fit(const struct soq__kv_cache *c)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < c->n_pools; i++)
        bytes += soq__kv_pool_bytes_for(&c->pools[i], c->pools[i].n_used + promised(c, i));
    return bytes <= c->budget.limit;
}

static int refuse(const struct soq__kv_seq *seq, uint32_t n_entries, struct soq_error *err)
{
    const struct soq__kv_cache *c = seq->cache;
    uint64_t alone = 0;

    for (uint32_t i = 0; i < c->n_pools; i++)
        alone += ((uint64_t)seq->pools[i].peak + c->pools[i].blocks_per_slab - 1) / c->pools[i].blocks_per_slab *
                 c->pools[i].slab_bytes;
    if (alone > c->budget.limit)
        return soq__fail(err, SOQ_ELIMIT,
                         "KV cache: %u tokens need %s, the limit is %s; raise [kv] memory, or ask for fewer tokens "
                         "([engine] max_tokens)",
                         n_entries, SOQ__SIZE(alone), SOQ__SIZE(c->budget.limit));
    return soq__fail(err, SOQ_EBUSY,
                     "KV cache: %u tokens need %s, which other sequences hold at the moment (limit %s, [kv] memory)", n_entries,
                     SOQ__SIZE(alone), SOQ__SIZE(c->budget.limit));
}

/* What the sequence will need at most of a pool from here on. */
static uint32_t peak_of(const struct soq__kv_seq *seq, uint32_t pool, uint32_t n_prompt, uint32_t n_entries)
{
    const struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_need_params params = {
        .layout = c->layout,
        .policies = c->policies,
        .seq = seq,
        .chunk = c->chunk,
        .n_prompt = n_prompt,
        .n_entries = n_entries,
    };
    struct soq__kv_need need;

    soq__kv_need(&params, pool, &need);
    return soq__kv_need_peak(&need);
}

int soq__kv_reserve(struct soq__kv_seq *seq, uint32_t n_prompt, uint32_t n_entries, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_seq before = *seq;
    int rc;

    if (n_entries > c->context)
        return soq__fail(err, SOQ_ELIMIT, "%u tokens exceed the context of %u; raise [model] context", n_entries, c->context);
    for (uint32_t i = 0; i < c->n_pools; i++) {
        seq->pools[i].before = seq->pools[i].peak;
        seq->pools[i].peak = peak_of(seq, i, n_prompt, n_entries);
    }
    seq->n_prompt = n_prompt;
    seq->n_promised = n_entries;
    if (soq__kv_promises_fit(c)) {
        soq__kv_mass_new_prompt(seq);
        return 0;
    }
    rc = refuse(seq, n_entries, err);
    for (uint32_t i = 0; i < c->n_pools; i++)
        seq->pools[i].peak = seq->pools[i].before;
    seq->n_prompt = before.n_prompt;
    seq->n_promised = before.n_promised;
    return rc;
}

void soq__kv_unreserve(struct soq__kv_seq *seq)
{
    for (uint32_t i = 0; i < seq->cache->n_pools; i++)
        seq->pools[i].peak = 0;
    seq->n_promised = 0;
}

void soq__kv_shrink_promise(struct soq__kv_seq *seq)
{
    for (uint32_t i = 0; i < seq->cache->n_pools; i++)
        if (seq->pools[i].peak)
            seq->pools[i].peak = soq__min_u32(seq->pools[i].peak, peak_of(seq, i, seq->n_prompt, seq->n_promised));
}
