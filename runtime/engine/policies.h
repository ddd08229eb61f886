/* The policies that rule a model's cache: the one of [kv] policy, and what [kv.layers] puts in its place for some layers. */
#ifndef SOQ_ENGINE_POLICIES_H
#define SOQ_ENGINE_POLICIES_H

#include "kv/policy.h"
#include "model/hparams.h"
#include "plugin/host.h"
#include "plugin/pluginconf.h"
#include "plugin/registry.h"

struct soq__role_instance {
    const struct soq__plugin_role *plugin;
    void *self; /* owned */
    struct soq__plugin_config config;
};

/* Loads and initialises the plugin that `spec` names; done() undoes it. */
int soq__role_init(struct soq__role_instance *instance, struct soq__registry *registry, struct soq__settings *settings,
                   enum soq_role role, const char *spec, const struct soq_host *host, struct soq_error *err);
void soq__role_done(struct soq__role_instance *instance);

struct soq__policies_params {
    struct soq__registry *registry;
    struct soq__settings *settings;
    const struct soq_host *host;
    const struct soq__hparams *hparams;
    uint32_t context;
};

/* One instance for each policy with options of its own. The struct must not move. */
struct soq__policies {
    struct soq__role_instance roles[SOQ__KV_POLICIES_MAX];
    struct soq__settings *overlays[SOQ__KV_POLICIES_MAX]; /* [kv.NAME] with an override's options in it; NULL: the settings */
    const char *texts[SOQ__KV_POLICIES_MAX];              /* of the override, for messages and to find it again; "": none */
    struct soq__kv_policy kv[SOQ__KV_POLICIES_MAX];       /* as the cache takes them, with their plans */
    uint32_t n;
    uint32_t *of_layer; /* [n_layers] index; owned */
};

/* Initialises the policies and asks each for its plan; refuses plans that make no sense or that this release cannot carry out.
 * Needs done() even if it fails. */
int soq__policies_init(struct soq__policies *policies, const struct soq__policies_params *params, struct soq_error *err);
void soq__policies_done(struct soq__policies *policies);

/* The plan of one policy. */
int soq__policy_plan(const struct soq__role_instance *policy, const struct soq__hparams *hparams, uint32_t context,
                     uint32_t block_tokens, struct soq_kv_plan *plan_out, struct soq_error *err);

#endif
