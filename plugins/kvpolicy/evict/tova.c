/* KV policy `tova`: what the newest row attends to least goes (M. Oren et al., "Transformers are Multi-State RNNs",
 * EMNLP 2024: "token omission via attention").
 *
 * An entry's score is the attention probability that the last row gives it, added up over all heads of the layer. The layer
 * keeps the last entry and the capacity - 1 best of the others, the same for all of its KV heads.
 *
 * That happens at the end of the prompt and then at every multiple of `every`. every = 1 is the paper's rule: after each token
 * one entry goes. Positions are the original ones. */
#include "budget.h"
#include "describe.h"
#include "top.h"

static int tova_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    (void)err;
    budget_plan(self, shape, SOQ_NEED_MASS, plan_out);
    if (plan_out->needs)
        plan_out->queries = 1;
    return 0;
}

static int tova_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    uint32_t capacity = budget_capacity(self, selection->n_prompt), n = selection->heads->n;
    double *scores = selection->scratch; /* [entries] */

    (void)state;
    (void)err;
    memset(scores, 0, n * sizeof *scores);
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        const double *mass = selection_head(selection, i)->mass;

        for (uint32_t j = 0; j < n; j++)
            scores[j] += mass[j];
    }
    for (uint32_t i = 0; i < selection->n_heads; i++)
        keep_best(selection_head(selection, i), scores, capacity, 1);
    return 0;
}

static const struct soq_option tova_options[] = {
    BUDGET_OPTIONS("1024", "always", "32"),
};

static const struct soq_kv_policy_ops tova_ops = {
    .struct_size = sizeof tova_ops,
    .instance_size = sizeof(struct budget),
    .init = budget_init,
    .describe = tova_describe,
    .select = tova_select,
    .scratch = {.per_entry = sizeof(double)},
    .budget = budget_alike,
};

KV_POLICY_PLUGIN(tova, "what the last row attends to stays");
