/* Golden logits: what the reference library computes in float32 for tiny models of each family, and the greedy continuation.
 * Every backend variant that the machine can run is held to the same numbers. */
#include <jansson.h>
#include <math.h>

#include "tests/unit/engine_fixture.h"
#include "tests/unit/npy.h"

/* model, expect.json's variant (NULL: the main file), largest |difference| allowed: the README's limit for the model, 2e-2 with
 * GELU */
static const struct golden {
    const char *name, *variant;
    double limit;
} goldens[] = {
    {"llama", NULL, 1e-3},
    {"llama", "f16", 1e-3},
    {"llama", "bf16", 1e-3},
    {"llama", "q8_0", 1e-3},
    {"mistral", NULL, 1e-3},
    {"llama_rope_linear", NULL, 1e-3},
    {"llama_rope_llama3", NULL, 1e-3},
    {"llama_rope_yarn", NULL, 1e-3},
    {"gemma3", NULL, 2e-2},
    {"llama256", NULL, 1e-3},
    {"llama256", "q4_0", 1e-3},
    {"llama256", "q4_1", 1e-3},
    {"llama256", "q5_0", 1e-3},
    {"llama256", "q5_1", 1e-3},
    {"llama256", "q2_k", 1e-3},
    {"llama256", "q3_k", 1e-3},
    {"llama256", "q4_k", 1e-3},
    {"llama256", "q5_k", 1e-3},
    {"llama256", "q6_k", 1e-3},
    {"llama256", "iq4_nl", 1e-3},
    {"llama256", "iq4_xs", 1e-3},
};

static uint32_t ids_of(const json_t *list, int32_t *out, uint32_t max)
{
    uint32_t n = 0;

    for (; n < json_array_size(list) && n < max; n++)
        out[n] = (int32_t)json_integer_value(json_array_get(list, n));
    return n;
}

static double max_difference(const float *a, const float *b, size_t n)
{
    double worst = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);

        if (!(d <= worst))
            worst = d; /* NaN too */
    }
    return worst;
}

static struct npy reference(const struct golden *g, const json_t *about, const char *key)
{
    const char *file = json_string_value(json_object_get(about, key));
    char path[256];
    struct npy a;

    cr_assert(file != NULL, "%s: expect.json has no %s", g->name, key);
    snprintf(path, sizeof path, "golden/%s/%s", g->name, file);
    a = npy_read(soq__test_data(path));
    cr_assert(a.data != NULL, "%s", path);
    return a;
}

static void check_short(struct fixture *f, const struct golden *g, const json_t *expect, const json_t *about, const char *use)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__sequence *seq = new_sequence(f);
    struct npy want = reference(g, about, "logits_short");
    int32_t ids[8];
    uint32_t n = ids_of(json_object_get(expect, "short_ids"), ids, 8);
    struct collected got = {.rows = n};
    double d;

    cr_assert_eq(run_ids(seq, ids, n, 0, &got, &err), 0, "%s", err.text);
    cr_assert_eq(want.rows * want.cols, (size_t)n * got.n_vocab);
    d = max_difference(want.data, got.logits, want.rows * want.cols);
    cr_expect(d <= g->limit, "%s %s (%s): short prompt differs by %g, limit %g", g->name, g->variant ? g->variant : "", use, d,
              g->limit);
    soq__free(got.logits);
    soq__free(want.data);
    soq__sequence_free(seq);
}

static void check_long(struct fixture *f, const struct golden *g, const json_t *expect, const json_t *about, const char *use)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__sequence *seq = new_sequence(f);
    struct npy want = reference(g, about, "logits_long_last");
    int32_t ids[48], greedy_ids[16];
    uint32_t n = ids_of(json_object_get(expect, "long_ids"), ids, 48), n_greedy;
    struct collected got = {.rows = 1, .from = n - 1};
    double d;

    n_greedy = ids_of(json_object_get(about, "greedy_ids"), greedy_ids, 16);
    cr_assert_eq(run_ids(seq, ids, n, n_greedy, &got, &err), 0, "%s", err.text);
    d = max_difference(want.data, got.logits, want.cols);
    cr_expect(d <= g->limit, "%s %s (%s): long prompt differs by %g, limit %g", g->name, g->variant ? g->variant : "", use, d,
              g->limit);
    cr_assert_eq(n_greedy, 16);
    for (uint32_t i = 0; i < n_greedy; i++)
        cr_expect_eq(seq->tokens[n + i], greedy_ids[i], "%s %s (%s): greedy token %u is %d, expected %d", g->name,
                     g->variant ? g->variant : "", use, i, seq->tokens[n + i], greedy_ids[i]);
    soq__free(got.logits);
    soq__free(want.data);
    soq__sequence_free(seq);
}

