/* The policies with small budgets, to see that whatever happens to a sequence its tokens stay the same. */
#ifndef SOQ_TESTS_POLICY_CASES_H
#define SOQ_TESTS_POLICY_CASES_H

#include "tests/unit/engine_fixture.h"

/* Each policy with a budget far below the prompt. */
static const char *const policies[][4] = {
    {"kv.policy=full"},
    {"kv.policy=window", "kv.window.capacity=48"},
    {"kv.policy=streaming", "kv.streaming.sinks=4", "kv.streaming.capacity=48"},
    {"kv.policy=h2o", "kv.h2o.capacity=48", "kv.h2o.recent=16", "kv.h2o.every=16"},
    {"kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16"},
    {"kv.policy=pyramidkv", "kv.pyramidkv.capacity=48", "kv.pyramidkv.window=16"},
    {"kv.policy=adakv", "kv.adakv.capacity=48", "kv.adakv.window=16"},
    {"kv.policy=tova", "kv.tova.capacity=48"},
    {"kv.policy=keydiff", "kv.keydiff.capacity=48"},
    {"kv.policy=l2norm", "kv.l2norm.capacity=48"},
    {"kv.policy=observed", "kv.observed.capacity=48"},
    {"kv.policy=random", "kv.random.capacity=48"},
    {"kv.policy=streaming", "kv.streaming.sinks=4", "kv.streaming.capacity=48", "kv.layers.0-/0=policy:full"},
    {"kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16", "kv.layers.1/1=policy:adakv capacity:48 window:16"},
};
#define N_POLICIES (sizeof policies / sizeof policies[0])

/* A model with the policy's settings and up to 16 more. */
static inline struct fixture open_with(const char *path, const char *const policy[4], const char *const *more)
{
    const char *all[24] = {"kv.block_tokens=8", "engine.chunk=24"};
    size_t n = 2;

    for (size_t i = 0; i < 4 && policy && policy[i]; i++)
        all[n++] = policy[i];
    for (size_t i = 0; more && more[i]; i++)
        all[n++] = more[i];
    return open_model(path, all);
}

#endif
