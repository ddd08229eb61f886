/* Eviction end to end against the published implementations: for every case of kv-golden a model runs the prompt under the
 * policy, and the positions that it keeps, the logits behind them and the greedy tokens must be the reference's. f32 cache and
 * activations, on every backend that this machine can run. */
#include <jansson.h>
#include <math.h>

#include "tests/unit/engine_fixture.h"
#include "tests/unit/npy.h"

#define STEPS_MAX 55
#define TOLERANCE 3e-3f
#define LISTS_MAX 64 /* layers x heads */

/* How a case's name and parameters become settings. */
static const struct rule {
    const char *name, *policy;
    const char *settings[3]; /* beyond the parameters */
} rules[] = {
    {"streaming_keep", "streaming", {"positions=original", "when=prompt"}},
    {"streaming_rerot", "streaming", {"positions=slot", "when=prompt"}},
    {"streaming_rolling_keep", "streaming", {"positions=original", "when=decode", "every=1"}},
    {"streaming_rolling_rerot", "streaming", {"positions=slot", "when=decode", "every=1"}},
    {"snapkv_avg", "snapkv", {0}},
    {"snapkv_max", "snapkv", {0}},
    {"pyramidkv_paper", "pyramidkv", {"formula=paper"}},
    {"pyramidkv_paper_clamped", "pyramidkv", {"formula=paper"}},
    {"pyramidkv_kvpress", "pyramidkv", {"formula=kvpress"}},
    {"adakv_kvpress", "adakv", {"formula=kvpress"}},
    {"adakv_kvpress_floor", "adakv", {"formula=kvpress"}},
    {"adakv_paper", "adakv", {"formula=paper"}},
    {"tova", "tova", {"when=prompt"}},
    {"tova_decode", "tova", {"when=always", "every=1"}},
    {"knorm", "l2norm", {0}},
    {"keydiff", "keydiff", {0}},
    {"h2o_prefill", "h2o", {"when=prompt"}},
    {"h2o_decode", "h2o", {"when=always", "every=1"}},
    {"h2o_decode_full", "h2o", {"when=always", "every=1"}},
    {"observed_attention", "observed", {0}},
};

static const char *const prompts[] = {"gqa-short", "gqa-long", "mha-short", "mha-long"};

struct list {
    uint32_t n;
    uint32_t at[1024];
};

struct example {
    char id[80];
    json_t *json;
    bool decodes;    /* entries go while decoding, and the first tokens are given */
    bool goes_first; /* an entry goes before a token comes, so the cache is one smaller after each step than the reference's */
    uint32_t n_prompt, n_layers, n_heads, n_steps, n_sinks;
    struct npy ids, logits;
    struct list expected[LISTS_MAX];
    uint32_t n_events; /* of the trace, all layers and heads counted */
    bool same;
};

/* ---- Reading a case ------------------------------------------------------------------------------------------------------ */

static struct npy read_npy(const char *format, const char *name)
{
    char path[200];

    snprintf(path, sizeof path, format, name);
    return npy_read(soq__test_data(path));
}

static const json_t *at(const json_t *matrix, uint32_t layer, uint32_t head)
{
    return json_array_get(json_array_get(matrix, layer), head);
}

static void read_lists(struct example *e, const char *key)
{
    for (uint32_t i = 0; i < e->n_layers * e->n_heads; i++) {
        const json_t *kept = at(json_object_get(e->json, key), i / e->n_heads, i % e->n_heads);

        e->expected[i].n = (uint32_t)json_array_size(kept);
        for (uint32_t j = 0; j < e->expected[i].n; j++)
            e->expected[i].at[j] = (uint32_t)json_integer_value(json_array_get(kept, j));
    }
}

static uint32_t evicted(const struct example *e, uint32_t step, uint32_t i)
{
    const json_t *all = json_object_get(e->json, "evicted");

    return (uint32_t)json_integer_value(at(json_array_get(all, step), i / e->n_heads, i % e->n_heads));
}

static void remove_position(struct list *list, uint32_t position)
{
    uint32_t i = 0;

    while (i < list->n && list->at[i] != position)
        i++;
    cr_assert_lt(i, list->n, "the reference evicts position %u, which is not there", position);
    list->n--;
    memmove(list->at + i, list->at + i + 1, (list->n - i) * sizeof list->at[0]);
}

