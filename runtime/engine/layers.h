/* [kv.layers]: what some layers get in place of [kv] policy, codec_k and codec_v, and some kv heads in place of their layer's
 * policy.
 *
 *     0-1,28- = policy:window capacity:2048 codec:int8
 *     2-27/0,3 = policy:full
 *
 * Behind the layers stand policy:NAME, codec_k:NAME, codec_v:NAME, or codec:NAME for both, each with options of its own behind
 * it; options at the front are those of the policy of [kv]. Heads get a policy only, and theirs goes before their layer's. */
#ifndef SOQ_ENGINE_LAYERS_H
#define SOQ_ENGINE_LAYERS_H

#include <stdint.h>

#include "config/settings.h"

enum soq__layer_part { SOQ__LAYER_POLICY, SOQ__LAYER_CODEC_K, SOQ__LAYER_CODEC_V, SOQ__LAYER_PARTS };

/* A key. */
struct soq__layer_rule {
    const char *key, *value;       /* the settings' */
    char *words[SOQ__LAYER_PARTS]; /* "NAME key:value ...", owned; NULL: it does not say */
};

struct soq__layer_rules {
    struct soq__layer_rule *rules; /* [n] owned */
    size_t n;
    uint32_t n_layers, n_heads;                          /* kv heads of a layer */
    const struct soq__layer_rule **of[SOQ__LAYER_PARTS]; /* [n_layers] owned; NULL: none */
    const struct soq__layer_rule **of_head;              /* [n_layers][n_heads] of policies; owned; NULL: as the layer */
};

/* Needs done() even if it fails. */
int soq__layer_rules_init(struct soq__layer_rules *rules, const struct soq__settings *settings, uint32_t n_layers,
                          uint32_t n_heads, struct soq_error *err);
void soq__layer_rules_done(struct soq__layer_rules *rules);
/* Who gives a kv head its policy: a rule for it, else one for its layer; NULL: none, so [kv] does. */
const struct soq__layer_rule *soq__layer_rules_policy(const struct soq__layer_rules *rules, uint32_t layer, uint32_t head);
/* Says which key the message is about, and where a word of it may be misspelt. */
void soq__layer_rule_blame(const struct soq__layer_rule *rule, struct soq_error *err);

#endif
