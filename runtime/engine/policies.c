/* Policies: instances, plans, [kv.layers]. */
#include "engine/policies.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "config/settings.h"
#include "engine/place.h"

/* ---- One plugin ---------------------------------------------------------------------------------------------------------- */

struct role_table {
    size_t instance_size;
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err);
    void (*shutdown)(void *self);
};

static struct role_table table_of(const struct soq__plugin_role *p)
{
    switch (p->role) {
    case SOQ_ROLE_KV_POLICY:
        return (struct role_table){p->ops.kv_policy->instance_size, p->ops.kv_policy->init, p->ops.kv_policy->shutdown};
    case SOQ_ROLE_KV_CODEC:
        return (struct role_table){p->ops.kv_codec->instance_size, p->ops.kv_codec->init, p->ops.kv_codec->shutdown};
    default:
        return (struct role_table){p->ops.sampler->instance_size, p->ops.sampler->init, p->ops.sampler->shutdown};
    }
}

int soq__role_init(struct soq__role_instance *in, struct soq__registry *registry, struct soq__settings *settings,
                   enum soq_role role, const char *spec, const struct soq_host *host, struct soq_error *err)
{
    struct role_table table;
    void *self;
    int rc = soq__registry_find(registry, role, spec, &in->plugin, err);

    if (!rc)
        rc = soq__plugin_config_init(&in->config, in->plugin, settings, err);
    if (rc)
        return rc;
    table = table_of(in->plugin);
    self = soq__alloc_aligned(64, table.instance_size);
    if (!self)
        return soq__fail(err, SOQ_ENOMEM, "plugin %s: out of memory", in->plugin->id);
    memset(self, 0, table.instance_size);
    rc = table.init(self, host, &in->config.view, err);
    if (rc) {
        soq__free(self);
        soq__fail_prefix(err, "plugin %s", in->plugin->id);
        return rc;
    }
    in->self = self;
    return 0;
}

void soq__role_done(struct soq__role_instance *in)
{
    if (!in->self)
        return;
    table_of(in->plugin).shutdown(in->self);
    soq__free(in->self);
    in->self = NULL;
}

/* ---- Plans --------------------------------------------------------------------------------------------------------------- */

/* What is wrong with a plan, whatever the model and the backend; NULL: nothing. */
static const char *plan_problem(const struct soq_kv_plan *plan, const struct soq_kv_policy_ops *ops)
{
    const uint32_t of_selection = SOQ_NEED_MASS | SOQ_NEED_KEYS | SOQ_NEED_LAYER_BUDGETS | SOQ_NEED_HEAD_BUDGETS;
    bool selects = plan->needs & SOQ_NEED_SELECTION;

    if (ops->traits & SOQ_POLICY_NO_CHUNKS)
        return "it needs prompts in one piece, but this release computes them in chunks";
    if (plan->needs & ~(of_selection | SOQ_NEED_SELECTION))
        return "its plan needs something that this release does not know";
    if (!selects && (plan->needs || plan->every || plan->queries))
        return "its plan asks for mass, keys, budgets, `every` or `queries`, but not for SELECTION";
    if (selects && !(ops->select && ops->budget))
        return "its plan asks for SELECTION, but the plugin has no select() or no budget()";
    if (selects && plan->window)
        return "its plan has a window beside SELECTION";
    if (plan->slot_positions && !selects && !plan->window)
        return "its plan asks for positions by slot, but neither for a window nor for SELECTION";
    return NULL;
}

int soq__policy_plan(const struct soq__role_instance *policy, const struct soq__hparams *hp, uint32_t context,
                     uint32_t block_tokens, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    const struct soq_kv_policy_ops *ops = policy->plugin->ops.kv_policy;
    struct soq_kv_shape shape = {
        .struct_size = sizeof shape,
        .n_layers = hp->n_layers,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim_k,
        .context = context,
        .block_tokens = block_tokens,
        .model_window = hp->window,
    };
    struct soq_kv_plan plan = {.struct_size = sizeof plan};
    const char *problem = NULL;
    int rc = ops->describe(policy->self, &shape, &plan, err);

    if (!rc)
        problem = plan_problem(&plan, ops);
    if (problem)
        rc = soq__fail(err, SOQ_EUNSUPPORTED, "%s", problem);
    else if (!rc && plan.grid > block_tokens)
        rc = soq__fail(err, SOQ_EUNSUPPORTED, "its grid is %u tokens, but entries go every block_tokens = %u at the latest",
                       plan.grid, block_tokens);
    if (rc) {
        soq__fail_prefix(err, "[kv] policy = %s", policy->plugin->name);
        return rc;
    }
    *plan_out = plan;
    return 0;
}

