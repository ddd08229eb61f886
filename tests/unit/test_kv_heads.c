/* [kv.layers] for kv heads: who gets which policy, what heads then see against a textbook model with their masks, on every
 * backend, that a head's policy knows only of its own heads, and that forecasts agree with the pool. */
#include "kv/promise.h"
#include "tests/unit/engine_fixture.h"
#include "tests/unit/llama_reference.h"

#define MODEL "kv-golden/models/mha.gguf" /* F32 */
#define N_LAYERS 4
#define N_HEADS 4
#define N_PROMPT 150
#define N_GENERATE 40

#define CAPACITY 48
#define SINKS 4
#define WINDOW (CAPACITY - SINKS)

static void make_prompt(int32_t *ids)
{
    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = (int32_t)(3 + (i * 37 + 101 + i * i % 13) % 500);
}

/* ---- Who rules what ------------------------------------------------------------------------------------------------------ */

/* "full streaming full full": the policies of a layer's heads. */
static void expect_policies(struct fixture *f, uint32_t layer, const char *want)
{
    const struct soq__policies *ps = &f->model->engine->policies;
    char got[200] = "";

    for (uint32_t h = 0; h < N_HEADS; h++) {
        uint32_t i = ps->of[SOQ__KV_FULL][layer * N_HEADS + h];

        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s:%u", h ? " " : "", ps->kv[i].name, ps->kv[i].n_heads);
    }
    cr_expect_str_eq(got, want, "layer %u", layer);
}

/* A rule for heads goes before one for their layer, wherever it stands. */
Test(kv_heads, rules)
{
    struct fixture f =
        open_model(MODEL, (const char *[]){"kv.policy=full", "kv.window.capacity=40", "kv.streaming.capacity=40",
                                           "kv.layers.1-2/1,3-=policy:streaming", "kv.layers.2=policy:window",
                                           "kv.layers.3/0-2=policy:window sinks:2", "kv.layers.0/0-=policy:window", NULL});

    cr_expect_eq(f.model->engine->policies.n, 7);
    expect_policies(&f, 0, "window:4 window:4 window:4 window:4");
    expect_policies(&f, 1, "full:2 streaming:2 full:2 streaming:2");
    expect_policies(&f, 2, "window:2 streaming:2 window:2 streaming:2");
    expect_policies(&f, 3, "window:3 window:3 window:3 full:1");
    close_model(&f);
}

static const char *refusal(const char *setting, const char *other)
{
    static struct soq_error err;
    const char *settings[] = {"kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16", setting, other, NULL};
    struct soq_runtime *rt;
    struct soq_model *model = NULL;

    err = (struct soq_error)SOQ_ERROR_INIT;
    rt = open_runtime(settings, &err);
    cr_assert(rt != NULL, "%s", err.text);
    cr_expect_lt(soq_model_load(rt, soq__test_data(MODEL), NULL, &model, &err), 0, "%s: it loads", setting);
    soq_model_free(model);
    soq_runtime_free(rt);
    return err.text;
}

