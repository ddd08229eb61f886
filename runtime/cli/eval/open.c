#include "cli/eval/open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/term.h"
#include "config/settings.h"

/* What it has found out stays. */
static void close_engine(struct soq__eval_engine *e)
{
    soq__engine_free(e->engine);
    soq_runtime_free(e->runtime);
    soq__free(e->identity);
    *e = (struct soq__eval_engine){.without = e->without};
}

void soq__eval_engine_close(struct soq__eval_engine *e)
{
    close_engine(e);
    e->without = NULL;
}

/* ---- Settings */

enum { OWN = 3 };

/* The command line's, those of the measurement, those of the configuration. */
struct overrides {
    const char **items; /* [n] NULL-terminated; owned, the strings are not */
    char own[OWN][48];
};

static int collect(struct overrides *o, const struct soq__eval_engine_params *p, struct soq_error *err)
{
    const struct soq__cli_globals *g = &p->args->globals;
    size_t n = 0;

    o->items = soq__alloc_zero(g->n_overrides + OWN + p->config->n_settings + 1, sizeof *o->items);
    if (!o->items)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    snprintf(o->own[0], sizeof o->own[0], "model.context=%u", p->context);
    snprintf(o->own[1], sizeof o->own[1], "engine.max_sequences=%u", p->sequences);
    snprintf(o->own[2], sizeof o->own[2], "kv.prefix_cache=%s", p->prefixes ? "on" : "off");
    for (size_t i = 0; i < g->n_overrides; i++)
        o->items[n++] = g->overrides[i];
    for (size_t i = 0; i < OWN; i++)
        o->items[n++] = o->own[i];
    for (uint32_t i = 0; i < p->config->n_settings; i++)
        o->items[n++] = p->config->settings[i];
    return 0;
}

static char *identity_of(const struct overrides *o, const struct soq__eval_engine_params *p)
{
    struct soq_buf text = SOQ_BUF_INIT;

    for (size_t i = 0; o->items[i]; i++)
        soq__buf_printf(&text, "%s\n", o->items[i]);
    soq__buf_printf(&text, "%u", soq__eval_capacity(p->config, p->n_prompt));
    return soq__buf_steal(&text);
}

/* The option of that name that the budget should bring down. */
static bool is_too_large(const struct soq__plugin_role *policy, const char *key, uint32_t most)
{
    for (uint32_t i = 0; i < policy->n_options; i++)
        if (strcmp(policy->options[i].key, key) == 0)
            return policy->options[i].type == SOQ_OPT_INT && strtod(policy->options[i].default_value, NULL) > most;
    return false;
}

static int set_number(struct soq__settings *settings, const char *section, const char *key, uint32_t value,
                      struct soq_error *err)
{
    char text[16];

    snprintf(text, sizeof text, "%u", value);
    return soq__settings_set(settings, section, key, text, err);
}

static int apply_budget(const struct soq__eval_engine_params *p, struct soq_runtime *runtime, struct soq_error *err)
{
    static const char *const shares[] = {"recent", "window"};
    uint32_t capacity = soq__eval_capacity(p->config, p->n_prompt);
    const struct soq__plugin_role *policy;
    char section[96];
    int rc;

    if (!capacity)
        return 0;
    rc = soq__registry_find(runtime->registry, SOQ_ROLE_KV_POLICY, p->config->policy, &policy, err);
    snprintf(section, sizeof section, "kv.%s", p->config->policy);
    if (!rc)
        rc = set_number(runtime->settings, section, "capacity", capacity, err);
    for (size_t i = 0; i < sizeof shares / sizeof shares[0] && !rc; i++)
        if (is_too_large(policy, shares[i], capacity / 2) && !soq__settings_find(runtime->settings, section, shares[i]))
            rc = set_number(runtime->settings, section, shares[i], capacity / 2, err);
    return rc;
}

/* ---- Opening */

static int show_progress(void *arg, uint64_t done, uint64_t total)
{
    soq__progress("%s: loading %3.0f %%", (const char *)arg, total ? 100.0 * (double)done / (double)total : 100.0);
    return soq__interrupted();
}

static int open_with(struct soq__eval_engine *e, const struct soq__eval_engine_params *p, const struct overrides *o,
                     struct soq_error *err)
{
    struct soq__args args = *p->args;
    struct soq__engine_params ep = {
        .model = p->model, .place_only = p->try_only, .progress = show_progress, .progress_arg = p->config->label};
    int rc;

    args.globals.overrides = o->items;
    rc = soq__cli_runtime(&args, &e->runtime, err);
    if (!rc)
        rc = apply_budget(p, e->runtime, err);
    if (rc)
        return rc;
    ep.registry = e->runtime->registry;
    ep.settings = e->runtime->settings;
    return soq__engine_create(&ep, &e->engine, err);
}

static int open_once(struct soq__eval_engine *e, const struct soq__eval_engine_params *p, struct soq_error *err)
{
    struct overrides o = {.items = NULL};
    char *identity;
    int rc = collect(&o, p, err);

    identity = rc ? NULL : identity_of(&o, p);
    if (!rc && !identity)
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (rc || (e->identity && strcmp(e->identity, identity) == 0)) {
        soq__free(identity);
        soq__free(o.items);
        return rc;
    }
    close_engine(e);
    e->identity = identity;
    rc = open_with(e, p, &o, err);
    soq__free(o.items);
    if (rc || p->try_only)
        close_engine(e);
    return rc;
}

int soq__eval_engine_open(struct soq__eval_engine *e, const struct soq__eval_engine_params *p, struct soq_error *err)
{
    struct soq__eval_engine_params params = *p;
    int rc;

    params.prefixes = p->prefixes && e->without != p->config;
    rc = open_once(e, &params, err);
    if ((rc == -SOQ_EUNSUPPORTED || rc == -SOQ_EINVAL) && params.prefixes) {
        params.prefixes = false;
        rc = open_once(e, &params, err);
        e->without = rc ? NULL : p->config;
    }
    if (rc && rc != -SOQ_ECANCELLED)
        soq__fail_prefix(err, "%s", p->config->label);
    return rc;
}
