/* One sequence's block tables: tentative rows, rollback, fork, and what the backend reads of them. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"
#include "kv/internal.h"
#include "kv/swap.h"

/* ---- Life ---------------------------------------------------------------------------------------------------------------- */

static void free_parts(struct soq__kv_seq *seq)
{
    for (uint32_t g = 0; seq->groups && g < seq->cache->n_groups; g++) {
        soq__free(seq->groups[g].table);
        soq__free(seq->groups[g].positions);
        soq__free(seq->groups[g].mass);
    }
    soq__free(seq->groups);
    soq__free(seq->pools);
    soq__free(seq->policy_state);
    *seq = (struct soq__kv_seq){0};
}

int soq__kv_seq_init(struct soq__kv_seq *seq, struct soq__kv_cache *c, struct soq_error *err)
{
    uint32_t slot = 0;
    bool ok;

    while (slot < c->max_slots && c->slots[slot])
        slot++;
    if (slot == c->max_slots)
        return soq__fail(err, SOQ_EBUSY, "all %u sequences are in use; raise [engine] max_sequences", c->max_slots);
    *seq = (struct soq__kv_seq){
        .cache = c,
        .slot = slot,
        .policy_state = c->state_size ? soq__alloc_zero(1, c->state_size) : NULL,
        .groups = soq__alloc_zero(c->n_groups, sizeof *seq->groups),
        .pools = soq__alloc_zero(c->n_pools, sizeof *seq->pools),
    };
    ok = seq->groups && seq->pools && (seq->policy_state || !c->state_size);
    for (uint32_t g = 0; ok && g < c->n_groups; g++) {
        seq->groups[g].table = soq__alloc_array(c->groups[g].max_blocks, sizeof(soq_block_ref));
        ok = seq->groups[g].table != NULL;
        if (ok)
            memset(seq->groups[g].table, 0xff, c->groups[g].max_blocks * sizeof(soq_block_ref)); /* SOQ_BLOCK_NONE */
    }
    if (!ok) {
        free_parts(seq);
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for the tables of a sequence");
    }
    seq->id = ++c->n_sequences;
    c->slots[slot] = seq;
    return 0;
}

/* by: 1 for a block that the table gets, -1 for one that it loses. */
static void count_block(struct soq__kv_seq *seq, uint32_t g, soq_block_ref block, int by)
{
    const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;
    bool packed = block >> SOQ_BLOCK_CLASS_SHIFT;

    seq->groups[g].n_held += (uint32_t)by;
    seq->groups[g].n_packed += packed ? (uint32_t)by : 0;
    seq->pools[packed ? layout->packed_pool : layout->pool].held += (uint32_t)by;
}

void soq__kv_drop_blocks(struct soq__kv_seq *seq, uint32_t g, uint32_t first, uint32_t last)
{
    struct soq__kv_seq_group *sg = &seq->groups[g];

    for (uint32_t i = first; i < last; i++) {
        if (sg->table[i] == SOQ_BLOCK_NONE)
            continue;
        count_block(seq, g, sg->table[i], -1);
        soq__kv_let_go(seq->cache, g, sg->table[i]);
        sg->table[i] = SOQ_BLOCK_NONE;
    }
}

void soq__kv_hold(struct soq__kv_seq *seq, uint32_t g, uint32_t index, soq_block_ref block)
{
    soq_block_ref *line = &seq->groups[g].table[index];

    if (*line != SOQ_BLOCK_NONE)
        count_block(seq, g, *line, -1);
    count_block(seq, g, block, 1);
    *line = block;
}

void soq__kv_seq_done(struct soq__kv_seq *seq)
{
    if (!seq->cache)
        return;
    soq__kv_empty(seq);
    seq->cache->slots[seq->slot] = NULL;
    free_parts(seq);
}

void soq__kv_empty(struct soq__kv_seq *seq)
{
    struct soq__kv_cache *c = seq->cache;

    soq__kv_swap_drop(seq);
    soq__kv_drop_edits(seq);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        struct soq__kv_seq_group *sg = &seq->groups[g];

        soq__kv_drop_blocks(seq, g, 0, c->groups[g].max_blocks);
        soq__kv_mass_drop(sg);
        soq__free(sg->positions);
        sg->positions = NULL;
        sg->freed_to = sg->base = sg->n_selected = 0;
    }
    if (seq->policy_state)
        memset(seq->policy_state, 0, c->state_size);
    seq->n_committed = seq->n_tentative = seq->n_prompt = 0;
}

/* ---- Tentative rows ----------------------------------------------------------------------------------------------------- */