Test(kv_heads, wrong_rules)
{
    static const struct {
        const char *setting, *other, *says[3];
    } cases[] = {
        {"kv.layers.0/4=policy:full", NULL, {"[kv.layers] 0/4 = policy:full", "\"4\"", "heads 0 to 3"}},
        {"kv.layers.0/=policy:full", NULL, {"[kv.layers] 0/ = policy:full", "heads 0 to 3"}},
        {"kv.layers.0/1/2=policy:full", NULL, {"\"1/2\"", "heads 0 to 3"}},
        {"kv.layers./1=policy:full", NULL, {"[kv.layers] /1 = policy:full", "layers 0 to 3"}},
        {"kv.layers.0-4/1=policy:full", NULL, {"\"0-4\"", "layers 0 to 3"}},
        {"kv.layers.0/2-1=policy:full", NULL, {"\"2-1\"", "heads 0 to 3"}},
        {"kv.layers.0-1/1-,3=policy:full", NULL, {"layer 0, head 3 has already a policy", "by the key 0-1/1-,3"}},
        {"kv.layers.0-/1=policy:full", "kv.layers.2/0-1=policy:full", {"[kv.layers]", "layer 2, head 1 has already a policy"}},
        {"kv.layers.0-1/1=codec:int8", NULL, {"[kv.layers] 0-1/1 = codec:int8", "no codec", "in the key 0-1"}},
        {"kv.layers.0/1=policy:full codec_v:f16", NULL, {"no codec", "in the key 0"}},
        {"kv.layers.0/1=policy:nosuch", NULL, {"[kv.layers] 0/1 = policy:nosuch", "nosuch"}},
        {"kv.layers.0/1=capacity:8", NULL, {"[kv.layers] 0/1 = capacity:8", "window = 16"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = refusal(cases[i].setting, cases[i].other);

        for (size_t s = 0; s < 3 && cases[i].says[s]; s++)
            cr_expect(strstr(text, cases[i].says[s]), "%s: %s", cases[i].setting, text);
    }
}

/* A codec that must know positions goes neither with a policy that selects for all heads nor with one that does for one. */
Test(kv_heads, codecs_of_layers)
{
    static const char *const wrong[] = {"kv.layers.1/2=policy:snapkv capacity:48 window:16", "kv.layers.1=codec:placed"};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *rt = open_runtime((const char *[]){mixed_plugins(), wrong[0], wrong[1], NULL}, &err);
    struct soq_model *model = NULL;

    cr_assert(rt != NULL, "%s", err.text);
    cr_expect_lt(soq_model_load(rt, soq__test_data(MODEL), NULL, &model, &err), 0, "it loads");
    cr_expect(strstr(err.text, "policy = snapkv") && strstr(err.text, "layer 1"), "%s", err.text);
    soq_runtime_free(rt);
}

/* ---- What heads see ------------------------------------------------------------------------------------------------------ */

/* `window` in heads 0 and 3. */
static int sees_window(uint32_t head, uint32_t q, uint32_t p)
{
    return head % 3 || p < SINKS || p + WINDOW > q ? 0 : UNSEEN;
}

/* `streaming` in head 1: a row stands at its place among what it sees, behind the sinks. */
static int sees_stream(uint32_t head, uint32_t q, uint32_t p)
{
    if (head != 1 || p + WINDOW > q)
        return 0;
    return p < SINKS ? (int)(q + 1 - CAPACITY > q ? 0 : q + 1 - CAPACITY) : UNSEEN;
}

static void expect_reference(const char *use, const char *const *settings, reference_view *sees)
{
    const char *all[16] = {use, REFERENCE_SETTINGS};
    struct fixture f;
    struct soq__sequence *seq;
    struct soq_error err = SOQ_ERROR_INIT;
    struct collected got = {.rows = N_PROMPT};
    int32_t ids[N_PROMPT];
    double *want, worst = 0;

    for (size_t i = 0; settings[i]; i++)
        all[4 + i] = settings[i];
    f = open_model(MODEL, all);
    seq = new_sequence(&f);
    make_prompt(ids);
    cr_assert_eq(run_ids(seq, ids, N_PROMPT, 0, &got, &err), 0, "%s", err.text);
    want = malloc(sizeof *want * N_PROMPT * got.n_vocab);
    reference_logits(f.model->model, sees, ids, N_PROMPT, want);
    for (size_t i = 0; i < (size_t)N_PROMPT * got.n_vocab; i++)
        worst = fmax(worst, fabs(want[i] - (double)got.logits[i]));
    cr_expect_leq(worst, 2e-3, "%s, %s: differs by %g", use, settings[0], worst);
    free(want);
    soq__free(got.logits);
    soq__sequence_free(seq);
    close_model(&f);
}

static void against_the_textbook(const char *use)
{
    static const char *const window[] = {"kv.policy=window", "kv.window.capacity=48", "kv.window.sinks=4",
                                         "kv.layers.0-/1-2=policy:full", NULL};
    static const char *const streaming[] = {"kv.layers.0-/1=policy:streaming capacity:48 sinks:4", "kv.block_tokens=8",
                                            "engine.chunk=7", NULL};

    expect_reference(use, window, sees_window);
    expect_reference(use, streaming, sees_stream);
}

Test(kv_heads, against_the_textbook, .timeout = 240)
{
    cr_expect_geq(for_each_backend(against_the_textbook), 1);
}

/* ---- What they keep ------------------------------------------------------------------------------------------------------ */

struct outcome {
    int32_t tokens[N_PROMPT + N_GENERATE];
    uint32_t n_events, n_kept[N_LAYERS][N_HEADS]; /* after the prompt */
    uint32_t kept[N_LAYERS][N_HEADS][N_PROMPT];
    uint64_t bytes;
};

static void note_kept(void *arg, const struct soq__kv_kept *kept)
{
    struct outcome *o = arg;

    if (kept->position != N_PROMPT)
        return;
    cr_expect_eq(o->n_events++, kept->layer * N_HEADS + kept->head, "in order");
    o->n_kept[kept->layer][kept->head] = kept->n_kept;
    memcpy(o->kept[kept->layer][kept->head], kept->kept, kept->n_kept * sizeof *kept->kept);
    o->bytes += kept->bytes;
}

static struct outcome answer(const char *const *settings)
{
    struct fixture f = open_model(MODEL, settings);
    struct soq__sequence *seq = new_sequence(&f);
    struct soq_error err = SOQ_ERROR_INIT;
    struct outcome o = {.n_events = 0};
    int32_t ids[N_PROMPT];

    f.model->engine->kv.trace = (struct soq__kv_trace){.fn = note_kept, .arg = &o};
    make_prompt(ids);
    cr_assert_eq(run_ids(seq, ids, N_PROMPT, N_GENERATE, NULL, &err), 0, "%s", err.text);
    cr_expect_eq(o.n_events, N_LAYERS * N_HEADS);
    memcpy(o.tokens, seq->tokens, sizeof o.tokens);
    soq__sequence_free(seq);
    close_model(&f);
    return o;
}

static void expect_same(const struct outcome *a, const struct outcome *b, const char *what)
{
    cr_expect(memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0, "%s: other tokens", what);
    cr_expect(memcmp(a->kept, b->kept, sizeof a->kept) == 0, "%s: other entries", what);
}

/* Keys that name all heads, one by one, give what one for the layers gives. */
Test(kv_heads, all_heads_are_a_layer)
{
    static const char *const rules[] = {"policy:window capacity:48", "policy:adakv capacity:48 window:16",
                                        "policy:snapkv capacity:48 window:8 when:always every:12"};

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        char layers[80], some[80], others[80];
        struct outcome a, b;

        snprintf(layers, sizeof layers, "kv.layers.0-=%s", rules[i]);
        snprintf(some, sizeof some, "kv.layers.0-/0-1=%s", rules[i]);
        snprintf(others, sizeof others, "kv.layers.0-/2-=%s", rules[i]);
        a = answer((const char *[]){layers, NULL});
        b = answer((const char *[]){some, others, NULL});
        expect_same(&a, &b, rules[i]);
    }
}

/* In the first layer entries do not depend on what others keep, so what heads choose for themselves stays the same whichever
 * heads the policy rules beside them; where it chooses for all together, it does so among its own. */
Test(kv_heads, their_own_heads)
{
    static const char snap[] = "policy:snapkv capacity:48 window:16";
    struct outcome all = answer((const char *[]){"kv.layers.0=policy:snapkv capacity:48 window:16", NULL});
    struct outcome some = answer((const char *[]){"kv.layers.0/0,2=policy:snapkv capacity:48 window:16", NULL});
    struct outcome ada = answer((const char *[]){"kv.layers.0-/0,2-=policy:adakv capacity:48 window:16", NULL});
    uint32_t sum;

    for (uint32_t h = 0; h < N_HEADS; h++)
        cr_expect_eq(some.n_kept[0][h], h % 2 ? N_PROMPT : 48, "%s: head %u keeps %u", snap, h, some.n_kept[0][h]);
    for (uint32_t h = 0; h < N_HEADS; h += 2)
        cr_expect(memcmp(all.kept[0][h], some.kept[0][h], 48 * sizeof(uint32_t)) == 0, "head %u keeps others", h);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        sum = ada.n_kept[l][0] + ada.n_kept[l][2] + ada.n_kept[l][3];
        cr_expect_eq(ada.n_kept[l][1], N_PROMPT, "layer %u", l);
        cr_expect(sum <= 3 * 48 && sum > 3 * 48 - 3, "layer %u: %u entries", l, sum);
    }
}