/* false: there is no such case */
static bool open_example(const char *prompt, const struct rule *rule, struct example *e)
{
    char path[200];

    *e = (struct example){.same = true};
    snprintf(e->id, sizeof e->id, "%s-%s", prompt, rule->name);
    snprintf(path, sizeof path, "kv-golden/cases/%s.json", e->id);
    e->json = json_load_file(soq__test_data(path), 0, NULL);
    if (!e->json)
        return false;
    e->decodes = json_object_get(e->json, "forced_ids") != NULL;
    e->goes_first = strncmp(rule->name, "streaming_rolling", 17) == 0;
    e->n_layers = (uint32_t)json_array_size(json_object_get(e->json, "kept"));
    e->n_heads = (uint32_t)json_array_size(json_array_get(json_object_get(e->json, "kept"), 0));
    e->ids = read_npy("kv-golden/prompts/%s.ids.npy", prompt);
    e->logits = read_npy("kv-golden/cases/%s.logits.npy", e->id);
    cr_assert(e->ids.data && e->logits.data && e->logits.rows <= STEPS_MAX, "%s", e->id);
    e->n_prompt = (uint32_t)e->ids.cols;
    e->n_steps = (uint32_t)e->logits.rows;
    e->n_sinks = (uint32_t)json_integer_value(json_object_get(json_object_get(e->json, "params"), "sinks"));
    read_lists(e, e->decodes ? "kept_after_prefill" : "kept");
    for (uint32_t i = 0; e->goes_first && i < e->n_layers * e->n_heads; i++)
        remove_position(&e->expected[i], evicted(e, 0, i));
    return true;
}

static void close_example(struct example *e)
{
    npy_done(&e->ids);
    npy_done(&e->logits);
    json_decref(e->json);
}

/* ---- Running it ---------------------------------------------------------------------------------------------------------- */

/* "kv.POLICY.KEY=VALUE" for each of the case's parameters. */
static void list_settings(const struct example *e, const struct rule *rule, const char *use, char texts[16][96],
                          const char **settings)
{
    static const char *const numbers[] = {"window", "kernel", "beta", "recent", "sinks"};
    const json_t *params = json_object_get(e->json, "params"), *floors = json_object_get(params, "floor");
    const json_t *pool = json_object_get(params, "pool");
    size_t n = 0;

    snprintf(texts[n++], sizeof texts[0], "%s", use);
    snprintf(texts[n++], sizeof texts[0], "kv.policy=%s", rule->policy);
    snprintf(texts[n++], sizeof texts[0], "kv.%s.capacity=%lld", rule->policy,
             (long long)json_integer_value(json_object_get(params, "C")) - e->goes_first);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (json_object_get(params, numbers[i]))
            snprintf(texts[n++], sizeof texts[0], "kv.%s.%s=%lld", rule->policy, numbers[i],
                     (long long)json_integer_value(json_object_get(params, numbers[i])));
    if (pool)
        snprintf(texts[n++], sizeof texts[0], "kv.%s.pool=%s", rule->policy, json_string_value(pool));
    if (floors)
        snprintf(texts[n++], sizeof texts[0], "kv.%s.floor=%g", rule->policy,
                 (double)json_integer_value(json_array_get(floors, 0)) / (double)json_integer_value(json_array_get(floors, 1)));
    for (size_t i = 0; i < 3 && rule->settings[i]; i++)
        snprintf(texts[n++], sizeof texts[0], "kv.%s.%s", rule->policy, rule->settings[i]);
    for (size_t i = 0; i < n; i++)
        *settings++ = texts[i];
    *settings = NULL;
}

/* Compares what is kept with what is expected, and moves that on to the next step. */
static void compare_kept(void *arg, const struct soq__kv_kept *kept)
{
    struct example *e = arg;
    uint32_t i = kept->layer * e->n_heads + kept->head, step = kept->position - e->n_prompt, next = step + e->goes_first;
    struct list *list = &e->expected[i];

    if (e->same && (kept->n_kept != list->n || memcmp(kept->kept, list->at, list->n * sizeof list->at[0]) != 0)) {
        cr_expect(0, "%s: layer %u, head %u keeps other positions after %u steps (%u, not %u)", e->id, kept->layer, kept->head,
                  step, kept->n_kept, list->n);
        e->same = false;
    }
    e->n_events++;
    if (!e->decodes || step == e->n_steps)
        return;
    list->at[list->n++] = kept->position; /* the token that comes now */
    remove_position(list, next < e->n_steps ? evicted(e, next, i) : list->at[e->n_sinks]);
}