/* Makes table entry i of group g a block that only this sequence holds; what it shared so far is copied up to entry `used`. */
static int own_block(struct soq__kv_seq *seq, uint32_t g, uint32_t i, uint32_t used, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    struct soq__kv_seq_group *sg = &seq->groups[g];
    struct soq__kv_pool *pool = c->groups[g].pools[0]; /* packed blocks are full: no row goes there */
    soq_block_ref old = sg->table[i], block;
    uint32_t n_edits = c->n_edits;
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
        c->n_edits = n_edits;
        soq__kv_block_unref(pool, block);
        return rc;
    }
    soq__kv_let_go(c, g, old);
    soq__kv_hold(seq, g, i, block);
    return 0;
}

uint32_t soq__kv_max_rows(const struct soq__kv_seq *seq)
{
    const struct soq__kv_cache *c = seq->cache;
    uint32_t n = seq->n_committed, most = c->context - n;

    if (c->layout->grid && c->layout->grid - n % c->layout->grid < most)
        most = c->layout->grid - n % c->layout->grid;
    if (n < seq->n_prompt)
        return seq->n_prompt - n < most ? seq->n_prompt - n : most;
    for (uint32_t i = 0; i < c->n_policies; i++) {
        uint32_t every = soq__kv_selects(&c->policies[i]) ? c->policies[i].plan.every : 0;

        if (every && every - n % every < most)
            most = every - n % every;
    }
    return most;
}

int soq__kv_prepare(struct soq__kv_seq *seq, uint32_t n_rows, struct soq_error *err)
{
    const struct soq__kv_cache *c = seq->cache;
    uint32_t start = seq->n_committed, end;
    int rc;

    if (seq->n_tentative || n_rows > soq__kv_max_rows(seq))
        return soq__fail(err, SOQ_EINTERNAL, "KV cache: %u rows do not fit behind %u entries of %u", n_rows, start, c->context);
    end = start + n_rows;
    rc = soq__kv_mass_reserve(seq, n_rows, err);
    for (uint32_t g = 0; !rc && g < c->n_groups; g++)
        for (uint32_t i = start / c->block_tokens; !rc && i < soq__kv_blocks(c, end); i++) {
            uint32_t first = i * c->block_tokens;

            rc = own_block(seq, g, i, start > first ? start - first : 0, err);
        }
    if (!rc)
        seq->n_tentative = n_rows;
    return rc;
}

void soq__kv_abandon(struct soq__kv_seq *seq)
{
    const struct soq__kv_cache *c = seq->cache;

    for (uint32_t g = 0; g < c->n_groups; g++)
        soq__kv_drop_blocks(seq, g, soq__kv_blocks(c, seq->n_committed), c->groups[g].max_blocks);
    seq->n_tentative = 0;
    soq__kv_mass_settle(seq);
}

/* ---- Back ---------------------------------------------------------------------------------------------------------------- */

/* Whether everything that a row at n > 0 sees is still there. */
static bool sees_all(const struct soq__kv_seq *seq, uint32_t n)
{
    const struct soq__kv_cache *c = seq->cache;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint32_t from = soq__kv_visible_from(c->groups[g].layout->window, n);

        if (seq->groups[g].freed_to > from || seq->groups[g].n_selected > n)
            return false;
    }
    return true;
}

/* The highest number of entries, n or less, at which rows see packed what is packed now: n, the grid point below it, or 0 where
 * entries are packed that lie in the residual before it. */
static uint32_t packing_point(const struct soq__kv_seq *seq, uint32_t n)
{
    const struct soq__kv_cache *c = seq->cache;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct soq__kv_group_layout *layout = c->groups[g].layout;

        if (soq__kv_packed_to(layout, n) == soq__kv_packed_to(layout, seq->n_committed))
            continue;
        if (layout->residual)
            return 0;
        n = n / layout->grid * layout->grid;
    }
    return n;
}

uint32_t soq__kv_rollback_point(const struct soq__kv_seq *seq, uint32_t n)
{
    const struct soq__kv_cache *c = seq->cache;

    if (seq->n_tentative || n >= seq->n_committed)
        return seq->n_committed;
    if (c->state_size) /* it has no earlier copy */
        return 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        if (seq->groups[g].mass && seq->groups[g].mass_from < n)
            n = seq->groups[g].mass_from; /* the sums hold rows beyond n, but none before here */
    n = packing_point(seq, n);
    return sees_all(seq, n) ? n : 0;
}

