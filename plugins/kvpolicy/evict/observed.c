/* KV policy `observed`: h2o without its bias towards early entries and without a recent window, as in ObservedAttentionPress of
 * NVIDIA's kvpress; after Z. Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
 * Models", NeurIPS 2023.
 *
 * An entry's score is the attention probability that rows have given it so far, added up over the query heads of its KV head
 * and divided by the number of rows that could see it. Each KV head keeps the `capacity` best; no entry is safe.
 *
 * Every row counts, so a prompt is computed in full: what another sequence computed has left no sums behind. */
#include "budget.h"
#include "describe.h"
#include "top.h"

static int observed_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    (void)err;
    budget_plan(self, shape, SOQ_NEED_MASS, plan_out);
    plan_out->no_prefix_hits = plan_out->needs != 0;
    return 0;
}

static int observed_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    uint32_t capacity = budget_capacity(self, selection->n_prompt);
    double *scores = selection->scratch; /* [entries], one head after the other */

    (void)state;
    (void)err;
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        struct soq_kv_head *head = selection_head(selection, i);

        for (uint32_t j = 0; j < head->n; j++)
            scores[j] = head->mass[j] / (selection->n_positions - head->positions[j]);
        keep_best(head, scores, capacity, 0);
    }
    return 0;
}

static const struct soq_option observed_options[] = {
    BUDGET_OPTIONS("1024", "prompt", "32"),
};

static const struct soq_kv_policy_ops observed_ops = {
    .struct_size = sizeof observed_ops,
    .traits = SOQ_POLICY_NO_PREFIX_HITS,
    .instance_size = sizeof(struct budget),
    .init = budget_init,
    .describe = observed_describe,
    .select = observed_select,
    .scratch = {.per_entry = sizeof(double)},
    .budget = budget_alike,
};

KV_POLICY_PLUGIN(observed, "what gets most attention per row stays");
