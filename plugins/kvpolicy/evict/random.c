/* KV policy `random`: chance decides what stays. Not for use: a policy that is worth its name beats it.
 *
 * Every (position, layer, KV head) draws a number, a pure function of it and the seed (philox.h), and each head keeps the
 * `capacity` entries with the largest. A number is drawn once and for all, so what stays is at any time a fair sample of all
 * positions so far, and does not depend on when the selections were. No entry is safe. */
#include "budget.h"
#include "describe.h"
#include "philox.h"
#include "top.h"

struct random {
    struct budget budget;
    uint32_t seed;
};

static int random_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct random *random = self;

    (void)host;
    (void)err;
    budget_read(&random->budget, config);
    random->seed = (uint32_t)config->get_int(config->ctx, "seed");
    return 0;
}

static int random_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    struct random *random = self;

    (void)err;
    budget_plan(&random->budget, shape, 0, plan_out);
    return 0;
}

static double random_score(uint32_t seed, uint32_t position, uint32_t layer, uint32_t head)
{
    struct philox draw = philox4x32((struct philox){{position, layer, head, 0}}, seed, 0);

    return draw.word[0] + draw.word[1] * 0x1p-32;
}

static int random_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    const struct random *random = self;
    uint32_t capacity = budget_capacity(&random->budget, selection->n_prompt);
    double *scores = selection->scratch; /* [entries], one head after the other */

    (void)state;
    (void)err;
    for (uint32_t i = 0; i < selection->n_heads; i++) {
        struct soq_kv_head *head = selection_head(selection, i);

        for (uint32_t j = 0; j < head->n; j++)
            scores[j] = random_score(random->seed, head->positions[j], selection->layer, i);
        keep_best(head, scores, capacity, 0);
    }
    return 0;
}

static const struct soq_option random_options[] = {
    BUDGET_OPTIONS("1024", "prompt", "32"),
    OPTION_INT("seed", "0", 0, INT32_MAX, "Seed of the draws; the same seed keeps the same positions."),
};

static const struct soq_kv_policy_ops random_ops = {
    .struct_size = sizeof random_ops,
    .instance_size = sizeof(struct random),
    .init = random_init,
    .describe = random_describe,
    .select = random_select,
    .scratch = {.per_entry = sizeof(double)},
    .budget = budget_alike,
};

KV_POLICY_PLUGIN(random, "chance decides what stays");
