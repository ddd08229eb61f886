/* Codecs that pack blocks, over whole models: for each of them and each policy tokens and logits are the same bit for bit,
 * however a prompt is cut, who else computes, what is preempted, forked, thrown away and computed again, found in the prefix
 * index, saved and loaded; and what cannot be is said when the model is loaded. */
#include <pthread.h>

#include "kv/promise.h"
#include "tests/unit/calibrated.h"
#include "tests/unit/combination.h"

#define LLAMA "golden/llama/model.gguf"
#define GEMMA "golden/gemma3/model.gguf" /* windows of 16 in five layers of six, which have a RoPE of their own */
#define CODEC_SETTINGS 5
#define CALIBRATED "kv.kvquant.calibration="

/* Blocks of 8 tokens; what is packed every 128 is so once, in the answer. */
static const char *const codecs[][CODEC_SETTINGS] = {
    {"kv.codec=int8", "kv.pack_grid=16"},
    {"kv.codec=int4", "kv.pack_grid=24", "kv.int4.format=q4_1"},
    {"kv.codec=fp8", "kv.pack_grid=16", "kv.residual=8"},
    {"kv.codec=kivi", "kv.kivi.group=8"},
    {"kv.codec=kivi", "kv.kivi.group=8", "kv.kivi.bits=4", "kv.kivi.residual=40"},
    {"kv.codec=odd", "kv.pack_grid=16"},
    {"kv.codec_k=odd", "kv.codec_v=int8", "kv.odd.grid=32", "kv.pack_grid=16"},
    {"kv.codec_k=f32", "kv.codec_v=odd", "kv.odd.tail=f32", "kv.pack_grid=16"},
    {"kv.codec=odd", "kv.layers.0=codec:f32", "kv.layers.1=codec_k:int8 codec_v:odd residual:16", "kv.pack_grid=16"},
    {"kv.codec=turboquant", "kv.pack_grid=16"},
    {"kv.codec=turboquant", "kv.pack_grid=32", "kv.turboquant.variant=prod", "kv.turboquant.metadata=f32"},
    {"kv.codec=kvquant", "kv.pack_grid=16"},
    {"kv.codec=kvquant", "kv.pack_grid=16", CALIBRATED},
    {"kv.codec_k=kvquant", "kv.codec_v=int4", "kv.pack_grid=16", CALIBRATED, "kv.kvquant.keys=post_rope"},
    {"kv.codec_k=int8", "kv.codec_v=kvquant", "kv.pack_grid=16"},
};
#define N_CODECS (sizeof codecs / sizeof codecs[0])

/* A calibration file of the model, made when it is first asked for, as a setting. */
static struct calibration_file {
    const char *model;
    char setting[80]; /* the path stands behind CALIBRATED */
} calibrations[2];

static const char *calibration_of(const char *model)
{
    struct calibration_file *c = &calibrations[calibrations[0].model && strcmp(calibrations[0].model, model) != 0];

    if (!c->model) {
        c->model = model;
        strcpy(c->setting, CALIBRATED "/tmp/soquete-packed-XXXXXX");
        close(mkstemp(c->setting + strlen(CALIBRATED)));
        calibrate_model(model, c->setting + strlen(CALIBRATED), 2);
    }
    return c->setting;
}

static void drop_calibrations(void)
{
    for (int i = 0; i < 2; i++)
        if (calibrations[i].model)
            unlink(calibrations[i].setting + strlen(CALIBRATED));
    memset(calibrations, 0, sizeof calibrations);
}

/* A model with the settings of a codec, of a policy (NULL: none) and up to 8 more. */
static struct fixture open_packed(const char *model, size_t codec, const char *const *policy, const char *const *more)
{
    const char *all[CODEC_SETTINGS + 10] = {mixed_plugins()};
    size_t n = 1;

