/* [backend] split and place. */
#include "engine/place.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "config/settings.h"

bool soq__parse_range(const char *text, uint32_t n, uint32_t *first_out, uint32_t *last_out)
{
    char *end;
    unsigned long first = strtoul(text, &end, 10), last = first;

    if (end == text || *text == '-' || *text == '+')
        return false;
    if (*end == '-') {
        text = end + 1;
        last = *text ? strtoul(text, &end, 10) : n - 1;
        if (!*text)
            end = (char *)(uintptr_t)text;
    }
    *first_out = (uint32_t)first;
    *last_out = (uint32_t)last;
    return *end == '\0' && first <= last && last < n;
}

static int split_layers(struct soq__placement *p, const char *item, uint32_t n_layers, bool *named, struct soq_error *err)
{
    const char *colon = strrchr(item, ':');
    uint32_t first, last, at;
    int rc;

    if (!colon || !soq__parse_range(colon + 1, n_layers, &first, &last))
        return soq__fail(err, SOQ_EINVAL, "[backend] split: \"%s\": expected BACKEND:FIRST-LAST with layers 0 to %u", item,
                         n_layers - 1);
    rc = soq__exec_find(p->exec, item, (size_t)(colon - item), &at, err);
    if (rc) {
        soq__fail_prefix(err, "[backend] split: \"%s\"", item);
        return rc;
    }
    for (uint32_t l = first; l <= last; l++) {
        if (named[l])
            return soq__fail(err, SOQ_EINVAL, "[backend] split: \"%s\": layer %u is named twice", item, l);
        named[l] = true;
        p->home[l] = (uint8_t)at;
    }
    return 0;
}

static int read_split(struct soq__placement *p, uint32_t n_layers, struct soq_error *err)
{
    size_t n;
    const char *const *items = soq__settings_list(p->exec->settings, "backend", "split", &n);
    bool *named = soq__alloc_zero(n_layers, sizeof *named);
    int rc = 0;

    if (!named)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    for (size_t i = 0; !rc && i < n; i++)
        rc = split_layers(p, items[i], n_layers, named, err);
    soq__free(named);
    return rc;
}

static int read_rules(struct soq__placement *p, struct soq_error *err)
{
    size_t n;
    const char *const *items = soq__settings_list(p->exec->settings, "backend", "place", &n);

    p->rules = n ? soq__alloc_zero(n, sizeof *p->rules) : NULL;
    if (n && !p->rules)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    for (; p->n_rules < n; p->n_rules++) {
        struct soq__place_rule *rule = &p->rules[p->n_rules];
        const char *item = items[p->n_rules], *colon = strrchr(item, ':');
        int rc;

        if (!colon || colon == item)
            return soq__fail(err, SOQ_EINVAL, "[backend] place: \"%s\": expected PATTERN:BACKEND, as in ffn_*:cpu", item);
        rc = soq__exec_find(p->exec, colon + 1, strlen(colon + 1), &rule->at, err);
        if (rc) {
            soq__fail_prefix(err, "[backend] place: \"%s\"", item);
            return rc;
        }
        rule->pattern = soq__strndup(item, (size_t)(colon - item));
        if (!rule->pattern)
            return soq__fail(err, SOQ_ENOMEM, "out of memory");
    }
    return 0;
}

int soq__placement_init(struct soq__placement *p, struct soq__exec *exec, uint32_t n_layers, struct soq_error *err)
{
    int rc;

    *p = (struct soq__placement){.exec = exec};
    p->home = soq__alloc_array(n_layers, 1);
    if (!p->home)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    memset(p->home, (int)exec->primary, n_layers);
    rc = read_split(p, n_layers, err);
    if (!rc)
        rc = read_rules(p, err);
    if (rc)
        soq__placement_done(p);
    return rc;
}

void soq__placement_done(struct soq__placement *p)
{
    for (size_t i = 0; i < p->n_rules; i++)
        soq__free(p->rules[i].pattern);
    soq__free(p->rules);
    soq__free(p->home);
    *p = (struct soq__placement){0};
}

static struct soq__place_rule *rule_for(const struct soq__placement *p, const char *tensor, const char *op)
{
    for (size_t i = 0; i < p->n_rules; i++)
        if (fnmatch(p->rules[i].pattern, tensor ? tensor : op, 0) == 0 || fnmatch(p->rules[i].pattern, op, 0) == 0)
            return &p->rules[i];
    return NULL;
}

int soq__place(struct soq__placement *p, uint32_t home, const char *tensor, const struct soq_op_desc *desc, uint32_t *at_out,
               struct soq_error *err)
{
    const char *op = soq__op_name(desc->op);
    struct soq__place_rule *rule = rule_for(p, tensor, op);
    struct soq_error why = SOQ_ERROR_INIT;
    int rc;

    if (!rule)
        return soq__exec_choose(p->exec, home, desc, at_out, err);
    rule->used = true;
    rc = soq__exec_supports(p->exec, rule->at, desc, &why);
    if (rc)
        return soq__fail(err, SOQ_EUNSUPPORTED, "[backend] place: %s puts %s%s%s on %s, which cannot run it: %s", rule->pattern,
                         op, tensor ? " of " : "", tensor ? tensor : "", p->exec->choices[rule->at].plugin->id, why.text);
    *at_out = rule->at;
    return 0;
}

int soq__placement_check_used(const struct soq__placement *p, struct soq_error *err)
{
    for (size_t i = 0; i < p->n_rules; i++)
        if (!p->rules[i].used)
            return soq__fail(err, SOQ_EINVAL,
                             "[backend] place: %s matches no op and no tensor of this model that no rule before it matches",
                             p->rules[i].pattern);
    return 0;
}
