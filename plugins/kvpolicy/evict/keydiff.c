/* KV policy `keydiff`: keys that point where most keys point go (J. Park et al., "KeyDiff: Key Similarity-Based KV Cache
 * Eviction for Long-Context LLM Inference in Resource-Constrained Environments", 2025).
 *
 * The anchor of a KV head is the mean of its keys' directions, k / |k|. Each head keeps the `capacity` entries whose keys have
 * the smallest cosine with it. Keys are taken after RoPE, as they are stored; no attention is looked at, and no entry is safe.
 */
#include <math.h>

#include "budget.h"
#include "describe.h"
#include "top.h"

enum { HEAD_DIM_MAX = 1024 };

static int keydiff_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    if (shape->head_dim > HEAD_DIM_MAX)
        return plugin_fail(err, SOQ_EUNSUPPORTED, "[kv.keydiff] heads of %u numbers, %d at most: choose another policy",
                           shape->head_dim, HEAD_DIM_MAX);
    budget_plan(self, shape, SOQ_NEED_KEYS, plan_out);
    return 0;
}

static double keydiff_dot(const float *key, const double *with, uint32_t dim)
{
    double sum = 0;

    for (uint32_t d = 0; d < dim; d++)
        sum += key[d] * with[d];
    return sum;
}

static double keydiff_norm(const float *key, uint32_t dim)
{
    double sum = 0;

    for (uint32_t d = 0; d < dim; d++)
        sum += (double)key[d] * (double)key[d];
    return sqrt(sum);
}

/* Cosines with the anchor, negative and times its length, which is the same for all. anchor: [dim] */
static void keydiff_scores(const struct soq_kv_head *head, uint32_t dim, double *anchor, double *scores_out)
{
    double *length = scores_out; /* of each key, until its score takes the place */

    memset(anchor, 0, dim * sizeof *anchor);
    for (uint32_t i = 0; i < head->n; i++) {
        const float *key = head->keys + (size_t)i * dim;

        length[i] = keydiff_norm(key, dim);
        for (uint32_t d = 0; d < dim && length[i] > 0; d++)
            anchor[d] += key[d] / length[i];
    }
    for (uint32_t i = 0; i < head->n; i++)
        scores_out[i] = length[i] > 0 ? -keydiff_dot(head->keys + (size_t)i * dim, anchor, dim) / length[i] : 0;
}

static int keydiff_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    uint32_t capacity = budget_capacity(self, selection->n_prompt);
    double *anchor = selection->scratch, *scores = anchor + HEAD_DIM_MAX;

    (void)state;
    (void)err;
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        struct soq_kv_head *head = selection_head(selection, i);

        keydiff_scores(head, selection->head_dim, anchor, scores);
        keep_best(head, scores, capacity, 0);
    }
    return 0;
}

static const struct soq_option keydiff_options[] = {
    BUDGET_OPTIONS("1024", "prompt", "32"),
};

static const struct soq_kv_policy_ops keydiff_ops = {
    .struct_size = sizeof keydiff_ops,
    .instance_size = sizeof(struct budget),
    .init = budget_init,
    .describe = keydiff_describe,
    .select = keydiff_select,
    .scratch = {.fixed = HEAD_DIM_MAX * sizeof(double), .per_entry = sizeof(double)},
    .budget = budget_alike,
};

KV_POLICY_PLUGIN(keydiff, "keys unlike the others stay");
