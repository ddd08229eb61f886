/* [kv.layers]. */
#include "engine/layers.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/nearest.h"
#include "engine/place.h"

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *word; /* "codec:" */
    const char *name;
    uint32_t parts; /* bits */
} kinds[] = {
    {"policy:", "a policy", 1u << SOQ__LAYER_POLICY},
    {"codec:", "a codec", 1u << SOQ__LAYER_CODEC_K | 1u << SOQ__LAYER_CODEC_V},
    {"codec_k:", "a codec for keys", 1u << SOQ__LAYER_CODEC_K},
    {"codec_v:", "a codec for values", 1u << SOQ__LAYER_CODEC_V},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0], WORD_MAX = 32 };

/* The kind that a word names; N_KINDS: it is an option. */
static size_t kind_of(const char *word)
{
    size_t k = 0;

    while (k < N_KINDS && strncmp(word, kinds[k].word, strlen(kinds[k].word)) != 0)
        k++;
    return k;
}

/* Gives the rule the words [text, text + n) for the parts of a kind. */
static int give_words(struct soq__layer_rule *rule, size_t kind, const char *text, size_t n, struct soq_error *err)
{
    while (n && (text[n - 1] == ' ' || text[n - 1] == '\t'))
        n--;
    for (int part = 0; part < SOQ__LAYER_PARTS; part++) {
        if (!(kinds[kind].parts >> part & 1))
            continue;
        if (rule->words[part])
            return soq__fail(err, SOQ_EINVAL, "%s is named twice", kinds[kind].name);
        rule->words[part] = soq__strndup(text, n);
        if (!rule->words[part])
            return soq__fail(err, SOQ_ENOMEM, "out of memory");
    }
    return 0;
}

/* "NAME ..." up to the next kind. */
static size_t words_length(const char *text)
{
    size_t n = strcspn(text, " \t");

    while (text[n]) {
        size_t gap = strspn(text + n, " \t");

        if (kind_of(text + n + gap) < N_KINDS)
            break;
        n += gap + strcspn(text + n + gap, " \t");
    }
    return n;
}

/* Options at the front: the standard policy with them. */
static int read_front(struct soq__layer_rule *rule, const char *standard, const char *text, size_t n, struct soq_error *err)
{
    struct soq_buf words = SOQ_BUF_INIT;
    int rc;

    soq__buf_printf(&words, "%s %.*s", standard, (int)n, text);
    rc = soq__buf_ok(&words) ? give_words(rule, 0, words.data, words.len, err) : soq__fail(err, SOQ_ENOMEM, "out of memory");
    soq__buf_done(&words);
    return rc;
}

static int read_value(struct soq__layer_rule *rule, const char *standard, struct soq_error *err)
{
    const char *text = rule->value + strspn(rule->value, " \t");
    int rc = *text ? 0 : soq__fail(err, SOQ_EINVAL, "no policy, codec or option is named");

    if (!rc && kind_of(text) == N_KINDS) {
        size_t n = words_length(text);

        rc = read_front(rule, standard, text, n, err);
        text += n;
    }
    while (!rc && *(text += strspn(text, " \t"))) {
        size_t kind = kind_of(text), n;

        text += strlen(kinds[kind].word);
        n = words_length(text);
        rc = give_words(rule, kind, text, n, err);
        text += n;
    }
    return rc;
}

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

static int give_layer(struct soq__layer_rules *rules, const struct soq__layer_rule *rule, uint32_t layer, struct soq_error *err)
{
    static const char *const names[] = {"a policy", "a codec for keys", "a codec for values"};

    for (int part = 0; part < SOQ__LAYER_PARTS; part++) {
        if (!rule->words[part])
            continue;
        if (rules->of[part][layer])
            return soq__fail(err, SOQ_EINVAL, "layer %u has already %s, by the key %s", layer, names[part],
                             rules->of[part][layer]->key);
        rules->of[part][layer] = rule;
    }
    return 0;
}

static int give_head(struct soq__layer_rules *rules, const struct soq__layer_rule *rule, uint32_t layer, uint32_t head,
                     struct soq_error *err)
{
    const struct soq__layer_rule **place = &rules->of_head[(size_t)layer * rules->n_heads + head];

    if (*place)
        return soq__fail(err, SOQ_EINVAL, "layer %u, head %u has already a policy, by the key %s", layer, head, (*place)->key);
    *place = rule;
    return 0;
}

/* The item of n bytes at the front of a list, "0-1" of "0-1,28-"; the list goes on behind its comma, and is NULL without one.
 */
static int next_item(const char **rest, size_t n, const char *what, uint32_t n_all, uint32_t *first, uint32_t *last,
                     struct soq_error *err)
{
    const char *list = *rest;
    char *item = soq__strndup(list, n);
    bool good;

    if (!item)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    good = soq__parse_range(item, n_all, first, last);
    soq__free(item);
    *rest = list[n] == ',' ? list + n + 1 : NULL;
    if (good)
        return 0;
    return soq__fail(err, SOQ_EINVAL, "\"%.*s\": expected FIRST-LAST, with %s 0 to %u, and commas between", (int)n, list, what,
                     n_all - 1);
}

/* A layer, or the heads of it that a list names. */
static int give(struct soq__layer_rules *rules, const struct soq__layer_rule *rule, uint32_t layer, const char *heads,
                struct soq_error *err)
{
    int rc = 0;