    for (size_t i = 0; i < CODEC_SETTINGS && codecs[codec][i]; i++)
        all[n++] = strcmp(codecs[codec][i], CALIBRATED) == 0 ? calibration_of(model) : codecs[codec][i];
    for (size_t i = 0; more && more[i]; i++)
        all[n++] = more[i];
    return open_with(model, policy, all);
}

/* Run alone, with nothing in its way. */
static struct told undisturbed(const char *model, size_t codec, const char *const *policy)
{
    struct fixture f = open_packed(model, codec, policy, (const char *[]){"kv.prefix_cache=off", "engine.chunk=512", NULL});
    struct soq__sequence *seq = new_sequence(&f);
    struct told t = {0};
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    run(seq, ids, N_PROMPT, &t);
    cr_expect(f.model->engine->layout.grid > 0);
    soq__sequence_free(seq);
    close_model(&f);
    return t;
}

/* ---- Chunks and company -------------------------------------------------------------------------------------------------- */

static void *run_other(void *arg)
{
    struct fixture *f = arg;
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t round = 0; round < 3; round++) {
        struct soq__sequence *seq = new_sequence(f);
        int32_t ids[N_PROMPT];

        make_ids(ids, 30 + 13 * round, 50 + round);
        cr_expect_eq(run_ids(seq, ids, 30 + 13 * round, 20, NULL, &err), 0, "%s", err.text);
        soq__sequence_free(seq);
    }
    return NULL;
}

static void in_company(const char *model, size_t codec, const char *chunk, const struct told *alone)
{
    struct fixture f = open_packed(model, codec, NULL, (const char *[]){chunk, "engine.step_tokens=40", NULL});
    struct soq__sequence *seq = new_sequence(&f);
    struct told t = {0};
    int32_t ids[N_PROMPT];
    pthread_t others[3];

    make_ids(ids, N_PROMPT, 1);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(pthread_create(&others[i], NULL, run_other, &f), 0);
    run(seq, ids, N_PROMPT, &t);
    for (int i = 0; i < 3; i++)
        pthread_join(others[i], NULL);
    expect_same(alone, &t, chunk);
    soq__sequence_free(seq);
    close_model(&f);
}

Test(engine_packed, chunks_and_company, .timeout = 240)
{
    for (size_t codec = 0; codec < N_CODECS; codec++)
        for (int m = 0; m < 2; m++) {
            const char *model = m ? GEMMA : LLAMA;
            struct told alone = undisturbed(model, codec, NULL);

            in_company(model, codec, "engine.chunk=1", &alone);
            in_company(model, codec, "engine.chunk=23", &alone);
        }
    drop_calibrations();
}

/* ---- Everything else, with every policy ---------------------------------------------------------------------------------- */

/* Blocks of a prompt are found again unless the policy must see every row, or the codec keeps the last entries plain. */
static const char *prefix_setting(size_t codec, const char *const *policy)
{
    struct fixture f = open_packed(LLAMA, codec, policy, NULL);
    const struct soq__kv_policy *p = &f.model->engine->policies.kv[0];
    bool never = p->ops->traits & SOQ_POLICY_NO_PREFIX_HITS || (soq__kv_weighs(p) && !p->plan.queries);

    for (uint32_t g = 0; g < f.model->engine->layout.n_groups; g++)
        never = never || f.model->engine->layout.groups[g].residual;
    close_model(&f);
    return never ? "kv.prefix_cache=auto" : "kv.prefix_cache=on";
}

static void combine(const char *model, size_t codec, const char *const *policy, uint32_t seed)
{
    static const char *const chunks[] = {"engine.chunk=1", "engine.chunk=11", "engine.chunk=16", "engine.chunk=512"};
    static const char *const preempts[] = {"kv.preempt=swap", "kv.preempt=auto"};
    struct combination c = {.calm = undisturbed(model, codec, policy), .what = policy[0]};

    make_ids(c.ids, N_PROMPT, 1);
    c.f = open_packed(model, codec, policy,
                      (const char *[]){chunks[seed % 4], preempts[seed % 2], prefix_setting(codec, policy), NULL});
    c.selects = soq__kv_selects(&c.f.model->engine->policies.kv[0]);
    preempted(&c, 3 + seed % 17);
    found_again(&c);
    went_astray(&c, 20 + seed % 70);
    forked(&c, 20 + seed % 70);
    saved_and_loaded(&c, seed % 2);
    close_model(&c.f);
}

