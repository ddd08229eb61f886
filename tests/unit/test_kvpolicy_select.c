/* What the selecting policies keep at the end of a prompt, against the published implementations: for every one-shot case of
 * kv-golden each policy gets the scores that the reference ranked by, as attention mass, and must keep the same positions. */
#include <jansson.h>

#include "kvpolicy_support.h"
#include "npy.h"
#include "support.h"

/* How a case's parameters become options. Scores are stored as they are ranked, so pooled already: the kernel is 1 here. */
struct rule {
    const char *name; /* of the reference's policy, as in the case's file name */
    const char *plugin;
    const char *formula; /* NULL: the policy has none */
    enum { MASS, OBSERVED, NORMS, NONE } scores;
};

struct example {
    const char *prompt;
    json_t *json, *params;
    struct npy scores; /* [layer][head][entry] */
    uint32_t n, n_layers, n_heads;
};

static struct example open_example(const char *prompt, const struct rule *rule)
{
    struct example e = {.prompt = prompt};
    char name[160];
    const char *scores;
    json_error_t error;

    snprintf(name, sizeof name, "kv-golden/cases/%s-%s.json", prompt, rule->name);
    e.json = json_load_file(soq__test_data(name), 0, &error);
    if (!e.json)
        return e;
    e.params = json_object_get(e.json, "params");
    e.n = (uint32_t)json_integer_value(json_object_get(e.params, "T"));
    e.n_layers = (uint32_t)json_array_size(json_object_get(e.json, "kept"));
    e.n_heads = (uint32_t)json_array_size(json_array_get(json_object_get(e.json, "kept"), 0));
    scores = json_string_value(json_object_get(e.json, "scores"));
    if (scores) {
        snprintf(name, sizeof name, "kv-golden/%s", scores);
        e.scores = npy_read(soq__test_data(name));
        cr_assert(e.scores.data, "%s", name);
        cr_assert_eq(e.scores.rows, e.n_layers * e.n_heads, "%s", name);
    }
    return e;
}

static void close_example(struct example *e)
{
    npy_done(&e->scores);
    json_decref(e->json);
}

/* The case's parameters as options: room for 8 of them, ended by an empty one. */
static void options_of(const struct example *e, const struct rule *rule, struct override *options, char texts[8][16])
{
    static const char *const names[][2] = {
        {"C", "capacity"}, {"window", "window"}, {"beta", "beta"}, {"recent", "recent"}, {"sinks", "sinks"}};
    const json_t *floors = json_object_get(e->params, "floor");
    size_t n = 0;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const json_t *value = json_object_get(e->params, names[i][0]);

        if (!value)
            continue;
        snprintf(texts[n], sizeof texts[n], "%lld", (long long)json_integer_value(value));
        options[n] = (struct override){names[i][1], texts[n]};
        n++;
    }
    if (floors) {
        snprintf(texts[n], sizeof texts[n], "%g",
                 (double)json_integer_value(json_array_get(floors, 0)) / (double)json_integer_value(json_array_get(floors, 1)));
        options[n] = (struct override){"floor", texts[n]};
        n++;
    }
    if (json_object_get(e->params, "kernel"))
        options[n++] = (struct override){"kernel", "1"};
    if (rule->formula)
        options[n++] = (struct override){"formula", rule->formula};
    options[n++] = (struct override){"when", "prompt"};
    options[n] = (struct override){0};
}

/* The reference's scores as what a policy gets: sums of attention, or keys of which only one number is not 0. */
static void fill_layer(struct layer *layer, const struct example *e, const struct rule *rule)
{
    const float *scores = e->scores.data;

    for (uint32_t h = 0; h < e->n_heads; h++) {
        const float *row = scores + (layer->selection.layer * e->n_heads + h) * e->scores.cols;

        for (uint32_t i = 0; i < e->scores.cols; i++)
            layer->mass[h][i] = rule->scores == OBSERVED ? (double)row[i] * (e->n - i) : (double)row[i];
        for (uint32_t i = 0; i < e->scores.cols && rule->scores == NORMS; i++)
            layer->keys[h][i * layer->selection.head_dim] = row[i];
    }
}