int soq__kv_rollback(struct soq__kv_seq *seq, uint32_t n, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    uint32_t point = soq__kv_rollback_point(seq, n);

    if (seq->n_tentative || n > seq->n_committed)
        return soq__fail(err, SOQ_EINVAL, "KV cache: cannot go back to %u entries, %u are committed", n, seq->n_committed);
    if (n && point != n && c->state_size)
        return soq__fail(err, SOQ_EINVAL, "KV cache: the policy keeps a state, which has no earlier copy to go back to");
    if (n && point != n)
        return soq__fail(
            err, SOQ_EINVAL,
            "KV cache: cannot go back to %u entries: some that rows there see are already freed or packed, or the policy has "
            "added up what later rows saw; go back to %u",
            n, point);
    if (n == seq->n_committed)
        return 0;
    if (!n) {
        soq__kv_empty(seq);
        return 0;
    }
    for (uint32_t g = 0; g < c->n_groups; g++) {
        soq__kv_drop_blocks(seq, g, soq__kv_blocks(c, n), soq__kv_blocks(c, seq->n_committed));
        soq__kv_mass_drop(&seq->groups[g]); /* it held later rows only */
    }
    seq->n_committed = n;
    seq->n_prompt = n < seq->n_prompt ? n : seq->n_prompt;
    return 0;
}

/* ---- Forks --------------------------------------------------------------------------------------------------------------- */

static size_t lines_of(const struct soq__kv_group *group)
{
    return (size_t)group->layout->n_layers * group->layout->n_heads;
}

/* Survivors' positions and sums of mass of one group. */
static int fork_lists(struct soq__kv_seq *dst, const struct soq__kv_seq *src, uint32_t g, struct soq_error *err)
{
    const struct soq__kv_seq_group *from = &src->groups[g];
    struct soq__kv_seq_group *to = &dst->groups[g];
    size_t lines = lines_of(&src->cache->groups[g]), n = lines * (from->n_selected - from->base);

    to->freed_to = from->freed_to;
    to->base = from->base;
    to->n_selected = from->n_selected;
    if (from->positions) {
        to->positions = soq__alloc_array(n, sizeof *to->positions);
        if (to->positions)
            memcpy(to->positions, from->positions, n * sizeof *to->positions);
    }
    if (from->mass) {
        to->mass = soq__alloc_array(lines * from->mass_cap, sizeof *to->mass);
        to->mass_cap = from->mass_cap;
        to->mass_from = from->mass_from;
        if (to->mass)
            memcpy(to->mass, from->mass, lines * from->mass_cap * sizeof *to->mass);
    }
    if (!to->positions != !from->positions || !to->mass != !from->mass)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for a fork");
    return 0;
}

static int fork_blocks(struct soq__kv_seq *dst, const struct soq__kv_seq *src, uint32_t g, struct soq_error *err)
{
    struct soq__kv_cache *c = src->cache;
    const struct soq__kv_seq_group *from = &src->groups[g];

    for (uint32_t i = 0; i < soq__kv_blocks(c, src->n_committed); i++) {
        struct soq_step_edit edit = {.slot = dst->slot, .group = g, .index = i, .block = from->table[i]};
        int rc;

        if (from->table[i] == SOQ_BLOCK_NONE)
            continue;
        rc = soq__kv_push_edit(c, edit,
                               err); /* if later ones fail this names a block that dst does not list: nothing reads it */
        if (rc)
            return rc;
        soq__kv_block_ref(soq__kv_pool_of(&c->groups[g], from->table[i]), from->table[i]);
        soq__kv_hold(dst, g, i, from->table[i]);
    }
    return 0;
}

static int check_forks(const struct soq__kv_cache *c, struct soq_error *err)
{
    for (uint32_t i = 0; i < c->n_policies; i++)
        if (c->policies[i].ops->traits & SOQ_POLICY_NO_FORK)
            return soq__fail(err, SOQ_EUNSUPPORTED, "KV cache: sequences of the policy %s cannot be forked",
                             c->policies[i].name);
    return 0;
}

int soq__kv_fork(struct soq__kv_seq *dst, const struct soq__kv_seq *src, struct soq_error *err)
{
    struct soq__kv_cache *c = src->cache;
    int rc = check_forks(c, err);

    for (uint32_t g = 0; !rc && g < c->n_groups; g++) {
        rc = fork_lists(dst, src, g, err);
        if (!rc)
            rc = fork_blocks(dst, src, g, err);
    }
    if (!rc && src->policy_state)
        memcpy(dst->policy_state, src->policy_state, c->state_size);
    dst->n_committed = src->n_committed;
    dst->n_prompt = src->n_prompt < src->n_committed ? src->n_prompt : src->n_committed;
    if (!rc && !soq__kv_promises_fit(c)) /* the source may have to copy its tail now */
        rc = soq__fail(err, SOQ_EBUSY, "KV cache: no room for another fork under the limit of %s; raise [kv] memory",
                       SOQ__SIZE(c->budget.limit));
    if (rc)
        soq__kv_empty(dst);
    return rc;
}

