/* KV policy `pyramidkv`: snapkv with more entries in the lower layers and fewer in the upper ones, the same in all (Z. Cai et
 * al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling", 2024, section 4.2).
 *
 * Scores, window and pooling are those of snapkv (snap.h). With w = window, n tokens and L layers, the budgets fall by equal
 * steps from the first layer to the last:
 *
 * - formula = paper: B = capacity - w; low = B / beta, high = 2 B - low; layer l keeps high - l (high - low) / (L - 1) beside
 *   the window, all in integers. n < capacity: all stay; n < 2 B: B in every layer.
 *
 * - formula = kvpress: the same in real numbers with B = capacity, and the window is part of what a layer keeps, rounded to the
 *   nearest. Unless n >= high >= low >= w: capacity in every layer.
 *
 * Both: where high >= n - w, high = n - w and low = 2 B - high.
 *
 * So a layer may keep more than `capacity`: that is the mean over the layers. Positions are the original ones. */
#include "describe.h"
#include "snap.h"
#include "top.h"

struct pyramidkv {
    struct snap snap;
    uint32_t beta;
    bool kvpress; /* the formula */
    uint32_t n_layers;
};

static int pyramidkv_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct pyramidkv *pyramid = self;

    (void)host;
    pyramid->beta = (uint32_t)config->get_int(config->ctx, "beta");
    pyramid->kvpress = strcmp(config->get_string(config->ctx, "formula"), "kvpress") == 0;
    return snap_init(&pyramid->snap, "pyramidkv", config, err);
}

static int pyramidkv_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    struct pyramidkv *pyramid = self;

    (void)err;
    pyramid->n_layers = shape->n_layers;
    snap_plan(&pyramid->snap, shape, SOQ_NEED_LAYER_BUDGETS, plan_out);
    return 0;
}

/* formula = paper: the budget of a layer beside the window. */
static uint32_t pyramidkv_paper(const struct pyramidkv *pyramid, uint32_t layer, uint32_t n, uint32_t capacity)
{
    uint32_t window = pyramid->snap.window, budget = capacity - window, low = budget / pyramid->beta, high = 2 * budget - low;

    if (n < 2 * budget || pyramid->n_layers < 2)
        return budget;
    if (high >= n - window) {
        high = n - window;
        low = 2 * budget - high;
    }
    return high - layer * ((high - low) / (pyramid->n_layers - 1));
}

/* formula = kvpress: the budget of a layer, its window included. */
static uint32_t pyramidkv_kvpress(const struct pyramidkv *pyramid, uint32_t layer, uint32_t n, uint32_t capacity)
{
    double window = pyramid->snap.window, low = (double)capacity / pyramid->beta, high = 2.0 * capacity - low;

    if (high >= n - window) {
        high = n - window;
        low = 2.0 * capacity - high;
    }
    if (!(n >= high && high >= low && low >= window) || pyramid->n_layers < 2)
        return capacity;
    return budget_round(high - layer * (high - low) / (pyramid->n_layers - 1));
}

/* Entries that a KV head of the layer keeps of n tokens, window included. */
static uint32_t pyramidkv_capacity(const struct pyramidkv *pyramid, uint32_t layer, uint32_t n, uint32_t n_prompt)
{
    uint32_t capacity = budget_capacity(&pyramid->snap.budget, n_prompt);

    if (n <= capacity)
        return n;
    return pyramid->kvpress ? pyramidkv_kvpress(pyramid, layer, n, capacity)
                            : pyramidkv_paper(pyramid, layer, n, capacity) + pyramid->snap.window;
}

static int pyramidkv_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    const struct pyramidkv *pyramid = self;
    uint32_t capacity = pyramidkv_capacity(pyramid, selection->layer, selection->n_positions, selection->n_prompt);
    double *scores = selection->scratch; /* [entries], one head after the other */

    (void)state;
    (void)err;
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        struct soq_kv_head *head = selection_head(selection, i);

        snap_scores(&pyramid->snap, head, scores);
        keep_best(head, scores, capacity, pyramid->snap.window);
    }
    return 0;
}

static uint64_t pyramidkv_budget(const void *self, uint32_t layer, uint32_t n_positions, uint32_t n_prompt)
{
    const struct pyramidkv *pyramid = self;

    return (uint64_t)pyramid->snap.budget.n_kv_heads * pyramidkv_capacity(pyramid, layer, n_positions, n_prompt);
}

static const struct soq_option pyramidkv_options[] = {
    BUDGET_OPTIONS("320", "prompt", "64"),
    SNAP_OPTIONS("64", "5", "avg"),
    OPTION_INT("beta", "20", 1, 1000000, "How steep: the last layer keeps the mean divided by it."),
    OPTION_ENUM("formula", "paper", "paper|kvpress", "How budgets fall from layer to layer."),
};

static const struct soq_kv_policy_ops pyramidkv_ops = {
    .struct_size = sizeof pyramidkv_ops,
    .instance_size = sizeof(struct pyramidkv),
    .init = pyramidkv_init,
    .describe = pyramidkv_describe,
    .select = pyramidkv_select,
    .scratch = {.per_entry = sizeof(double)},
    .budget = pyramidkv_budget,
};

KV_POLICY_PLUGIN(pyramidkv, "snapkv with more entries in lower layers");
