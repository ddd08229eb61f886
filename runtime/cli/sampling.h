/* The options that steer the sampler, shared by run and chat: laid over the sampler's configured defaults. */
#ifndef SOQ_CLI_SAMPLING_H
#define SOQ_CLI_SAMPLING_H

#include <math.h>

#include "cli/options.h"
#include "soquete/soquete.h"

/* NaN and SOQ__UNSET: not given. */
struct soq__sampling_options {
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k, seed;
};

#define SOQ__UNSET INT64_MIN
#define SOQ__SAMPLING_OPTIONS_INIT                                                                                             \
    {                                                                                                                          \
        NAN, NAN, NAN, NAN, SOQ__UNSET, SOQ__UNSET                                                                             \
    }

/* Rows of an option table, for a struct with the field `sampling`. The sampler itself checks the values. */
#define SOQ__SAMPLING_ROWS(struct_)                                                                                            \
    SOQ__VALUE(SOQ__OPT_NUMBER, struct_, sampling.temperature, "temp", 0, "X",                                                 \
               "Temperature: flattens (> 1) or sharpens (< 1) the distribution; 0: the most probable token.", .min = -1e9,     \
               .max = 1e9),                                                                                                    \
        SOQ__VALUE(SOQ__OPT_INT, struct_, sampling.top_k, "top-k", 0, "N", "Keeps the N most probable tokens; 0: off.",        \
                   .min = -1, .max = INT32_MAX),                                                                               \
        SOQ__VALUE(SOQ__OPT_NUMBER, struct_, sampling.top_p, "top-p", 0, "X",                                                  \
                   "Keeps the fewest tokens that hold this share of the probability; 1: off.", .min = -1e9, .max = 1e9),       \
        SOQ__VALUE(SOQ__OPT_NUMBER, struct_, sampling.min_p, "min-p", 0, "X",                                                  \
                   "Drops tokens below this share of the best one's probability; 0: off.", .min = -1e9, .max = 1e9),           \
        SOQ__VALUE(SOQ__OPT_NUMBER, struct_, sampling.repeat_penalty, "repeat-penalty", 0, "X",                                \
                   "Makes tokens of the recent text less likely (> 1); 1: off.", .min = -1e9, .max = 1e9),                     \
        SOQ__VALUE(SOQ__OPT_INT, struct_, sampling.seed, "seed", 's', "N",                                                     \
                   "Seed of the random numbers; the same seed gives the same tokens.", .min = 0, .max = 9007199254740992.0)

int soq__sampling_build(struct soq_model *model, const struct soq__sampling_options *options, struct soq_sampling *out,
                        struct soq_error *err);

#endif
