/* What snapkv, pyramidkv and adakv share: an observation window at the end of the prompt that ranks what lies before it.
 *
 * The last `window` rows of the prompt are the observers. An entry's score is the attention probability that they give it,
 * added up over them and over the query heads of the KV head, and then pooled over neighbouring entries, because an entry
 * without its surroundings is of little use (Y. Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation",
 * NeurIPS 2024, listing 1). The window itself always stays.
 *
 * The heads are added up first and the sum is pooled. The other order, pooling each query head and then adding, is the same for
 * the average; for the maximum it is not, and is not offered: a policy is given the attention mass of KV heads, not of each
 * query head, which would take as many times the memory. */
#ifndef KVPOLICY_SNAP_H
#define KVPOLICY_SNAP_H

#include <stdbool.h>

#include "budget.h"

struct snap {
    struct budget budget;
    uint32_t window;
    uint32_t kernel; /* odd */
    bool max;        /* pools by the maximum, not the average */
};

#define SNAP_OPTIONS(window, kernel, pool)                                                                                     \
    OPTION_INT("window", window, 1, 4096, "Last positions: they rank the others by their attention, and always stay."),        \
        OPTION_INT("kernel", kernel, 1, 255, "Neighbouring entries that scores are pooled over, an odd number; 1: none."),     \
        OPTION_ENUM("pool", pool, "avg|max", "Pool by the average or by the maximum.")

/* Reads and checks the options of [kv.`policy`]. */
static inline int snap_init(struct snap *snap, const char *policy, const struct soq_config *config, struct soq_error *err)
{
    budget_read(&snap->budget, config);
    snap->window = (uint32_t)config->get_int(config->ctx, "window");
    snap->kernel = (uint32_t)config->get_int(config->ctx, "kernel");
    snap->max = strcmp(config->get_string(config->ctx, "pool"), "max") == 0;
    if (snap->kernel % 2 == 0)
        return plugin_fail(err, SOQ_EINVAL, "[kv.%s] kernel = %u has no middle: set an odd number, %u or %u", policy,
                           snap->kernel, snap->kernel - 1, snap->kernel + 1);
    if (snap->budget.every && snap->budget.every < snap->window)
        return plugin_fail(err, SOQ_EINVAL,
                           "[kv.%s] every = %u is less than window = %u, so that windows overlap: set every to %u or more, or "
                           "window to %u or less",
                           policy, snap->budget.every, snap->window, snap->window, snap->budget.every);
    return budget_reserve(&snap->budget, policy, "window", snap->window, err);
}

static inline void snap_plan(struct snap *snap, const struct soq_kv_shape *shape, uint32_t needs, struct soq_kv_plan *plan_out)
{
    budget_plan(&snap->budget, shape, needs | SOQ_NEED_MASS, plan_out);
    if (plan_out->needs)
        plan_out->queries = snap->window;
}

/* Entries of a head that are ranked. */
static inline uint32_t snap_ranked(const struct snap *snap, const struct soq_kv_head *head)
{
    return head->n > snap->window ? head->n - snap->window : 0;
}

/* Pooled scores [snap_ranked]. Outside lies nothing: 0 for the average, which always divides by the kernel, so not at all. */
static inline void snap_scores(const struct snap *snap, const struct soq_kv_head *head, double *scores_out)
{
    uint32_t n = snap_ranked(snap, head), half = snap->kernel / 2;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = i > half ? i - half : 0, last = n - i > half ? i + half : n - 1;
        double sum = 0, most = 0; /* mass is never negative */

        for (uint32_t j = first; j <= last; j++) {
            sum += head->mass[j];
            most = head->mass[j] > most ? head->mass[j] : most;
        }
        scores_out[i] = snap->max ? most : sum;
    }
}

#endif