/* Keys without RoPE need the position of every entry, so they do not go with policies that select; see wrong_settings. */
static bool goes_together(size_t codec, size_t policy)
{
    return strcmp(codecs[codec][0], "kv.codec=kvquant") != 0 || policy < 3; /* full, window, streaming */
}

Test(engine_packed, every_codec_with_every_policy, .timeout = 480)
{
    int64_t live = soq__alloc_live();

    for (size_t codec = 0; codec < N_CODECS; codec++)
        for (size_t p = 0; p < N_POLICIES; p++) {
            uint32_t seed = (uint32_t)(codec * 31 + p * 7);

            if (goes_together(codec, p))
                combine((codec + p) % 4 ? LLAMA : GEMMA, codec, policies[p], seed);
        }
    drop_calibrations();
    cr_expect_eq(soq__alloc_live(), live);
}

/* A codec that loses nothing is f32, packed or not, whatever is evicted: entries move, are decoded and encoded again, and keys
 * are read from packed blocks, with nothing amiss. */
Test(engine_packed, nothing_is_lost, .timeout = 240)
{
    static const char *const exact[] = {"kv.codec=odd", "kv.odd.exact=yes", "kv.odd.tail=f32", "kv.pack_grid=16"};
    static const char *const back[] = {"kv.residual=0", "kv.residual=24"};

    for (size_t p = 0; p < 2 * N_POLICIES; p++) {
        const char *const all[] = {mixed_plugins(), exact[0], exact[1], exact[2], exact[3], back[p % 2], NULL};
        struct fixture plain = open_with(LLAMA, policies[p / 2], (const char *[]){"kv.codec=f32", NULL}),
                       packed = open_with(LLAMA, policies[p / 2], all);
        struct soq__sequence *a = new_sequence(&plain), *b = new_sequence(&packed);
        struct told one = {0}, two = {0};
        int32_t ids[N_PROMPT];

        make_ids(ids, N_PROMPT, 1);
        run(a, ids, N_PROMPT, &one);
        run(b, ids, N_PROMPT, &two);
        expect_same(&one, &two, policies[p / 2][0]);
        cr_expect_gt(b->kv.groups[0].n_packed, 0);
        soq__sequence_free(a);
        soq__sequence_free(b);
        close_model(&plain);
        close_model(&packed);
    }
}

/* What encoding survivors once more changes is measured while somebody watches: little with 8 bits, more with 4, nothing where
 * nothing is lost. */
Test(engine_packed, added_error)
{
    static const char *const how[][3] = {
        {"kv.codec=odd", "kv.odd.tail=f32", "kv.odd.exact=yes"}, {"kv.codec=odd", "kv.odd.tail=f32"}, {"kv.codec=int4"}};
    double error[3];

    for (int i = 0; i < 3; i++) {
        const char *all[] = {mixed_plugins(), "kv.pack_grid=16", "kv.trace=/dev/null", how[i][0], how[i][1], how[i][2], NULL};
        struct fixture f = open_with(LLAMA, policies[7], all); /* tova selects while it answers, too */
        const struct soq__kv_stats *stats = &f.model->engine->kv.stats;
        struct soq__sequence *seq = new_sequence(&f);
        struct told t = {0};
        int32_t ids[N_PROMPT];

        make_ids(ids, N_PROMPT, 1);
        run(seq, ids, N_PROMPT, &t);
        cr_expect_gt(stats->recoded, 0);
        cr_assert(stats->survivors_squared > 0);
        error[i] = stats->changes_squared / stats->survivors_squared;
        soq__sequence_free(seq);
        close_model(&f);
    }
    cr_expect(error[0] == 0, "%g", error[0]);
    cr_expect(error[1] > 0 && error[1] < 1e-3, "%g", error[1]);
    cr_expect(error[2] > error[1] && error[2] < 0.1, "%g", error[2]);
}