    if (!heads)
        return give_layer(rules, rule, layer, err);
    while (!rc && heads) {
        uint32_t first = 1, last = 0;

        rc = next_item(&heads, strcspn(heads, ","), "heads", rules->n_heads, &first, &last, err);
        for (uint32_t h = first; !rc && h <= last; h++)
            rc = give_head(rules, rule, layer, h, err);
    }
    return rc;
}

/* The layers of "0-1,28-29", the heads of "0-1,28-29/0,2". */
static int read_key(struct soq__layer_rules *rules, const struct soq__layer_rule *rule, struct soq_error *err)
{
    const char *key = rule->key, *slash = strchr(key, '/'), *heads = slash ? slash + 1 : NULL;
    int rc = 0;

    if (heads && (rule->words[SOQ__LAYER_CODEC_K] || rule->words[SOQ__LAYER_CODEC_V]))
        return soq__fail(err, SOQ_EINVAL,
                         "heads can have a policy of their own, but no codec; give it to their layers, in the key %.*s",
                         (int)(slash - key), key);
    if (heads && !rule->words[SOQ__LAYER_POLICY])
        return soq__fail(err, SOQ_EINVAL, "expected policy:NAME for the heads, with its options behind it");
    while (!rc && key) {
        uint32_t first = 1, last = 0;

        rc = next_item(&key, strcspn(key, ",/"), "layers", rules->n_layers, &first, &last, err);
        for (uint32_t l = first; !rc && l <= last; l++)
            rc = give(rules, rule, l, heads, err);
    }
    return rc;
}

/* ---- All ----------------------------------------------------------------------------------------------------------------- */

static void blame(const struct soq__layer_rule *rule, struct soq_error *err)
{
    soq__fail_prefix(err, "[kv.layers] %s = %s", rule->key, rule->value);
}

static size_t count_keys(const struct soq__settings *settings)
{
    const struct soq__setting *s;
    size_t n = 0;

    for (size_t i = 0; (s = soq__settings_at(settings, i)); i++)
        n += strcmp(s->section, "kv.layers") == 0;
    return n;
}

int soq__layer_rules_init(struct soq__layer_rules *rules, const struct soq__settings *settings, uint32_t n_layers,
                          uint32_t n_heads, struct soq_error *err)
{
    const char *standard = soq__settings_string(settings, "kv", "policy");
    const struct soq__setting *s;
    bool ok = true;
    int rc = 0;

    *rules = (struct soq__layer_rules){
        .rules = soq__alloc_zero(count_keys(settings) + 1, sizeof *rules->rules),
        .n_layers = n_layers,
        .n_heads = n_heads,
        .of_head = soq__alloc_zero((size_t)n_layers * n_heads, sizeof(struct soq__layer_rule *)),
    };
    for (int part = 0; part < SOQ__LAYER_PARTS; part++) {
        rules->of[part] = soq__alloc_zero(n_layers, sizeof(struct soq__layer_rule *));
        ok = ok && rules->of[part];
    }
    if (!rules->rules || !rules->of_head || !ok)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    for (size_t i = 0; !rc && (s = soq__settings_at(settings, i)); i++) {
        struct soq__layer_rule *rule = &rules->rules[rules->n];

        if (strcmp(s->section, "kv.layers") != 0)
            continue;
        *rule = (struct soq__layer_rule){.key = s->spec.option.key, .value = s->value.text};
        rules->n++;
        rc = read_value(rule, standard, err);
        if (!rc)
            rc = read_key(rules, rule, err);
        if (rc)
            blame(rule, err);
    }
    return rc;
}

void soq__layer_rules_done(struct soq__layer_rules *rules)
{
    for (int part = 0; part < SOQ__LAYER_PARTS; part++) {
        for (size_t i = 0; i < rules->n; i++)
            soq__free(rules->rules[i].words[part]);
        soq__free(rules->of[part]);
    }
    soq__free(rules->of_head);
    soq__free(rules->rules);
    *rules = (struct soq__layer_rules){0};
}

const struct soq__layer_rule *soq__layer_rules_policy(const struct soq__layer_rules *rules, uint32_t layer, uint32_t head)
{
    const struct soq__layer_rule *rule = rules->of_head[(size_t)layer * rules->n_heads + head];

    return rule ? rule : rules->of[SOQ__LAYER_POLICY][layer];
}

/* The first word of a value that names no kind but looks like one, and that kind; NULL: there is none. */
static const char *misspelt_kind(const char *value, char word[WORD_MAX])
{
    static const char *const names[N_KINDS] = {"policy", "codec", "codec_k", "codec_v"};
    const char *near = NULL;

    while (!near && *(value += strspn(value, " \t"))) {
        size_t n = strcspn(value, ": \t");

        if (kind_of(value) == N_KINDS && n < WORD_MAX) {
            memcpy(word, value, n);
            word[n] = '\0';
            near = soq__nearest(word, names, N_KINDS);
        }
        value += strcspn(value, " \t");
    }
    return near;
}

void soq__layer_rule_blame(const struct soq__layer_rule *rule, struct soq_error *err)
{
    char word[WORD_MAX];
    const char *near = misspelt_kind(rule->value, word);

    if (near)
        soq__fail_prefix(err, "%s was taken for an option; did you mean %s:NAME?", word, near);
    blame(rule, err);
}
