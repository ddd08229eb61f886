/* What happens when rows become part of the cache: sums of attention mass, policies on the grid, windows, selection, packing.
 *
 * Everything that may fail for a reason of the policy's comes first and leaves the sequence as it was; then rows are committed
 * and blocks given back; then survivors of a selection are moved, and blocks are packed. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"

/* ---- Masks: what nobody sees any more ------------------------------------------------------------------------------------ */

/* Frees every whole block of group g between its sinks and `keep_from` (an entry). */
static void free_behind(struct soq__kv_seq *seq, uint32_t g, uint32_t sinks, uint32_t keep_from)
{
    struct soq__kv_seq_group *sg = &seq->groups[g];
    uint32_t first = soq__kv_blocks(seq->cache, sinks), last = keep_from / seq->cache->block_tokens;
    uint32_t done = sg->freed_to / seq->cache->block_tokens;

    if (last <= first || last <= done)
        return;
    soq__kv_drop_blocks(seq, g, done > first ? done : first, last);
    sg->freed_to = last * seq->cache->block_tokens;
}

/* on_commit may let only that go which no later row sees: anything else would depend on how rows were batched. */
static int check_ranges(const struct soq__kv_cache *c, const struct soq__kv_policy *policy, uint32_t n_ranges, uint32_t n,
                        struct soq_error *err)
{
    uint32_t at = 0, from = soq__kv_visible_from(policy->plan.window, n),
             sinks = policy->plan.sinks < n ? policy->plan.sinks : n;

    for (uint32_t i = 0; i <= n_ranges; i++) {
        struct soq_kv_range r = i < n_ranges ? c->ranges[i] : (struct soq_kv_range){n, n};

        if (r.first < at || r.last < r.first || r.last > n)
            return soq__fail(err, SOQ_EINVAL, "range %u, [%u, %u), is not ascending or lies beyond %u", i, r.first, r.last, n);
        if (r.first > at && (at < sinks || r.first > from))
            return soq__fail(err, SOQ_EINVAL, "drops positions [%u, %u), which rows can still see", at, r.first);
        at = r.last;
    }
    return 0;
}

/* Asks a policy what stays at n positions. *keep_from is raised to where the last of the ranges begins: all between the sinks
 * and there may go. */
static int ask(struct soq__kv_seq *seq, const struct soq__kv_policy *policy, uint32_t n, bool end_of_prompt,
               uint32_t *keep_from, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    char *state = seq->policy_state;
    struct soq_kv_commit commit = {
        .struct_size = sizeof commit,
        .n_positions = n,
        .end_of_prompt = end_of_prompt,
        .max_ranges = c->max_ranges,
    };
    uint32_t n_ranges = 0, from;
    int rc = policy->ops->on_commit(policy->self, state ? state + policy->state_at : NULL, &commit, c->ranges, &n_ranges, err);

    if (!rc && n_ranges > c->max_ranges)
        rc = soq__fail(err, SOQ_EINVAL, "%u ranges, but there is room for %u", n_ranges, c->max_ranges);
    if (!rc)
        rc = check_ranges(c, policy, n_ranges, n, err);
    if (rc) {
        soq__fail_prefix(err, "[%s] policy = %s: at %u tokens", soq__kv_section(policy->view), policy->name, n);
        return rc;
    }
    from = !n_ranges || c->ranges[n_ranges - 1].last < n ? n : c->ranges[n_ranges - 1].first;
    *keep_from = from > *keep_from ? from : *keep_from;
    return 0;
}

/* A policy at every grid point from the one behind n_committed to `now`. */
static int ask_on_grid(struct soq__kv_seq *seq, const struct soq__kv_policy *policy, uint32_t now, uint32_t *keep_from,
                       struct soq_error *err)
{
    uint32_t grid = policy->plan.grid ? policy->plan.grid : seq->cache->block_tokens;
    int rc = 0;

    for (uint32_t n = (seq->n_committed / grid + 1) * grid; !rc && n <= now; n += grid)
        rc = ask(seq, policy, n, n == seq->n_prompt, keep_from, err);
    if (!rc && now == seq->n_prompt && now % grid)
        rc = ask(seq, policy, now, true, keep_from, err);
    return rc;
}

/* ---- The trace ----------------------------------------------------------------------------------------------------------- */

static void trace_head(const struct soq__kv_seq *seq, const struct soq__kv_part *part, uint32_t layer, uint32_t head,
                       uint32_t *kept)
{
    const struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_group_layout *layout = c->groups[part->group].layout;
    uint32_t from = soq__kv_visible_from(layout->window, seq->n_committed), n = 0;

    for (uint32_t e = seq->groups[part->group].base; e < seq->n_committed; e++)
        if (!layout->window || e >= from || e < layout->sinks)
            kept[n++] = soq__kv_position(seq, part->group, part->index, head, e);
    c->trace.fn(c->trace.arg, &(struct soq__kv_kept){
                                  .sequence = seq->id,
                                  .position = seq->n_committed,
                                  .layer = layer,
                                  .head = part->first_head + head,
                                  .n_kept = n,
                                  .kept = kept,
                                  .bytes = soq__kv_held_bytes(seq, part->group) / layout->n_layers / layout->n_heads,
                              });
}

