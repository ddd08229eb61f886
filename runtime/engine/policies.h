/* The policies that rule a model's cache: the one of [kv] policy, what [kv.layers] puts in its place for some layers and heads,
 * and where there is a lossy view, that of [draft]. */
#ifndef SOQ_ENGINE_POLICIES_H
#define SOQ_ENGINE_POLICIES_H

#include "base/hash.h"
#include "engine/layers.h"
#include "engine/role.h"
#include "kv/policy.h"
#include "model/hparams.h"

struct soq__policies_params {
    struct soq__registry *registry;
    struct soq__settings *settings;
    const struct soq_host *host;
    const struct soq__hparams *hparams;
    const struct soq__layer_rules *layers; /* used by init() only */
    const struct soq__hash *fingerprint;   /* of the model; NULL: a shape without one */
    bool lossy;                            /* a view for drafts is wanted, too */
    uint32_t context;
};

/* One instance for each policy with options of its own and each number of a layer's kv heads that it rules, which are all heads
 * that it knows of. The struct must not move. */
struct soq__policies {
    struct soq__role_instance roles[SOQ__KV_POLICIES_MAX];
    struct soq__settings *overlays[SOQ__KV_POLICIES_MAX]; /* [kv.NAME] with an override's options in it; NULL: the settings */
    char *words[SOQ__KV_POLICIES_MAX];                    /* "NAME key:value ..." */
    struct soq__kv_policy kv[SOQ__KV_POLICIES_MAX];       /* as the cache takes them, with their plans */
    uint32_t n;                                           /* the first is that of [kv] */
    uint32_t *of[SOQ__KV_VIEWS];                          /* [n_layers][n_kv_heads] index; owned; NULL: there is no such view */
};

/* Initialises the policies and asks each for its plan; refuses plans that make no sense or that this release cannot carry out.
 * Needs done() even if it fails. */
int soq__policies_init(struct soq__policies *policies, const struct soq__policies_params *params, struct soq_error *err);
void soq__policies_done(struct soq__policies *policies);

/* What a plugin learns of the model; nothing about RoPE. */
struct soq_kv_shape soq__kv_shape_of(const struct soq__hparams *hparams, uint32_t context, uint32_t block_tokens);
/* The plan of one policy. */
int soq__policy_plan(const struct soq__role_instance *policy, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out,
                     struct soq_error *err);

#endif
