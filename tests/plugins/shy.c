/* For tests: a policy that keeps everything and wants no drafts, and a sampler that takes the best token and tells no
 * probabilities. With SHY_STATE the sampler keeps a state. */
#include "soquete/plugin.h"

#ifndef SHY_NAME
#define SHY_NAME "shy"
#define SHY_STATE 0
#endif

static int shy_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    (void)self;
    (void)host;
    (void)config;
    (void)err;
    return 0;
}

static int shy_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    (void)self;
    (void)shape;
    (void)plan_out;
    (void)err;
    return 0;
}

static int shy_defaults(void *self, struct soq_sampling *sampling_out, struct soq_error *err)
{
    (void)self;
    (void)sampling_out;
    (void)err;
    return 0;
}

static int shy_check(void *self, const struct soq_sampling *sampling, uint32_t n_vocab, struct soq_error *err)
{
    (void)self;
    (void)sampling;
    (void)n_vocab;
    (void)err;
    return 0;
}

static int shy_sample(void *self, void *state, const struct soq_sampling *sampling, const struct soq_sampler_row *row,
                      struct soq_sampled *sampled_out, struct soq_error *err)
{
    uint32_t best = 0;

    (void)self;
    (void)state;
    (void)sampling;
    (void)err;
    for (uint32_t t = 1; t < row->n_vocab; t++)
        best = row->logits[t] > row->logits[best] ? t : best;
    sampled_out->token = (int32_t)best;
    sampled_out->logprob = 0;
    sampled_out->n_candidates = 1;
    return 0;
}

static const struct soq_kv_policy_ops shy_policy = {
    .struct_size = sizeof shy_policy,
    .traits = SOQ_POLICY_NO_DRAFTS,
    .instance_size = 1,
    .init = shy_init,
    .describe = shy_describe,
};

static const struct soq_sampler_ops shy_sampler = {
    .struct_size = sizeof shy_sampler,
    .instance_size = 1,
    .init = shy_init,
    .defaults = shy_defaults,
    .check = shy_check,
    .state_size = SHY_STATE,
    .sample = shy_sample,
};

static const struct soq_role_entry shy_roles[] = {
    {
        .struct_size = sizeof shy_roles[0],
        .role = SOQ_ROLE_KV_POLICY,
        .minor = SOQ_KV_POLICY_MINOR,
        .min_minor = SOQ_KV_POLICY_MINOR,
        .ops = &shy_policy,
        .option_stride = sizeof(struct soq_option),
    },
    {
        .struct_size = sizeof shy_roles[0],
        .role = SOQ_ROLE_SAMPLER,
        .minor = SOQ_SAMPLER_MINOR,
        .min_minor = SOQ_SAMPLER_MINOR,
        .ops = &shy_sampler,
        .option_stride = sizeof(struct soq_option),
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = SHY_NAME,
    .variant = "",
    .version = "1",
    .summary = "For tests: no drafts, no probabilities",
    .licence = "Apache-2.0",
    .n_roles = sizeof shy_roles / sizeof shy_roles[0],
    .role_stride = sizeof shy_roles[0],
    .roles = shy_roles,
};