/* Puts the given tokens in place of sampled ones. */
static int force_token(void *arg, const struct soq__job *job, int32_t token, struct soq_error *err)
{
    struct example *e = arg;
    const json_t *forced = json_object_get(e->json, "forced_ids");
    uint32_t i = job->n_generated - 1;

    (void)token;
    (void)err;
    if (i < json_array_size(forced))
        job->seq->tokens[job->seq->n_tokens - 1] = (int32_t)json_integer_value(json_array_get(forced, i));
    return 0;
}

struct run {
    struct example *example;
    float worst;
};

static void compare_logits(void *arg, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct run *r = arg;
    uint32_t step = position - r->example->n_prompt; /* beyond the rows for the prompt's last token */
    const float *expected = (const float *)r->example->logits.data + (size_t)step * n_vocab;

    for (uint32_t v = 0; step < r->example->n_steps && v < n_vocab; v++) {
        float difference = fabsf(logits[v] - expected[v]);

        r->worst = difference <= r->worst ? r->worst : difference;
    }
}

static int force_in_run(void *arg, const struct soq__job *job, int32_t token, struct soq_error *err)
{
    return force_token(((struct run *)arg)->example, job, token, err);
}

static void expect_tokens(const struct example *e, const struct soq__sequence *seq, const char *use)
{
    const json_t *greedy_ids = json_object_get(e->json, "greedy_ids");
    uint32_t first = e->n_prompt + 1 + (e->decodes ? e->n_steps - (uint32_t)json_array_size(greedy_ids) : 0);

    if (!e->decodes)
        cr_expect_eq(seq->tokens[e->n_prompt], json_integer_value(json_object_get(e->json, "first_id")), "%s (%s)", e->id, use);
    for (uint32_t i = 0; i < json_array_size(greedy_ids); i++)
        cr_expect_eq(seq->tokens[first + i], json_integer_value(json_array_get(greedy_ids, i)), "%s (%s): token %u", e->id, use,
                     i);
}

static void run_example(const struct rule *rule, struct example *e, const char *use)
{
    char texts[16][96], path[80];
    const char *settings[20] = {REFERENCE_SETTINGS, "model.context=1024"};
    struct run run = {.example = e};
    struct fixture f;
    struct soq__sequence *seq;
    struct soq__job job;

    list_settings(e, rule, use, texts, settings + 4);
    snprintf(path, sizeof path, "kv-golden/models/%.3s.gguf", e->id);
    f = open_model(path, settings);
    f.model->engine->kv.trace = (struct soq__kv_trace){.fn = compare_kept, .arg = e};
    seq = new_sequence(&f);
    job = (struct soq__job){
        .seq = seq,
        .prompt = e->ids.data,
        .n_prompt = e->n_prompt,
        .max_tokens = e->n_steps + 1,
        .ignore_eog = true,
        .sampling = greedy(),
        .on_sampled = force_in_run,
        .on_logits = compare_logits,
        .logits_from = e->n_prompt,
        .arg = &run,
    };
    soq__engine_run(seq->engine, &job, NULL, NULL);
    cr_assert_eq(job.rc, 0, "%s (%s): %s", e->id, use, job.err.text);
    cr_expect_leq(run.worst, TOLERANCE, "%s (%s): logits differ by %g", e->id, use, (double)run.worst);
    cr_expect_eq(e->n_events, e->n_layers * e->n_heads * (e->decodes ? e->n_steps + 1 : 1), "%s (%s): %u events", e->id, use,
                 e->n_events);
    expect_tokens(e, seq, use);
    soq__sequence_free(seq);
    close_model(&f);
}

static uint32_t n_examples;

static void run_all(const char *use)
{
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++)
        for (size_t p = 0; p < sizeof prompts / sizeof prompts[0]; p++) {
            static struct example e;

            if (!open_example(prompts[p], &rules[r], &e))
                continue;
            run_example(&rules[r], &e, use);
            close_example(&e);
            n_examples++;
        }
}

Test(kv_golden, every_case)
{
    int n_backends = for_each_backend(run_all);

    cr_expect_gt(n_backends, 0);
    cr_expect_eq(n_examples % 78, 0, "%u cases", n_examples);
    cr_expect_gt(n_examples, 0);
}
