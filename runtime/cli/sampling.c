/* Sampling options over the configured defaults. */
#include "cli/sampling.h"

static void lay(double given, float *value)
{
    if (!isnan(given))
        *value = (float)given;
}

int soq__sampling_build(struct soq_model *model, const struct soq__sampling_options *options, struct soq_sampling *out,
                        struct soq_error *err)
{
    struct soq_sampling s = {.struct_size = sizeof s};
    int rc = soq_sampling_defaults(model, &s, err);

    if (rc)
        return rc;
    lay(options->temperature, &s.temperature);
    lay(options->top_p, &s.top_p);
    lay(options->min_p, &s.min_p);
    lay(options->repeat_penalty, &s.repeat_penalty);
    if (options->top_k != SOQ__UNSET)
        s.top_k = (int32_t)options->top_k;
    if (options->seed != SOQ__UNSET)
        s.seed = (uint64_t)options->seed;
    *out = s;
    return 0;
}
