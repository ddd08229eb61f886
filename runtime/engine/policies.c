/* Policies: instances, plans. */
#include "engine/policies.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "config/settings.h"

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
    if (plan->slot_positions && !plan->sinks)
        return "its plan asks for positions by slot, but has no sinks";
    if (plan->sinks && !plan->window && !plan->slot_positions)
        return "its plan has sinks, but neither a window nor positions by slot";
    return NULL;
}

struct soq_kv_shape soq__kv_shape_of(const struct soq__hparams *hp, uint32_t context, uint32_t block_tokens)
{
    return (struct soq_kv_shape){
        .struct_size = sizeof(struct soq_kv_shape),
        .n_layers = hp->n_layers,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim_k,
        .head_dim_v = hp->head_dim_v,
        .context = context,
        .block_tokens = block_tokens,
        .model_window = hp->window,
    };
}

int soq__policy_plan(const struct soq__role_instance *policy, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out,
                     struct soq_error *err)
{
    const struct soq_kv_policy_ops *ops = policy->plugin->ops.kv_policy;
    struct soq_kv_plan plan = {.struct_size = sizeof plan};
    const char *problem = NULL;
    int rc = ops->describe(policy->self, shape, &plan, err);

    if (!rc)
        problem = plan_problem(&plan, ops);
    if (problem)
        rc = soq__fail(err, SOQ_EUNSUPPORTED, "%s", problem);
    else if (!rc && plan.grid > shape->block_tokens)
        rc = soq__fail(err, SOQ_EUNSUPPORTED, "its grid is %u tokens, but entries go every block_tokens = %u at the latest",
                       plan.grid, shape->block_tokens);
    if (!rc)
        *plan_out = plan;
    return rc;
}

/* ---- Instances ----------------------------------------------------------------------------------------------------------- */

/* The model as a policy that rules n kv heads of a layer sees it. */
static struct soq_kv_shape shape_for(const struct soq__policies_params *p, uint32_t n_heads)
{
    struct soq_kv_shape shape =
        soq__kv_shape_of(p->hparams, p->context, (uint32_t)soq__settings_int(p->settings, "kv", "block_tokens"));

    shape.n_heads = shape.n_heads / shape.n_kv_heads * n_heads;
    shape.n_kv_heads = n_heads;
    return shape;
}

static int add_policy(struct soq__policies *ps, const struct soq__policies_params *p, enum soq__kv_view view, const char *words,
                      uint32_t n_heads, struct soq_error *err)
{
    const struct soq_kv_shape shape = shape_for(p, n_heads);
    uint32_t i = ps->n;
    struct soq__role_instance *role = &ps->roles[i];
    struct soq__settings **overlay = &ps->overlays[i];
    struct soq__role_text text;
    struct soq_kv_plan plan;
    int rc = soq__role_text_init(&text, words, err);

    if (rc)
        return rc;
    ps->words[i] = soq__strdup(words);
    if (!ps->words[i])
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (!rc && *text.options)
        rc = soq__role_overlay(p->registry, p->settings, SOQ_ROLE_KV_POLICY, &text, overlay, err);
    if (!rc)
        rc = soq__role_init(role, p->registry, *overlay ? *overlay : p->settings, SOQ_ROLE_KV_POLICY, text.name, p->host, err);
    ps->n++; /* done() is to see it, whatever there is of it */
    if (!rc)
        rc = soq__policy_plan(role, &shape, &plan, err);
    if (!rc)
        ps->kv[i] = (struct soq__kv_policy){.ops = role->plugin->ops.kv_policy,
                                            .self = role->self,
                                            .plan = plan,
                                            .name = role->plugin->name,
                                            .view = view,
                                            .n_heads = n_heads};
    soq__role_text_done(&text);
    return rc;
}

/* The instance of "NAME key:value ..." for n kv heads of a layer. */
static int policy_of(struct soq__policies *ps, const struct soq__policies_params *p, enum soq__kv_view view, const char *words,
                     uint32_t n_heads, uint32_t *index_out, struct soq_error *err)
{
    uint32_t i = 0;
    int rc = 0;

    while (i < ps->n && (ps->kv[i].n_heads != n_heads || strcmp(ps->words[i], words) != 0))
        i++;
    if (i == SOQ__KV_POLICIES_MAX)
        rc = soq__fail(err, SOQ_ELIMIT,
                       "more than %d different policies, options and numbers of heads that they rule in a layer",
                       SOQ__KV_POLICIES_MAX);
    else if (i == ps->n)
        rc = add_policy(ps, p, view, words, n_heads, err);
    *index_out = i;
    return rc;
}