static void check_golden(const struct golden *g, const char *use)
{
    const char *settings[] = {REFERENCE_SETTINGS, mixed_plugins(), use, NULL};
    char path[256];
    struct fixture f;
    json_t *expect, *about;

    snprintf(path, sizeof path, "golden/%s/expect.json", g->name);
    expect = json_load_file(soq__test_data(path), 0, NULL);
    cr_assert(expect != NULL, "%s", path);
    about = g->variant ? json_object_get(json_object_get(expect, "variants"), g->variant) : expect;
    snprintf(path, sizeof path, "golden/%s/%s", g->name, json_string_value(json_object_get(about, "gguf")));
    f = open_model(path, settings);
    check_short(&f, g, expect, about, use);
    check_long(&f, g, expect, about, use);
    close_model(&f);
    json_decref(expect);
}

static void check_all(const char *use)
{
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++)
        check_golden(&goldens[i], use);
}

Test(golden, logits_and_greedy_tokens)
{
    int64_t live = soq__alloc_live();

    cr_assert(for_each_backend(check_all) > 0, "no backend can run");
    cr_expect_eq(soq__alloc_live(), live);
}

/* A product here, a norm there: copies and placement change nothing. */
Test(golden, several_backends)
{
    check_all("backend.use=acme,cpu");
    check_all("backend.use=acme-attention,cpu");
    check_all("backend.use=acme,acme-attention,cpu");
    check_all("backend.use=twin,cpu");
}

/* Longer prompts against a float64 reference: 200 and 600 tokens, grouped and plain heads. */
static void check_kv_golden(const char *use)
{
    static const char *const prompts[] = {"gqa-short", "gqa-long", "mha-short", "mha-long"};
    const char *settings[] = {REFERENCE_SETTINGS, use, NULL};
    json_t *index = json_load_file(soq__test_data("kv-golden/index.json"), 0, NULL);

    cr_assert(index != NULL);
    for (size_t p = 0; p < sizeof prompts / sizeof prompts[0]; p++) {
        const json_t *about = json_object_get(json_object_get(index, "prompts"), prompts[p]);
        struct soq_error err = SOQ_ERROR_INIT;
        struct collected got = {0};
        struct npy ids, last, decode;
        struct soq__sequence *seq;
        struct fixture f;
        char path[256];
        double d;

        snprintf(path, sizeof path, "kv-golden/models/%s.gguf", json_string_value(json_object_get(about, "model")));
        f = open_model(path, settings);
        snprintf(path, sizeof path, "kv-golden/prompts/%s.ids.npy", prompts[p]);
        ids = npy_read(soq__test_data(path));
        snprintf(path, sizeof path, "kv-golden/prompts/%s.logits_last.npy", prompts[p]);
        last = npy_read(soq__test_data(path));
        snprintf(path, sizeof path, "kv-golden/prompts/%s.full_decode_logits.npy", prompts[p]);
        decode = npy_read(soq__test_data(path));
        cr_assert(ids.data && last.data && decode.data);
        seq = new_sequence(&f);
        got = (struct collected){.from = (uint32_t)ids.cols - 1, .rows = 17};
        cr_assert_eq(run_ids(seq, ids.data, (uint32_t)ids.cols, 18, &got, &err), 0, "%s", err.text);
        d = max_difference(last.data, got.logits, last.cols);
        cr_expect(d <= 3e-3, "%s (%s): prompt differs by %g", prompts[p], use, d);
        d = max_difference(decode.data, got.logits + got.n_vocab, decode.rows * decode.cols);
        cr_expect(d <= 3e-3, "%s (%s): decoding differs by %g", prompts[p], use, d);
        cr_expect_eq(seq->tokens[ids.cols], json_integer_value(json_object_get(about, "first_id")));
        for (size_t i = 0; i < 16; i++)
            cr_expect_eq(seq->tokens[ids.cols + 1 + i],
                         json_integer_value(json_array_get(json_object_get(about, "full_greedy_ids"), i)), "%s (%s): token %zu",
                         prompts[p], use, i);
        soq__free(got.logits);
        soq__free(ids.data);
        soq__free(last.data);
        soq__free(decode.data);
        soq__sequence_free(seq);
        close_model(&f);
    }
    json_decref(index);
}

Test(golden, longer_prompts)
{
    cr_assert(for_each_backend(check_kv_golden) > 0, "no backend can run");
}

/* What this release cannot compute rightly it refuses, by name. */
Test(golden, refusals)
{
    static const struct {
        const char *path, *says;
    } refused[] = {
        {"golden/mistral_swa/model.gguf", "llama.attention.sliding_window"},
        {"golden/mixtral/model.gguf", "llama.expert_count"},
    };

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq_runtime *rt = open_runtime(NULL, &err);
        struct soq_model *model = NULL;

        cr_assert(rt != NULL, "%s", err.text);
        cr_expect_eq(soq_model_load(rt, soq__test_data(refused[i].path), NULL, &model, &err), -SOQ_EUNSUPPORTED);
        cr_expect(strstr(err.text, refused[i].says) && strstr(err.text, refused[i].path), "%s", err.text);
        soq_runtime_free(rt);
    }
}
