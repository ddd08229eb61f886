/* One instance of a policy, as the cache asks it: several may rule different layers of a model, or kv heads of a layer. */
#ifndef SOQ_KV_POLICY_H
#define SOQ_KV_POLICY_H

#include <stdbool.h>

#include "soquete/plugin.h"

#define SOQ__KV_POLICIES_MAX 32      /* bits of a word (mass.c) */
#define SOQ__KV_NO_POLICY UINT32_MAX /* layers with a window of the model's own, which policies leave alone */

/* Views of the cache. Each holds the same tokens, in the same entries, in groups of its own. */
enum soq__kv_view {
    SOQ__KV_FULL = 0,  /* decides which tokens come */
    SOQ__KV_LOSSY = 1, /* proposes drafts, where a configuration asks for that */
};
#define SOQ__KV_VIEWS 2

/* What configures a view: "kv" or "draft". */
static inline const char *soq__kv_section(enum soq__kv_view view)
{
    return view == SOQ__KV_FULL ? "kv" : "draft";
}

struct soq__kv_policy {
    const struct soq_kv_policy_ops *ops;
    void *self;
    struct soq_kv_plan plan;
    const char *name; /* for messages */
    enum soq__kv_view view;
    uint32_t n_heads; /* kv heads of each of its layers that it rules */
    size_t state_at;  /* of its part of a sequence's policy state; the cache's */
};

static inline bool soq__kv_selects(const struct soq__kv_policy *p)
{
    return p->plan.needs & SOQ_NEED_SELECTION;
}

static inline bool soq__kv_weighs(const struct soq__kv_policy *p)
{
    return p->plan.needs & SOQ_NEED_MASS;
}

/* Whether nothing ever goes. */
static inline bool soq__kv_keeps_all(const struct soq__kv_policy *p)
{
    return !p->plan.needs && !p->plan.window && !p->ops->state_size;
}

/* Whether a selection follows the commit that ends at n tokens. */
static inline bool soq__kv_selection_is_due(const struct soq__kv_policy *p, uint32_t n, uint32_t n_prompt)
{
    return soq__kv_selects(p) && (n == n_prompt || (n > n_prompt && p->plan.every && n % p->plan.every == 0));
}

#endif