/* The end of a prompt on the grid is selected from before it is packed, so that its last grid is in no index; all else is. */
Test(engine_packed, prompts_that_end_on_the_grid)
{
    static const char *const how[] = {"kv.policy=full", "kv.policy=keydiff"};

    for (int selects = 0; selects < 2; selects++) {
        const char *const all[] = {"kv.codec=int8", "kv.pack_grid=16",    "kv.keydiff.capacity=48",
                                   how[selects],    "kv.prefix_cache=on", NULL};
        struct fixture f = open_with(LLAMA, NULL, all);
        struct soq__sequence *seq = new_sequence(&f), *longer = new_sequence(&f);
        struct soq_error err = SOQ_ERROR_INIT;
        struct told t = {0};
        int32_t ids[N_PROMPT];

        make_ids(ids, N_PROMPT, 1);
        cr_assert_eq(run_ids(seq, ids, N_PROMPT / 16 * 16, 3, NULL, &err), 0, "%s", err.text);
        cr_expect_eq(run(longer, ids, N_PROMPT, &t).n_prefix, (N_PROMPT / 16 - (selects ? 1 : 0)) * 16);
        soq__sequence_free(seq);
        soq__sequence_free(longer);
        close_model(&f);
    }
}

/* ---- Bytes --------------------------------------------------------------------------------------------------------------- */

/* What a sequence takes behind its prompt is what the forecast says. */
Test(engine_packed, forecasts_are_exact)
{
    for (size_t codec = 0; codec < N_CODECS; codec++) {
        struct fixture f = open_packed(LLAMA, codec, NULL, NULL);
        struct soq__engine *e = f.model->engine;
        struct soq__sequence *seq = new_sequence(&f);
        struct soq_error err = SOQ_ERROR_INIT;
        int32_t ids[200];

        make_ids(ids, 200, 1);
        for (uint32_t n = 5; n < 200; n += 13) {
            const struct soq__kv_need_params p = {
                .layout = &e->layout, .policies = e->policies.kv, .chunk = e->chunk, .n_prompt = n, .n_entries = n};
            uint64_t bytes = 0;

            cr_assert_eq(run_ids(seq, ids, n, 0, NULL, &err), 0, "%s", err.text);
            for (uint32_t pool = 0; pool < e->layout.n_pools; pool++) {
                struct soq__kv_need need;

                soq__kv_need(&p, pool, &need);
                bytes += need.prompt * soq__kv_pool_block_bytes(&e->layout, pool);
            }
            cr_assert_eq(soq__kv_seq_bytes(&seq->kv), bytes, "codec %zu, %u tokens", codec, n);
        }
        soq__sequence_free(seq);
        close_model(&f);
    }
    drop_calibrations();
}

/* ---- What cannot be ------------------------------------------------------------------------------------------------------ */

static void expect_refused(const char *model, const char *const settings[6], const char *const says[2])
{
    const char *all[10] = {mixed_plugins()};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_model *m = NULL;
    struct soq_runtime *rt;

    for (size_t i = 0; i < 6 && settings[i]; i++)
        all[i + 1] = settings[i];
    rt = open_runtime(all, &err);
    cr_assert_not_null(rt, "%s", err.text);
    cr_assert_neq(soq_model_load(rt, soq__test_data(model), NULL, &m, &err), 0, "%s was accepted", settings[0]);
    for (int i = 0; i < 2; i++)
        cr_expect(strstr(err.text, says[i]), "%s: \"%s\" is not in: %s", settings[0], says[i], err.text);
    soq_runtime_free(rt);
}

