/* KV policy `l2norm`: long keys go (A. Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression",
 * EMNLP 2024).
 *
 * A key's length says how little attention it gets: the sinks have the shortest keys of all. Each KV head keeps the `capacity`
 * entries with the smallest L2 norms. No attention is looked at, and no entry is safe. The paper leaves the first two layers
 * alone, which [kv.layers] can do. */
#include "budget.h"
#include "describe.h"
#include "top.h"

static int l2norm_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    (void)err;
    budget_plan(self, shape, SOQ_NEED_KEYS, plan_out);
    return 0;
}

/* The shorter the better. Squares sort like norms. */
static double l2norm_score(const float *key, uint32_t dim)
{
    double sum = 0;

    for (uint32_t d = 0; d < dim; d++)
        sum += (double)key[d] * (double)key[d];
    return -sum;
}

static int l2norm_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    uint32_t capacity = budget_capacity(self, selection->n_prompt), dim = selection->head_dim;
    double *scores = selection->scratch; /* [entries], one head after the other */

    (void)state;
    (void)err;
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        struct soq_kv_head *head = selection_head(selection, i);

        for (uint32_t j = 0; j < head->n; j++)
            scores[j] = l2norm_score(head->keys + (size_t)j * dim, dim);
        keep_best(head, scores, capacity, 0);
    }
    return 0;
}

static const struct soq_option l2norm_options[] = {
    BUDGET_OPTIONS("1024", "prompt", "32"),
};

static const struct soq_kv_policy_ops l2norm_ops = {
    .struct_size = sizeof l2norm_ops,
    .instance_size = sizeof(struct budget),
    .init = budget_init,
    .describe = l2norm_describe,
    .select = l2norm_select,
    .scratch = {.per_entry = sizeof(double)},
    .budget = budget_alike,
};

KV_POLICY_PLUGIN(l2norm, "short keys stay");
