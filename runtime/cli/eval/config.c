#include "cli/eval/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"

#define REFERENCE "full/f32"
#define BUDGET_MAX 1e7

/* ---- Pieces of a word */

/* [text, end) */
struct piece {
    const char *text, *end;
};

static size_t length(struct piece p)
{
    return (size_t)(p.end - p.text);
}

/* Cuts off what is in front of the first `mark`, or everything; *rest begins behind the mark, and is empty where none was. */
static struct piece cut(struct piece *rest, char mark)
{
    const char *at = length(*rest) ? memchr(rest->text, mark, length(*rest)) : NULL;
    struct piece first = {rest->text, at ? at : rest->end};

    rest->text = at ? at + 1 : rest->end;
    return first;
}

/* Takes what the buffer holds. */
static int add_setting(struct soq__eval_config *c, struct soq_buf *text)
{
    char *setting = soq__buf_steal(text);

    if (c->n_settings == c->cap_settings) {
        uint32_t cap = c->cap_settings ? 2 * c->cap_settings : 8;
        char **more = soq__realloc_array(c->settings, cap, sizeof *more);

        if (more) {
            c->settings = more;
            c->cap_settings = cap;
        }
    }
    if (!setting || c->n_settings == c->cap_settings) {
        soq__free(setting);
        return -1;
    }
    c->settings[c->n_settings++] = setting;
    return 0;
}

/* ---- Words */

/* "NAME:KEY=VALUE:KEY=VALUE": the name is the value of all `keys`, NULL-terminated; the rest are keys of [kv.NAME]. */
static int take_plugin(struct soq__eval_config *c, struct piece text, const char *const *keys, struct soq_error *err)
{
    struct piece name = cut(&text, ':');
    struct soq_buf setting = SOQ_BUF_INIT;
    int n_name = (int)length(name), rc = 0;

    if (!n_name)
        return soq__fail(err, SOQ_EINVAL, "%s: a name is missing; expected POLICY[:KEY=VALUE][/CODEC][@BUDGET]", c->label);
    for (size_t i = 0; keys[i] && !rc; i++) {
        soq__buf_printf(&setting, "%s=%.*s", keys[i], n_name, name.text);
        rc = add_setting(c, &setting);
    }
    while (length(text) && !rc) {
        struct piece option = cut(&text, ':'), value = option, key = cut(&value, '=');

        if (!length(key) || key.end == option.end)
            return soq__fail(err, SOQ_EINVAL, "%s: '%.*s' is no KEY=VALUE", c->label, (int)length(option), option.text);
        if (!memchr(key.text, '.', length(key)))
            soq__buf_printf(&setting, "kv.%.*s.", n_name, name.text);
        soq__buf_append(&setting, option.text, length(option));
        rc = add_setting(c, &setting);
    }
    return rc ? soq__fail(err, SOQ_ENOMEM, "out of memory") : 0;
}

static int take_budget(struct soq__eval_config *c, struct piece text, struct soq_error *err)
{
    char *end;

    c->budget = strtod(text.text, &end);
    if (end == text.text || end != text.end || !(c->budget > 0) || c->budget > BUDGET_MAX ||
        (c->budget >= 1 && c->budget != floor(c->budget)))
        return soq__fail(err, SOQ_EINVAL,
                         "%s: the budget '%s' is neither a whole number of entries nor a share of the prompt below 1", c->label,
                         text.text);
    return 0;
}

static int parse(struct soq__eval_config *c, struct soq_error *err)
{
    static const char *const policy_keys[] = {"kv.policy", NULL}, *const both[] = {"kv.codec_k", "kv.codec_v", NULL},
                             *const keys_only[] = {"kv.codec_k", NULL}, *const values_only[] = {"kv.codec_v", NULL};
    struct piece budget = {c->label, c->label + strlen(c->label)}, codecs = cut(&budget, '@'), policy, name;
    bool has_budget = codecs.end != budget.end, has_codecs;
    int rc;

    policy = cut(&codecs, '/');
    has_codecs = policy.end != codecs.end;
    name = policy;
    name = cut(&name, ':');
    c->policy = soq__strndup(name.text, length(name));
    rc = c->policy ? take_plugin(c, policy, policy_keys, err) : soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (!rc && has_codecs) {
        struct piece keys = cut(&codecs, '+');

        if (keys.end == codecs.end) {
            rc = take_plugin(c, keys, both, err);
        } else {
            rc = take_plugin(c, keys, keys_only, err);
            rc = rc ? rc : take_plugin(c, codecs, values_only, err);
        }
    }
    return !rc && has_budget ? take_budget(c, budget, err) : rc;
}