static void expect_kept(const struct example *e, const struct rule *rule, const struct layer *layer, uint32_t index)
{
    for (uint32_t h = 0; h < e->n_heads; h++) {
        const json_t *kept = json_array_get(json_array_get(json_object_get(e->json, "kept"), index), h);

        cr_assert_eq(layer->heads[h].n_keep, json_array_size(kept), "%s-%s: layer %u, head %u: %u entries are kept, not %zu",
                     e->prompt, rule->name, index, h, layer->heads[h].n_keep, json_array_size(kept));
        for (uint32_t i = 0; i < layer->heads[h].n_keep; i++)
            cr_assert_eq(layer->heads[h].keep[i], json_integer_value(json_array_get(kept, i)),
                         "%s-%s: layer %u, head %u: entry %u", e->prompt, rule->name, index, h, i);
    }
}

static bool try_example(const char *prompt, const struct rule *rule)
{
    struct example e = open_example(prompt, rule);
    struct override options[9];
    char texts[8][16];
    struct soq_kv_shape shape;
    struct policy p;

    if (!e.json)
        return false;
    options_of(&e, rule, options, texts);
    shape = shape_of(e.n_layers, e.n_heads, 4096);
    policy_start(&p, rule->plugin, options, &shape);
    cr_assert_eq(p.rc, 0, "%s-%s: %s", prompt, rule->name, p.err.text);
    for (uint32_t l = 0; l < e.n_layers; l++) {
        struct layer layer;

        layer_new(&layer, &p, l, e.n);
        fill_layer(&layer, &e, rule);
        layer_select(&layer, &p);
        expect_kept(&e, rule, &layer, l);
        layer_done(&layer);
    }
    close_example(&e);
    return true;
}

/* All prompts that have the case: four, or two for those made for short prompts only. */
static void try_rule(const struct rule *rule, uint32_t n_cases)
{
    static const char *const prompts[] = {"gqa-short", "gqa-long", "mha-short", "mha-long"};
    uint32_t n = 0;

    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++)
        n += try_example(prompts[i], rule);
    cr_assert_eq(n, n_cases, "%s: %u cases", rule->name, n);
}

Test(kvpolicy_select, snapkv)
{
    try_rule(&(struct rule){"snapkv_avg", "snapkv", NULL, MASS}, 4);
    try_rule(&(struct rule){"snapkv_max", "snapkv", NULL, MASS}, 4); /* plateaus: ties are broken as the reference does */
}

Test(kvpolicy_select, pyramidkv)
{
    try_rule(&(struct rule){"pyramidkv_paper", "pyramidkv", "paper", MASS}, 4);
    try_rule(&(struct rule){"pyramidkv_paper_clamped", "pyramidkv", "paper", MASS}, 2);
    try_rule(&(struct rule){"pyramidkv_kvpress", "pyramidkv", "kvpress", MASS}, 4);
}

Test(kvpolicy_select, adakv)
{
    try_rule(&(struct rule){"adakv_paper", "adakv", "paper", MASS}, 4);
    try_rule(&(struct rule){"adakv_kvpress", "adakv", "kvpress", MASS}, 4);
    try_rule(&(struct rule){"adakv_kvpress_floor", "adakv", "kvpress", MASS}, 4);
}

Test(kvpolicy_select, h2o)
{
    try_rule(&(struct rule){"h2o_prefill", "h2o", NULL, MASS}, 4);
}

Test(kvpolicy_select, observed)
{
    try_rule(&(struct rule){"observed_attention", "observed", NULL, OBSERVED}, 4);
}

Test(kvpolicy_select, tova)
{
    try_rule(&(struct rule){"tova", "tova", NULL, MASS}, 4);
}

Test(kvpolicy_select, streaming)
{
    try_rule(&(struct rule){"streaming_keep", "streaming", NULL, NONE}, 4);
    try_rule(&(struct rule){"streaming_rerot", "streaming", NULL, NONE}, 4);
}

Test(kvpolicy_select, l2norm)
{
    try_rule(&(struct rule){"knorm", "l2norm", NULL, NORMS}, 4);
}
