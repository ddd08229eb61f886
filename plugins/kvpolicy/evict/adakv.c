/* KV policy `adakv`: snapkv whose heads compete, so that heads with widely spread attention keep more (Y. Feng et al., "Ada-KV:
 * Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference", 2024, algorithm 1).
 *
 * Scores, window and pooling are those of snapkv (snap.h); G KV heads of a layer share G capacity entries, and `floor` (f)
 * keeps any one from starving. With w = window and B = capacity - w:
 *
 * - formula = paper: with n_g = entries of head g among the G B best of all heads, head g keeps its best (1 - f) n_g + f B, to
 *   the nearest integer, and the window.
 *
 * - formula = kvpress: each head gets the window and its best floor(f capacity) - w others; what is left of G capacity goes to
 *   the best of all heads that are not in yet.
 *
 * Layers keep G capacity entries each (paper: give or take the rounding), their heads what they are worth. Scores of heads are
 * compared as they are. Equal scores of two heads: the lower head first. Positions are the original ones. */
#include <math.h>

#include "describe.h"
#include "snap.h"
#include "top.h"

struct adakv {
    struct snap snap;
    double floor;
    bool kvpress; /* the formula */
};

static int adakv_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct adakv *adakv = self;

    (void)host;
    adakv->floor = config->get_float(config->ctx, "floor");
    adakv->kvpress = strcmp(config->get_string(config->ctx, "formula"), "kvpress") == 0;
    return snap_init(&adakv->snap, "adakv", config, err);
}

static int adakv_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    (void)err;
    snap_plan(self, shape, SOQ_NEED_LAYER_BUDGETS | SOQ_NEED_HEAD_BUDGETS, plan_out);
    return 0;
}

/* formula = kvpress: ranked entries that a head keeps in any case. */
static uint32_t adakv_guarantee(const struct adakv *adakv, uint32_t capacity)
{
    uint32_t share = budget_share(adakv->floor, capacity);

    return adakv->kvpress && share > adakv->snap.window ? share - adakv->snap.window : 0;
}

/* The best `n` of a head's scores rise above all others. */
static void adakv_raise(double *scores, uint32_t n_scores, uint32_t n)
{
    struct top cut = top_cut(scores, n_scores, n);

    for (uint32_t i = 0; i < n_scores; i++)
        scores[i] = top_takes(&cut, scores[i]) ? INFINITY : scores[i];
}

static int adakv_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    const struct adakv *adakv = self;
    const struct snap *snap = &adakv->snap;
    uint32_t capacity = budget_capacity(&snap->budget, selection->n_prompt), share = capacity - snap->window;
    double *scores = selection->scratch, *next = scores; /* of all heads, one after the other */
    struct top cut;

    (void)state;
    (void)err;
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        const struct soq_kv_head *head = selection_head(selection, i);

        snap_scores(snap, head, next);
        adakv_raise(next, snap_ranked(snap, head), adakv_guarantee(adakv, capacity));
        next += snap_ranked(snap, head);
    }
    if ((uint64_t)(next - scores) <= (uint64_t)share * selection->n_heads)
        return 0; /* all stay */

    cut = top_cut(scores, (uint32_t)(next - scores), share * selection->n_heads);
    next = scores;
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        struct soq_kv_head *head = selection_head(selection, i);
        uint32_t ranked = snap_ranked(snap, head), best = 0;

        for (uint32_t j = 0; j < ranked; j++)
            best += top_takes(&cut, next[j]);
        if (!adakv->kvpress)
            best = budget_round((1 - adakv->floor) * best + adakv->floor * share);
        keep_best(head, next, best + snap->window, snap->window);
        next += ranked;
    }
    return 0;
}

/* A bound: what a head has less, another may have more. */
static uint64_t adakv_budget(const void *self, uint32_t layer, uint32_t n_positions, uint32_t n_prompt)
{
    const struct adakv *adakv = self;
    uint32_t n_heads = adakv->snap.budget.n_kv_heads, capacity = budget_capacity(&adakv->snap.budget, n_prompt);
    uint64_t all = (uint64_t)n_heads * n_positions, bound = (uint64_t)n_heads * capacity;

    (void)layer;
    bound += adakv->kvpress ? 0 : n_heads / 2; /* roundings, half an entry each */
    return all < bound ? all : bound;
}

static const struct soq_option adakv_options[] = {
    BUDGET_OPTIONS("320", "prompt", "32"),
    SNAP_OPTIONS("32", "7", "max"),
    OPTION_FLOAT("floor", "0.2", 0, 1, "Share of capacity that no head goes without; 1: all heads alike."),
    OPTION_ENUM("formula", "paper", "paper|kvpress", "How heads compete."),
};

static const struct soq_kv_policy_ops adakv_ops = {
    .struct_size = sizeof adakv_ops,
    .instance_size = sizeof(struct adakv),
    .init = adakv_init,
    .describe = adakv_describe,
    .select = adakv_select,
    .scratch = {.per_entry = sizeof(double)},
    .budget = adakv_budget,
};

KV_POLICY_PLUGIN(adakv, "snapkv with heads that compete for entries");