/* ---- [kv.layers] --------------------------------------------------------------------------------------------------------- */

/* "policy:NAME key:value ..." */
struct override {
    char *policy;  /* owned */
    char *options; /* owned; the text behind the policy's name */
};

static void override_done(struct override *o)
{
    soq__free(o->policy);
    soq__free(o->options);
}

static int parse_override(const char *text, const char *standard, struct override *out, struct soq_error *err)
{
    static const char policy[] = "policy:";
    size_t n;

    text += strspn(text, " \t");
    n = strcspn(text, " \t");
    if (strncmp(text, policy, sizeof policy - 1) == 0) {
        out->policy = soq__strndup(text + sizeof policy - 1, n - (sizeof policy - 1));
        text += n;
    } else {
        out->policy = soq__strdup(standard);
    }
    out->options = soq__strdup(text);
    if (out->policy && out->options)
        return 0;
    override_done(out);
    return soq__fail(err, SOQ_ENOMEM, "out of memory");
}

/* The section of the plugin as it is in the settings. */
static int copy_section(const struct soq__settings *from, const char *section, struct soq__settings *to, struct soq_error *err)
{
    const struct soq__setting *s;
    int rc = 0;

    for (size_t i = 0; !rc && (s = soq__settings_at(from, i)); i++)
        if (strcmp(s->section, section) == 0 && s->known)
            rc = soq__settings_set(to, section, s->spec.option.key, s->value.text, err);
    return rc;
}

/* Puts "key:value key:value" into the section. */
static int put_options(struct soq__settings *settings, const char *section, const char *options, struct soq_error *err)
{
    int rc = 0;

    while (!rc && *(options += strspn(options, " \t"))) {
        size_t n = strcspn(options, " \t"), key_len = strcspn(options, ": \t");
        char *key = soq__strndup(options, key_len),
             *value = key_len < n ? soq__strndup(options + key_len + 1, n - key_len - 1) : NULL;

        if (key_len == n)
            rc = soq__fail(err, SOQ_EINVAL, "\"%.*s\": expected KEY:VALUE", (int)n, options);
        else if (!key || !value)
            rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
        else
            rc = soq__settings_set(settings, section, key, value, err);
        soq__free(key);
        soq__free(value);
        options += n;
    }
    return rc;
}

/* [kv.NAME] with an override's options in it. */
static int make_overlay(const struct soq__policies_params *p, const struct override *o, struct soq__settings **out,
                        struct soq_error *err)
{
    const struct soq__plugin_role *plugin;
    struct soq__plugin_config base, over;
    int rc = soq__registry_find(p->registry, SOQ_ROLE_KV_POLICY, o->policy, &plugin, err);

    if (!rc)
        rc = soq__plugin_config_init(&base, plugin, p->settings, err);
    if (!rc)
        rc = soq__settings_create(out, err);
    if (!rc)
        rc = soq__plugin_config_init(&over, plugin, *out, err);
    if (!rc)
        rc = copy_section(p->settings, base.section, *out, err);
    return rc ? rc : put_options(*out, base.section, o->options, err);
}

/* Adds an instance; text: of the override, "" for the policy of [kv]. */
static int add_policy(struct soq__policies *ps, const struct soq__policies_params *p, const char *spec,
                      struct soq__settings *settings, const char *text, struct soq_error *err)
{
    struct soq__role_instance *role = &ps->roles[ps->n];
    uint32_t block_tokens = (uint32_t)soq__settings_int(p->settings, "kv", "block_tokens");
    struct soq_kv_plan plan;
    int rc = soq__role_init(role, p->registry, settings, SOQ_ROLE_KV_POLICY, spec, p->host, err);

