/* What is compared: a policy, a codec and a budget, written
 *
 *     POLICY[:KEY=VALUE]...[/CODEC[:KEY=VALUE]...[+CODEC[:KEY=VALUE]...]][@BUDGET]
 *
 * for example snapkv@256, streaming:sinks=0@0.25, full/int8, full/kivi:bits=4+int8 (keys, then values). A KEY is one of the
 * plugin's own section [kv.NAME]; with a dot it is any other, kv.block_tokens. */
#ifndef SOQ_CLI_EVAL_CONFIG_H
#define SOQ_CLI_EVAL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct soq__eval_config {
    char *label;     /* as it is written */
    char *policy;    /* its name */
    char **settings; /* [n_settings] "kv.policy=snapkv"; without the budget */
    uint32_t n_settings, cap_settings;
    double budget; /* from 1: entries of a KV head; below: a share of the prompt; 0: none is given */
};

struct soq__eval_configs {
    struct soq__eval_config *items; /* [n] the first is the full cache in f32, with which all others are compared */
    uint32_t n, cap;
};

/* Lists with commas between, all combinations of which are meant; NULL: none. */
struct soq__eval_lists {
    const char *policies, *codecs, *budgets;
};

/* The reference, the combinations, and what the words say; what is said twice counts once. configs needs done() in any case. */
int soq__eval_configs_init(struct soq__eval_configs *configs, const struct soq__eval_lists *lists, char *const *words,
                           uint32_t n_words, struct soq_error *err);
void soq__eval_configs_done(struct soq__eval_configs *configs);

/* Entries of a KV head that the budget means behind a prompt; 0: there is none. */
uint32_t soq__eval_capacity(const struct soq__eval_config *config, uint32_t n_prompt);

#endif