/* ---- All ----------------------------------------------------------------------------------------------------------------- */

/* Names the key of [kv] or [draft] in a message; returns rc. */
static int blame_section(enum soq__kv_view view, const char *words, int rc, struct soq_error *err)
{
    if (rc)
        soq__fail_prefix(err, "[%s] policy = %s", soq__kv_section(view), words);
    return rc;
}

/* That of [kv] or [draft], for all heads. */
static int standard_of(struct soq__policies *ps, const struct soq__policies_params *p, enum soq__kv_view view,
                       uint32_t *index_out, struct soq_error *err)
{
    const char *words = soq__settings_string(p->settings, soq__kv_section(view), "policy");

    return blame_section(view, words, policy_of(ps, p, view, words, p->hparams->n_kv_heads, index_out, err), err);
}

static const char *words_of(const struct soq__policies_params *p, uint32_t layer, uint32_t head)
{
    const struct soq__layer_rule *rule = soq__layer_rules_policy(p->layers, layer, head);

    return rule ? rule->words[SOQ__LAYER_POLICY] : soq__settings_string(p->settings, "kv", "policy");
}

/* Heads of the layer under the same policy as one of them. */
static uint32_t count_like(const struct soq__policies_params *p, uint32_t layer, uint32_t head)
{
    const char *words = words_of(p, layer, head);
    uint32_t n = 0;

    for (uint32_t h = 0; h < p->hparams->n_kv_heads; h++)
        n += strcmp(words_of(p, layer, h), words) == 0;
    return n;
}

static int init_layer(struct soq__policies *ps, const struct soq__policies_params *p, uint32_t layer, struct soq_error *err)
{
    uint32_t n_heads = p->hparams->n_kv_heads, *of = ps->of[SOQ__KV_FULL] + (size_t)layer * n_heads;
    int rc = 0;

    for (uint32_t h = 0; !rc && h < n_heads; h++) {
        const struct soq__layer_rule *rule = soq__layer_rules_policy(p->layers, layer, h);
        const char *words = words_of(p, layer, h);

        rc = policy_of(ps, p, SOQ__KV_FULL, words, count_like(p, layer, h), &of[h], err);
        if (rc && rule)
            soq__layer_rule_blame(rule, err);
        else
            blame_section(SOQ__KV_FULL, words, rc, err);
    }
    return rc;
}

static int init_full(struct soq__policies *ps, const struct soq__policies_params *p, struct soq_error *err)
{
    uint32_t standard;
    int rc = standard_of(ps, p, SOQ__KV_FULL, &standard, err);

    for (uint32_t l = 0; !rc && l < p->hparams->n_layers; l++)
        rc = init_layer(ps, p, l, err);
    return rc;
}

static int init_lossy(struct soq__policies *ps, const struct soq__policies_params *p, struct soq_error *err)
{
    uint32_t index;
    int rc = standard_of(ps, p, SOQ__KV_LOSSY, &index, err);

    for (size_t i = 0; !rc && i < (size_t)p->hparams->n_layers * p->hparams->n_kv_heads; i++)
        ps->of[SOQ__KV_LOSSY][i] = index;
    return rc;
}

int soq__policies_init(struct soq__policies *ps, const struct soq__policies_params *p, struct soq_error *err)
{
    int n_views = p->lossy ? 2 : 1, rc;

    *ps = (struct soq__policies){0};
    for (int view = 0; view < n_views; view++) {
        ps->of[view] = soq__alloc_zero(p->hparams->n_layers, p->hparams->n_kv_heads * sizeof *ps->of[view]);
        if (!ps->of[view])
            return soq__fail(err, SOQ_ENOMEM, "out of memory");
    }
    rc = init_full(ps, p, err);
    return rc || !p->lossy ? rc : init_lossy(ps, p, err);
}

void soq__policies_done(struct soq__policies *ps)
{
    for (uint32_t i = 0; i < ps->n; i++) {
        soq__role_done(&ps->roles[i]);
        soq__settings_free(ps->overlays[i]);
        soq__free(ps->words[i]);
    }
    for (int view = 0; view < SOQ__KV_VIEWS; view++)
        soq__free(ps->of[view]);
    *ps = (struct soq__policies){0};
}