static void config_done(struct soq__eval_config *c)
{
    for (uint32_t i = 0; i < c->n_settings; i++)
        soq__free(c->settings[i]);
    soq__free(c->settings);
    soq__free(c->policy);
    soq__free(c->label);
}

/* Takes the label. */
static int add(struct soq__eval_configs *all, char *label, struct soq_error *err)
{
    struct soq__eval_config c = {.label = label};
    int rc = label ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory");

    for (uint32_t i = 0; !rc && i < all->n; i++)
        if (strcmp(all->items[i].label, label) == 0) {
            soq__free(label);
            return 0;
        }
    if (!rc)
        rc = parse(&c, err);
    if (!rc && all->n == all->cap) {
        uint32_t cap = all->cap ? 2 * all->cap : 16;
        struct soq__eval_config *more = soq__realloc_array(all->items, cap, sizeof *more);

        if (more) {
            all->items = more;
            all->cap = cap;
        } else {
            rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
        }
    }
    if (rc)
        config_done(&c);
    else
        all->items[all->n++] = c;
    return rc;
}

/* ---- Combinations */

static char *combined(struct piece policy, struct piece codec, struct piece budget)
{
    struct soq_buf label = SOQ_BUF_INIT;

    soq__buf_append(&label, policy.text, length(policy));
    if (length(codec))
        soq__buf_printf(&label, "/%.*s", (int)length(codec), codec.text);
    if (length(budget))
        soq__buf_printf(&label, "@%.*s", (int)length(budget), budget.text);
    return soq__buf_steal(&label);
}

static struct piece all_of(const char *list)
{
    return (struct piece){list ? list : "", list ? list + strlen(list) : ""};
}

/* The full cache has no budget. */
static bool keeps_all(struct piece policy)
{
    return length(policy) >= 4 && memcmp(policy.text, "full", 4) == 0 && (length(policy) == 4 || policy.text[4] == ':');
}

static int add_combinations(struct soq__eval_configs *all, const struct soq__eval_lists *lists, struct soq_error *err)
{
    struct piece policies = all_of(lists->policies ? lists->policies : "full");
    int rc = 0;

    if (!lists->policies && !lists->codecs && !lists->budgets)
        return 0;
    do {
        struct piece policy = cut(&policies, ','), codecs = all_of(lists->codecs);

        do {
            struct piece codec = cut(&codecs, ','), budgets = all_of(keeps_all(policy) ? NULL : lists->budgets);

            do {
                struct piece budget = cut(&budgets, ',');

                rc = add(all, combined(policy, codec, budget), err);
            } while (!rc && length(budgets));
        } while (!rc && length(codecs));
    } while (!rc && length(policies));
    return rc;
}

int soq__eval_configs_init(struct soq__eval_configs *all, const struct soq__eval_lists *lists, char *const *words,
                           uint32_t n_words, struct soq_error *err)
{
    int rc;

    *all = (struct soq__eval_configs){0};
    rc = add(all, soq__strdup(REFERENCE), err);
    if (!rc)
        rc = add_combinations(all, lists, err);
    for (uint32_t i = 0; !rc && i < n_words; i++)
        rc = add(all, soq__strdup(words[i]), err);
    return rc;
}

void soq__eval_configs_done(struct soq__eval_configs *all)
{
    for (uint32_t i = 0; i < all->n; i++)
        config_done(&all->items[i]);
    soq__free(all->items);
    *all = (struct soq__eval_configs){0};
}

uint32_t soq__eval_capacity(const struct soq__eval_config *c, uint32_t n_prompt)
{
    double entries = c->budget < 1 ? ceil(c->budget * n_prompt) : c->budget;

    return (uint32_t)entries;
}
