/* KV policy `h2o`: heavy hitters and the latest entries stay (Z. Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient
 * Generative Inference of Large Language Models", NeurIPS 2023, algorithm 1).
 *
 * An entry's score is all the attention probability that rows have given it so far, those of the prompt and of the answer,
 * added up over the query heads of its KV head. Each KV head keeps its last `recent` entries and, of the others, the capacity -
 * recent best. Entries that went take their score along; those that stay go on adding to theirs.
 *
 * That happens at the end of the prompt and then at every multiple of `every`. every = 1 is the paper's greedy algorithm: after
 * each token one entry goes. Positions are the original ones.
 *
 * Budgets are counts (capacity, recent), or shares of the prompt (ratio, recent_ratio): the paper's tables have 0.1 heavy
 * hitters and 0.1 latest, which is ratio = 0.2 and recent_ratio = 0.1. The default, 48 and 2000, is the published code's for
 * streaming.
 *
 * Every row counts, so a prompt is computed in full: what another sequence computed has left no sums behind. */
#include "budget.h"
#include "describe.h"
#include "top.h"

struct h2o {
    struct budget budget;
    uint32_t recent;
    double recent_ratio;
};

static int h2o_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct h2o *h2o = self;

    (void)host;
    budget_read(&h2o->budget, config);
    h2o->recent = (uint32_t)config->get_int(config->ctx, "recent");
    h2o->recent_ratio = config->get_float(config->ctx, "recent_ratio");
    if (h2o->budget.ratio <= 0)
        return budget_reserve(&h2o->budget, "h2o", "recent", h2o->recent, err);
    if (h2o->recent_ratio > h2o->budget.ratio)
        return plugin_fail(
            err, SOQ_EINVAL,
            "[kv.h2o] ratio = %g does not hold recent_ratio = %g: set ratio to %g or more, or recent_ratio to %g "
            "or less",
            h2o->budget.ratio, h2o->recent_ratio, h2o->recent_ratio, h2o->budget.ratio);
    return 0;
}

static int h2o_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    struct h2o *h2o = self;

    (void)err;
    budget_plan(&h2o->budget, shape, SOQ_NEED_MASS, plan_out);
    plan_out->no_prefix_hits = plan_out->needs != 0;
    return 0;
}

static int h2o_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    const struct h2o *h2o = self;
    uint32_t n_prompt = selection->n_prompt, capacity = budget_capacity(&h2o->budget, n_prompt);
    uint32_t recent = h2o->budget.ratio > 0 ? budget_share(h2o->recent_ratio, n_prompt) : h2o->recent;

    (void)state;
    (void)err;
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        struct soq_kv_head *head = selection_head(selection, i);

        keep_best(head, head->mass, capacity, recent);
    }
    return 0;
}

static const struct soq_option h2o_options[] = {
    BUDGET_OPTIONS("2048", "always", "32"),
    OPTION_INT("recent", "2000", 0, INT32_MAX, "Last entries, which stay in any case; part of capacity."),
    OPTION_FLOAT("recent_ratio", "0.1", 0, 1, "With ratio: the same as a share of the prompt, part of ratio."),
};

static const struct soq_kv_policy_ops h2o_ops = {
    .struct_size = sizeof h2o_ops,
    .traits = SOQ_POLICY_NO_PREFIX_HITS,
    .instance_size = sizeof(struct h2o),
    .init = h2o_init,
    .describe = h2o_describe,
    .select = h2o_select,
    .budget = budget_alike,
};

KV_POLICY_PLUGIN(h2o, "what gets most attention stays, and the latest entries");