    if (rc) {
        soq__fail_prefix(err, "[kv] policy = %s", spec);
        return rc;
    }
    ps->texts[ps->n] = text;
    ps->n++; /* done() is to see it */
    rc = soq__policy_plan(role, p->hparams, p->context, block_tokens, &plan, err);
    if (!rc)
        ps->kv[ps->n - 1] = (struct soq__kv_policy){
            .ops = role->plugin->ops.kv_policy, .self = role->self, .plan = plan, .name = role->plugin->name};
    return rc;
}

static int override_policy(struct soq__policies *ps, const struct soq__policies_params *p, const char *text,
                           uint32_t *index_out, struct soq_error *err)
{
    struct override o;
    uint32_t i = 1;
    int rc;

    while (i < ps->n && strcmp(ps->texts[i], text) != 0)
        i++;
    *index_out = i;
    if (i < ps->n)
        return 0;
    if (i == SOQ__KV_POLICIES_MAX)
        return soq__fail(err, SOQ_ELIMIT, "more than %d different policies", SOQ__KV_POLICIES_MAX);
    rc = parse_override(text, soq__settings_string(p->settings, "kv", "policy"), &o, err);
    if (rc)
        return rc;
    rc = make_overlay(p, &o, &ps->overlays[i], err);
    if (!rc)
        rc = add_policy(ps, p, o.policy, ps->overlays[i], text, err);
    override_done(&o);
    return rc;
}

/* Gives the layers of "0-1,28-29" to a policy; other[l]: the key that already did. */
static int give_layers(struct soq__policies *ps, const char *key, uint32_t n_layers, uint32_t index, const char **other,
                       struct soq_error *err)
{
    while (*key) {
        size_t n = strcspn(key, ",");
        char *item = soq__strndup(key, n);
        uint32_t first = 1, last = 0;
        bool ok = item && soq__parse_layers(item, n_layers, &first, &last);
        int rc = ok ? 0
                    : soq__fail(err, SOQ_EINVAL, "\"%.*s\": expected FIRST-LAST, with layers 0 to %u, and commas between",
                                (int)n, key, n_layers - 1);

        soq__free(item);
        for (uint32_t l = first; !rc && l <= last; l++) {
            if (other[l])
                rc = soq__fail(err, SOQ_EINVAL, "layer %u has already a policy, by the key %s", l, other[l]);
            other[l] = key;
            ps->of_layer[l] = index;
        }
        if (rc)
            return rc;
        key += n + (key[n] == ',');
    }
    return 0;
}

static int read_layers(struct soq__policies *ps, const struct soq__policies_params *p, struct soq_error *err)
{
    uint32_t n_layers = p->hparams->n_layers, index;
    const char **other = soq__alloc_zero(n_layers, sizeof *other);
    const struct soq__setting *s;
    int rc = other ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory");

    for (size_t i = 0; !rc && (s = soq__settings_at(p->settings, i)); i++) {
        if (strcmp(s->section, "kv.layers") != 0)
            continue;
        rc = override_policy(ps, p, s->value.text, &index, err);
        if (!rc)
            rc = give_layers(ps, s->spec.option.key, n_layers, index, other, err);
        if (rc)
            soq__fail_prefix(err, "[kv.layers] %s = %s", s->spec.option.key, s->value.text);
    }
    soq__free(other);
    return rc;
}

/* ---- All ----------------------------------------------------------------------------------------------------------------- */

int soq__policies_init(struct soq__policies *ps, const struct soq__policies_params *p, struct soq_error *err)
{
    int rc;

    *ps = (struct soq__policies){.of_layer = soq__alloc_zero(p->hparams->n_layers, sizeof *ps->of_layer)};
    if (!ps->of_layer)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    rc = add_policy(ps, p, soq__settings_string(p->settings, "kv", "policy"), p->settings, "", err);
    return rc ? rc : read_layers(ps, p, err);
}

void soq__policies_done(struct soq__policies *ps)
{
    for (uint32_t i = 0; i < SOQ__KV_POLICIES_MAX; i++) {
        soq__role_done(&ps->roles[i]);
        soq__settings_free(ps->overlays[i]);
    }
    soq__free(ps->of_layer);
    *ps = (struct soq__policies){0};
}