/* ---- What the backend reads ---------------------------------------------------------------------------------------------- */

static void put_segment(const struct soq__kv_seq *seq, uint32_t g, uint32_t first, uint32_t last, struct soq_step_segment *out)
{
    const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;

    *out = (struct soq_step_segment){
        .group = g,
        .n_layers = layout->n_layers,
        .n_heads = layout->n_heads,
        .first_entry = first,
        .n_entries = last - first,
    };
}

/* A group whose positions count by slot: sinks, then the rest up to `end`. */
static uint32_t put_by_slot(const struct soq__kv_seq *seq, uint32_t g, uint32_t end, struct soq_step_segment *out)
{
    const struct soq__kv_seq_group *sg = &seq->groups[g];
    const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;
    uint32_t n = 0, sinks = sg->base + layout->sinks < end ? sg->base + layout->sinks : end;

    if (layout->sinks) {
        put_segment(seq, g, sg->base, sinks, &out[n]);
        out[n].flags = layout->window ? SOQ_SEGMENT_ROLLING : sg->base ? SOQ_SEGMENT_ROTATE : 0;
        out[n].rotation = layout->window ? 0 : sg->base;
        n++;
    }
    if (sinks < end || !n)
        put_segment(seq, g, sg->freed_to > sinks ? sg->freed_to : sinks, end, &out[n++]);
    return n;
}

/* A group with original positions: what is held of the sinks where entries behind them are gone, then the rest. */
static uint32_t put_plain(const struct soq__kv_seq *seq, uint32_t g, uint32_t end, struct soq_step_segment *out)
{
    const struct soq__kv_seq_group *sg = &seq->groups[g];
    uint32_t n = 0, p = seq->cache->block_tokens, sinks = 0;

    while (sinks < sg->freed_to && sg->table[sinks / p] != SOQ_BLOCK_NONE)
        sinks += p;
    if (sinks && sinks < sg->freed_to)
        put_segment(seq, g, 0, sinks, &out[n++]);
    put_segment(seq, g, sg->freed_to > sg->base ? sg->freed_to : sg->base, end, &out[n++]);
    return n;
}

uint32_t soq__kv_segments(const struct soq__kv_seq *seq, uint32_t end, struct soq_step_segment *out, uint32_t max)
{
    const struct soq__kv_cache *c = seq->cache;
    uint32_t n = 0;

    if (max < soq__kv_max_segments(c))
        return 0;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct soq__kv_group_layout *layout = c->groups[g].layout;
        bool by_slot = layout->policy != SOQ__KV_NO_POLICY && c->policies[layout->policy].plan.slot_positions;

        n += by_slot ? put_by_slot(seq, g, end, out + n) : put_plain(seq, g, end, out + n);
    }
    return n;
}

uint64_t soq__kv_seq_bytes(const struct soq__kv_seq *seq)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < seq->cache->n_pools; i++)
        bytes += seq->pools[i].held * seq->cache->pools[i].block_bytes;
    return bytes;
}

uint64_t soq__kv_view_bytes(const struct soq__kv_seq *seq, enum soq__kv_view view)
{
    const struct soq__kv_layout *layout = seq->cache->layout;
    uint64_t bytes = 0;

    for (uint32_t l = 0; view < layout->n_views && l < layout->n_layers; l++) {
        uint32_t n;
        const struct soq__kv_part *part = soq__kv_parts(layout, view, l, &n);

        for (; n--; part++)
            bytes += soq__kv_held_bytes(seq, part->group) / layout->groups[part->group].n_layers;
    }
    return bytes;
}

uint64_t soq__kv_draft_bytes(const struct soq__kv_seq *seq)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < seq->cache->n_groups; g++)
        bytes += seq->cache->groups[g].layout->view == SOQ__KV_LOSSY ? soq__kv_held_bytes(seq, g) : 0;
    return bytes;
}

uint32_t soq__kv_position(const struct soq__kv_seq *seq, uint32_t group, uint32_t layer, uint32_t head, uint32_t e)
{
    const struct soq__kv_seq_group *sg = &seq->groups[group];
    size_t line = (size_t)layer * seq->cache->groups[group].layout->n_heads + head;

    return e < sg->n_selected ? sg->positions[line * (sg->n_selected - sg->base) + e - sg->base] : e;
}
