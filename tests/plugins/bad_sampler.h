/* A sampler with one thing wrong: the tree's standard behind a wrapper. */
#ifndef BAD_SAMPLE
#define BAD_SAMPLE
#endif
#ifndef BAD_DISTRIBUTION
#define BAD_DISTRIBUTION
#endif
#define soquete_plugin_v0 real_plugin
#define standard_roles real_roles
#define standard_ops real_ops
#include "decoding/standard.c"
#undef soquete_plugin_v0
#undef standard_roles
#undef standard_ops

static int bad_sample(void *self, void *state, const struct soq_sampling *sampling, const struct soq_sampler_row *row,
                      struct soq_sampled *sampled_out, struct soq_error *err)
{
    BAD_SAMPLE;
    return standard_sample(self, state, sampling, row, sampled_out, err);
}

static int bad_distribution(void *self, const void *state, const struct soq_sampling *sampling,
                            const struct soq_sampler_row *row, struct soq_distribution *out, struct soq_error *err)
{
    BAD_DISTRIBUTION;
    return standard_distribution(self, state, sampling, row, out, err);
}

static const struct soq_sampler_ops bad_ops = {
    .struct_size = sizeof bad_ops,
    .instance_size = sizeof(struct standard),
    .init = standard_init,
    .defaults = standard_defaults,
    .check = standard_check,
    .sample = bad_sample,
    .distribution = bad_distribution,
};

static const struct soq_role_entry bad_roles[] = {
    {
        .struct_size = sizeof bad_roles[0],
        .role = SOQ_ROLE_SAMPLER,
        .minor = SOQ_SAMPLER_MINOR,
        .min_minor = SOQ_SAMPLER_MINOR,
        .ops = &bad_ops,
        .options = standard_options,
        .n_options = sizeof standard_options / sizeof standard_options[0],
        .option_stride = sizeof standard_options[0],
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "bad",
    .variant = "",
    .version = "1",
    .summary = "A sampler with one thing wrong",
    .licence = "Apache-2.0",
    .n_roles = sizeof bad_roles / sizeof bad_roles[0],
    .role_stride = sizeof bad_roles[0],
    .roles = bad_roles,
};