/* Heads under policies of every kind, apart from each other: nothing but the text decides. */
static const char *const mixes[][5] = {
    {"kv.policy=streaming", "kv.streaming.capacity=48", "kv.layers.0-/0,2=policy:full"},
    {"kv.layers.0-/1,3=policy:snapkv capacity:48 window:16", "kv.layers.1=policy:window capacity:40"},
    {"kv.layers.0-2/0,2-=policy:adakv capacity:48 window:8 when:always every:12", "kv.layers.3/3=policy:tova capacity:40"},
    {"kv.policy=h2o", "kv.h2o.capacity=48", "kv.h2o.recent=16",
     "kv.layers.0-/1=policy:streaming capacity:48 when:decode every:16", "kv.layers.2/0=policy:full"},
};
#define N_MIXES (sizeof mixes / sizeof mixes[0])

Test(kv_heads, how_it_is_computed_is_no_matter, .timeout = 240)
{
    static const char *const variants[] = {"engine.chunk=1", "engine.chunk=11", "kv.block_tokens=8", "kv.block_tokens=128"};

    for (size_t i = 0; i < N_MIXES; i++) {
        const char *settings[7] = {mixes[i][0], mixes[i][1], mixes[i][2], mixes[i][3], mixes[i][4]};
        struct outcome base = answer(settings), o;
        size_t n = 0;

        while (settings[n])
            n++;
        for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
            settings[n] = variants[v];
            o = answer(settings);
            expect_same(&base, &o, variants[v]);
        }
    }
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