Test(engine_packed, wrong_settings)
{
    static const struct {
        const char *settings[6], *says[2];
    } wrong[] = {
        {{"kv.codec=nosuch"}, {"[kv] codec = nosuch", "\"nosuch\" is installed"}},
        {{"kv.codec_v=nosuch"}, {"[kv] codec_v = nosuch", "\"nosuch\" is installed"}},
        {{"kv.codec=kivi", "kv.block_tokens=8"}, {"[kv] codec = kivi: ", "block_tokens"}},
        {{"kv.codec_k=kivi group:16", "kv.block_tokens=8"}, {"[kv] codec_k = kivi group:16: ", "block_tokens"}},
        {{"kv.layers.1=codec:kivi", "kv.block_tokens=8"}, {"[kv.layers] 1 = codec:kivi: ", "block_tokens"}},
        {{"kv.codec=kivi", "kv.kivi.residual=20"}, {"residual = 20", "set it to 32"}},
        {{"kv.codec=placed", "kv.policy=snapkv", "kv.snapkv.capacity=80"},
         {"[kv] codec = placed with policy = snapkv", "full, window or streaming"}},
        {{"kv.codec_v=placed", "kv.policy=snapkv", "kv.snapkv.capacity=80"}, {"[kv] codec_v = placed", "other options of it"}},
        {{"kv.codec_k=kvquant", "kv.policy=snapkv", "kv.snapkv.capacity=80"}, {"[kv] codec_k = kvquant", "policy = snapkv"}},
        {{"decoding.drafter=self", "draft.codec=placed", "kv.snapkv.capacity=80"},
         {"[draft] codec = placed with policy = snapkv", "layer 0"}},
        {{"decoding.drafter=self", "draft.codec=kivi", "kv.block_tokens=8"}, {"[draft] codec = kivi", "block_tokens"}},
        {{"kv.codec=odd", "kv.layers.1=policy:h2o capacity:64 recent:16 codec:placed"}, {"layer 1", "position of every entry"}},
        {{"kv.codec=odd", "kv.odd.grid=96", "kv.layers.0=codec:odd grid:64"},
         {"every 64 tokens, and layer 1 every 96", "no multiple"}},
        {{"kv.codec=odd", "kv.residual=1", "kv.prefix_cache=on"}, {"[kv] prefix_cache = on", "residual of 0"}},
        {{"kv.layers.0=codec:int8 codec_k:f16"}, {"[kv.layers] 0 = codec:int8 codec_k:f16", "named twice"}},
        {{"kv.layers.0-1=codec:int8", "kv.layers.1=codec_v:f16"}, {"layer 1 has already a codec for values", "by the key 0-1"}},
        {{"kv.layers.0=codec:odd grdi:8"}, {"[kv.layers] 0 = codec:odd grdi:8", "did you mean 'grid'?"}},
        {{"kv.layers.0=codec:odd 8"}, {"[kv.layers] 0 = codec:odd 8", "expected KEY:VALUE"}},
        {{"kv.codec=odd", "backend.use=cpu,acme-attention", "backend.place=attention:acme-attention"},
         {"keys by [kv] codec = odd, values by [kv] codec = odd: ", "kv_pack"}},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        expect_refused(LLAMA, wrong[i].settings, wrong[i].says);
}

/* A key may set the policy of a layer, another one its codecs. */
Test(engine_packed, layers)
{
    struct fixture f = open_model(LLAMA, (const char *[]){mixed_plugins(), "kv.layers.0-1=codec:odd grid:32",
                                                          "kv.layers.1=policy:snapkv capacity:100", "kv.block_tokens=8", NULL});
    const struct soq__kv_layout *layout = &f.model->engine->layout;

    cr_assert_eq(layout->n_groups, 2);
    cr_expect_eq(layout->grid, 32);
    cr_expect(layout->groups[0].packs && layout->groups[1].packs);
    cr_expect_str_eq(f.model->engine->policies.kv[layout->groups[1].policy].name, "snapkv");
    cr_expect_eq(f.model->engine->codecs.n, 1, "one instance for both layers");
    close_model(&f);
}