/* Whoever watches learns what every layer and head holds, in the lossy view where there is one. Without memory for the list he
 * learns nothing. */
static void trace(const struct soq__kv_seq *seq)
{
    const struct soq__kv_layout *layout = seq->cache->layout;
    uint32_t *kept = soq__alloc_array(seq->n_committed, sizeof *kept);

    for (uint32_t l = 0; kept && l < layout->n_layers; l++) {
        uint32_t n;
        const struct soq__kv_part *part = soq__kv_parts(layout, layout->n_views - 1, l, &n);

        for (; n--; part++)
            for (uint32_t h = 0; h < part->n_heads; h++)
                trace_head(seq, part, l, h, kept);
    }
    soq__free(kept);
}

/* ---- Commit -------------------------------------------------------------------------------------------------------------- */

/* What policies want at n_committed = now, with nothing done about it. */
static int decide(struct soq__kv_seq *seq, uint32_t now, uint32_t *keep_from, struct soq__kv_selected **selected,
                  struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < c->n_policies; i++) {
        keep_from[i] = 0;
        if (c->policies[i].ops->on_commit)
            rc = ask_on_grid(seq, &c->policies[i], now, &keep_from[i], err);
    }
    return rc ? rc : soq__kv_select(seq, now, selected, err);
}

/* decide(), or everything as before. */
static int try_to_decide(struct soq__kv_seq *seq, uint32_t n_rows, uint32_t *keep_from, struct soq__kv_selected **selected,
                         struct soq_error *err)
{
    size_t size = seq->cache->state_size;
    void *before = size ? soq__alloc(size) : NULL;
    int rc;

    if (size && !before)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for the policies' state");
    if (size)
        memcpy(before, seq->policy_state, size);
    rc = soq__kv_mass_add(seq, n_rows, false, err);
    if (!rc) {
        rc = decide(seq, seq->n_committed + n_rows, keep_from, selected, err);
        if (rc)
            soq__kv_mass_add(seq, n_rows, true, NULL);
    }
    if (rc && size)
        memcpy(seq->policy_state, before, size);
    soq__free(before);
    return rc;
}

/* Rows [n_committed, now) are the cache's, what masks hide is given back. */
static void take_rows(struct soq__kv_seq *seq, uint32_t now, const uint32_t *keep_from)
{
    struct soq__kv_cache *c = seq->cache;
    uint32_t end = seq->n_committed + seq->n_tentative, p = c->block_tokens;
    uint32_t grid = now == seq->n_prompt ? now : now / p * p; /* the latest grid point of windows */
    bool passed = grid > seq->n_committed;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct soq__kv_group_layout *layout = c->groups[g].layout;

        soq__kv_drop_blocks(seq, g, soq__kv_blocks(c, now), soq__kv_blocks(c, end));
        if (layout->policy != SOQ__KV_NO_POLICY)
            free_behind(seq, g, layout->sinks, keep_from[layout->policy]);
        else if (passed)
            free_behind(seq, g, layout->sinks, soq__kv_visible_from(layout->window, grid));
    }
    seq->n_committed = now;
    seq->n_tentative = 0;
    soq__kv_mass_settle(seq);
}

/* Policies that add up the mass of a few rows begin anew. */
static void restart_sums(struct soq__kv_seq *seq)
{
    const struct soq__kv_cache *c = seq->cache;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct soq__kv_policy *policy = c->groups[g].weighs ? &c->policies[c->groups[g].layout->policy] : NULL;

        if (policy && policy->plan.queries && soq__kv_selection_is_due(policy, seq->n_committed, seq->n_prompt))
            soq__kv_mass_drop(&seq->groups[g]);
    }
}

/* Blocks move: survivors of a selection, if there was one, and those that are due to be packed. */
static int move_blocks(struct soq__kv_seq *seq, struct soq__kv_selected *selected, struct soq_error *err)
{
    bool selects = selected != NULL;
    int rc = selects ? soq__kv_compact(seq, selected, err) : soq__kv_pack(seq, err);

    soq__kv_selected_free(selected, seq->cache->n_groups);
    if (rc) {
        soq__fail_prefix(err, "KV cache: %s was broken off, and the sequence is empty now",
                         selects ? "a selection" : "packing blocks");
        soq__kv_empty(seq);
        return rc;
    }
    if (selects) {
        restart_sums(seq);
        soq__kv_shrink_promise(seq);
    }
    return 0;
}

int soq__kv_commit(struct soq__kv_seq *seq, uint32_t n_rows, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    uint32_t keep_from[SOQ__KV_POLICIES_MAX], now = seq->n_committed + n_rows;
    struct soq__kv_selected *selected = NULL;
    bool watched;
    int rc;

    if (n_rows > seq->n_tentative)
        return soq__fail(err, SOQ_EINTERNAL, "KV cache: commit of %u rows, but %u are tentative", n_rows, seq->n_tentative);
    rc = try_to_decide(seq, n_rows, keep_from, &selected, err);
    if (rc)
        return rc;
    take_rows(seq, now, keep_from);
    watched = c->trace.fn && (selected || (n_rows && now == seq->n_prompt));
    rc = move_blocks(seq, selected, err);
    if (!rc && watched)
        trace(seq);
    return rc;
}
