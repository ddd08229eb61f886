/* KV policy `snapkv`: the last rows of the prompt choose what stays of it (Y. Li et al., "SnapKV: LLM Knows What You are
 * Looking for Before Generation", NeurIPS 2024).
 *
 * With w = window and n entries, each KV head keeps its last w entries and, of the others, the capacity - w best: score(j) is
 * the attention probability that the last w rows give to entry j, added up over them and the head's query heads, and pooled
 * over `kernel` neighbours (snap.h). No more than `capacity` entries: all stay. Query heads are added up before
 * pooling. The other order, which kvpress has, differs for the maximum alone and is not offered: it would take the mass of each
 * query head, as many times the memory as heads share a KV head.
 *
 * As published that happens once, at the end of the prompt, and the answer is added to what was kept. With when = always it
 * happens again at every multiple of `every`, with the last w rows of the answer as the window. Positions are the original
 * ones.
 *
 * The defaults are those of the published code (window 64, kernel 5, average, capacity 320); its LongBench runs use window 32,
 * kernel 7 and the maximum. */
#include "describe.h"
#include "snap.h"
#include "top.h"

static int snapkv_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    (void)host;
    return snap_init(self, "snapkv", config, err);
}

static int snapkv_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    (void)err;
    snap_plan(self, shape, 0, plan_out);
    return 0;
}

static int snapkv_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    const struct snap *snap = self;
    uint32_t capacity = budget_capacity(&snap->budget, selection->n_prompt);
    double *scores = selection->scratch; /* [entries], one head after the other */

    (void)state;
    (void)err;
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        struct soq_kv_head *head = selection_head(selection, i);

        snap_scores(snap, head, scores);
        keep_best(head, scores, capacity, snap->window);
    }
    return 0;
}

static const struct soq_option snapkv_options[] = {
    BUDGET_OPTIONS("320", "prompt", "64"),
    SNAP_OPTIONS("64", "5", "avg"),
};

static const struct soq_kv_policy_ops snapkv_ops = {
    .struct_size = sizeof snapkv_ops,
    .instance_size = sizeof(struct snap),
    .init = snapkv_init,
    .describe = snapkv_describe,
    .select = snapkv_select,
    .scratch = {.per_entry = sizeof(double)},
    .budget = budget_alike,
};

KV_POLICY_PLUGIN(snapkv, "what the end of the prompt attends to stays");