static bool by_head(const struct soq__engine *e)
{
    bool any = false;

    for (uint32_t i = 0; i < e->policies.n; i++)
        any = any || e->policies.kv[i].plan.needs & SOQ_NEED_HEAD_BUDGETS;
    return any;
}

/* What the forecast, the sequence, the trace and the pools say of a prompt. */
static void expect_bytes(const struct soq__engine *e, const struct soq__sequence *seq, const struct outcome *o, const char *mix)
{
    const struct soq__kv_need_params params = {
        .layout = &e->layout, .policies = e->policies.kv, .chunk = e->chunk, .n_prompt = N_PROMPT, .n_entries = N_PROMPT};
    uint64_t kept = 0, used = 0, peak = 0, held = soq__kv_seq_bytes(&seq->kv);

    for (uint32_t i = 0; i < e->kv.n_pools; i++) {
        const struct soq__kv_pool *pool = &e->kv.pools[i];
        struct soq__kv_need need;

        soq__kv_need(&params, i, &need);
        kept += need.kept * pool->block_bytes;
        used += pool->n_used * pool->block_bytes;
        peak += soq__kv_need_peak(&need) * pool->block_bytes;
    }
    cr_expect_eq(held, used, "%s", mix);
    cr_expect_eq(held, o->bytes, "%s", mix);
    cr_expect(by_head(e) ? held <= kept : held == kept, "%s: %llu bytes are held, the forecast was %llu", mix,
              (unsigned long long)held, (unsigned long long)kept);
    cr_expect(e->kv.budget.peak <= peak && e->kv.budget.peak >= peak / 4 * 3, "%s: %llu bytes at most, the forecast was %llu",
              mix, (unsigned long long)e->kv.budget.peak, (unsigned long long)peak);
}

Test(kv_heads, memory)
{
    for (size_t i = 0; i < N_MIXES; i++) {
        const char *settings[] = {"kv.block_tokens=8", "kv.prefix_cache=off", mixes[i][0], mixes[i][1],
                                  mixes[i][2],         mixes[i][3],           mixes[i][4], NULL};
        struct fixture f = open_model(MODEL, settings);
        struct soq__engine *e = f.model->engine;
        struct soq__sequence *seq = new_sequence(&f);
        struct soq_error err = SOQ_ERROR_INIT;
        struct outcome o = {.n_events = 0};
        int32_t ids[N_PROMPT];

        split_slabs(&e->kv);
        e->kv.trace = (struct soq__kv_trace){.fn = note_kept, .arg = &o};
        make_prompt(ids);
        cr_assert_eq(run_ids(seq, ids, N_PROMPT, 0, NULL, &err), 0, "%s", err.text);
        expect_bytes(e, seq, &o, mixes[i][0]);
        soq__sequence_free(seq);
        cr_expect_eq(e->kv.budget.used, 0);
        close_model(&f);
    }
}

/* Heads apart share pools, so that slabs stay few. */
Test(kv_heads, pools)
{
    struct fixture f = open_model(MODEL, (const char *[]){mixes[0][0], mixes[0][1], mixes[0][2], NULL});
    const struct soq__kv_layout *layout = &f.model->engine->layout;

    cr_expect_eq(layout->n_groups, 4);
    cr_expect_eq(layout->n_pools, 1);
    for (uint32_t g = 0; g < layout->n_groups; g++)
        cr_expect(layout->groups[g].n_layers == N_LAYERS && layout->groups[g].n_heads == 1);
    close_model(&f);
}

/* ---- Drafts -------------------------------------------------------------------------------------------------------------- */

/* Where heads of the view that decides are apart, each tells the lossy view's policy its own mass. */
Test(kv_heads, drafts)
{
    static const char *const draft[] = {"decoding.drafter=self", "decoding.draft_tokens=3",
                                        "draft.policy=snapkv capacity:48 window:16"};
    struct outcome whole = answer((const char *[]){draft[0], draft[1], draft[2], NULL});
    struct outcome apart =
        answer((const char *[]){draft[0], draft[1], draft[2], "kv.layers.0-/1,3=policy:window capacity:100000", NULL});

    cr_expect_eq(whole.n_kept[0][0], 48);
    expect_same(&whole, &apart, "heads apart");
}
