/* How many entries a KV head keeps, and when they are chosen: the options that every selecting policy has.
 *
 * `capacity` counts all entries of a KV head that are left after a selection, whatever the reason they stay. `ratio`, if above
 * 0, counts instead: of a prompt of n tokens floor(ratio n) entries stay, and never fewer than those that stay in any case. */
#ifndef KVPOLICY_BUDGET_H
#define KVPOLICY_BUDGET_H

#include <string.h>

#include "fail.h"
#include "option.h"

/* A policy's own struct begins with it, so that its `self` is one. */
struct budget {
    uint32_t capacity;
    double ratio;
    uint32_t least; /* entries that stay in any case: a window */
    uint32_t every; /* 0: at the end of the prompt only */
    uint32_t n_kv_heads;
};

#define BUDGET_OPTIONS(capacity, when, every)                                                                                  \
    OPTION_INT("capacity", capacity, 1, INT32_MAX, "Entries per KV head that stay after a selection, all counted."),           \
        OPTION_FLOAT("ratio", "0", 0, 1, "Share of the prompt that stays; above 0 it counts instead of capacity."),            \
        OPTION_ENUM("when", when, "prompt|always", "Select once, at the end of the prompt, or while decoding, too."),          \
        OPTION_INT("every", every, 1, INT32_MAX, "With when = always: select at positions that are multiples of it.")

static inline void budget_read(struct budget *budget, const struct soq_config *config)
{
    *budget = (struct budget){
        .capacity = (uint32_t)config->get_int(config->ctx, "capacity"),
        .ratio = config->get_float(config->ctx, "ratio"),
    };
    if (strcmp(config->get_string(config->ctx, "when"), "always") == 0)
        budget->every = (uint32_t)config->get_int(config->ctx, "every");
}

/* soq_kv_policy_ops.init where these are all the options; the instance is, or begins with, a struct budget. */
static inline int budget_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    (void)host;
    (void)err;
    budget_read(self, config);
    return 0;
}

/* `value` entries stay in any case, because the option `key` of [kv.`policy`] says so. */
static inline int budget_reserve(struct budget *budget, const char *policy, const char *key, uint32_t value,
                                 struct soq_error *err)
{
    budget->least = value;
    if (budget->ratio <= 0 && budget->capacity < value)
        return plugin_fail(err, SOQ_EINVAL,
                           "[kv.%s] capacity = %u does not hold %s = %u: set capacity to %u or more, or %s to %u or less",
                           policy, budget->capacity, key, value, value, key, budget->capacity);
    return 0;
}

/* A capacity that holds the context is the identity: the plan stays "keep everything". */
static inline void budget_plan(struct budget *budget, const struct soq_kv_shape *shape, uint32_t needs,
                               struct soq_kv_plan *plan_out)
{
    budget->n_kv_heads = shape->n_kv_heads;
    if (budget->ratio <= 0 && budget->capacity >= shape->context)
        return;
    plan_out->needs = needs | SOQ_NEED_SELECTION;
    plan_out->every = budget->every;
}

/* floor(ratio n), as if the ratio was the decimal number that was written. */
static inline uint32_t budget_share(double ratio, uint32_t n)
{
    return (uint32_t)(ratio * n + 1e-6);
}

/* To the nearest integer, halves to the even one. x is not negative. */
static inline uint32_t budget_round(double x)
{
    uint32_t n = (uint32_t)(x + 0.5);

    return n - x == 0.5 && n % 2 ? n - 1 : n;
}

/* Entries per KV head after a selection. */
static inline uint32_t budget_capacity(const struct budget *budget, uint32_t n_prompt)
{
    uint32_t share = budget_share(budget->ratio, n_prompt), least = budget->least ? budget->least : 1;

    if (budget->ratio <= 0)
        return budget->capacity;
    return share > least ? share : least;
}

/* soq_kv_policy_ops.budget where all heads keep alike. */
static inline uint64_t budget_alike(const void *self, uint32_t layer, uint32_t n_positions, uint32_t n_prompt)
{
    const struct budget *budget = self;
    uint32_t capacity = budget_capacity(budget, n_prompt);

    (void)layer;
    return (uint64_t)budget->n_kv_heads * (n_positions < capacity ? n_positions : capacity);
}

#endif
