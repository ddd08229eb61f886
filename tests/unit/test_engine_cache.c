/* The cache as a program sees it: what a next turn computes anew, forks and rollbacks, block sizes, and the policy `window`
 * against a textbook model with the same mask. */
#include <math.h>

#include "tests/unit/engine_fixture.h"
#include "tests/unit/llama_reference.h"

#define LLAMA "golden/llama/model.gguf"  /* F32, full attention */
#define GEMMA "golden/gemma3/model.gguf" /* windows of 16 in five layers of six */
#define N_MAX 250

/* Where cached tokens are counted, only the session's own are to be. */
#define ALONE ((const char *[]){"kv.prefix_cache=off", NULL})

struct turn {
    int32_t ids[300];
    uint32_t n;
    struct soq_result result;
};

static int keep(void *ctx, const struct soq_event *event)
{
    struct turn *t = ctx;

    if (event->token >= 0)
        t->ids[t->n++] = event->token;
    return 0;
}

/* A greedy request; what it generates is appended to the turn's ids. */
static void ask(struct soq_session *s, struct turn *t, int32_t max_tokens)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_sampling zero = greedy();
    struct soq_request req = SOQ_REQUEST_INIT;
    int32_t prompt[300];

    memcpy(prompt, t->ids, sizeof prompt);
    req.ids = prompt;
    req.n_ids = t->n;
    req.max_tokens = max_tokens;
    req.ignore_eog = 1;
    req.sampling = &zero;
    req.on_event = keep;
    req.ctx = t;
    t->result = (struct soq_result)SOQ_RESULT_INIT;
    cr_assert_eq(soq_generate(s, &req, &t->result, &err), 0, "%s", err.text);
}

static struct soq_session *new_session(struct fixture *f)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s = NULL;

    cr_assert_eq(soq_session_create(f->model, &s, &err), 0, "%s", err.text);
    return s;
}

/* The same request in a session of its own: what it says must not depend on what was cached. */
static void expect_as_fresh(struct fixture *f, const struct turn *t)
{
    struct soq_session *s = new_session(f);
    struct turn fresh = *t;

    fresh.n = t->result.prompt_tokens;
    ask(s, &fresh, (int32_t)t->result.generated_tokens);
    cr_expect_eq(fresh.n, t->n);
    cr_expect(memcmp(fresh.ids, t->ids, t->n * sizeof *t->ids) == 0, "other tokens than without the cache");
    soq_session_free(s);
}

/* ---- Turns
 * -------------------------------------------------------------------------------------------------------------------- */

Test(engine_cache, turns_compute_only_what_is_new)
{
    static const char *const models[] = {LLAMA, GEMMA};
    int64_t live = soq__alloc_live();

    for (int i = 0; i < 2; i++) {
        struct fixture f = open_model(models[i], NULL);
        struct soq_session *s = new_session(&f);
        struct turn t = {.n = 90};

        make_ids(t.ids, 90, 1);
        ask(s, &t, 20);
        cr_expect_eq(t.result.cached_tokens, 0);
        cr_expect_eq(soq_session_length(s), 109, "the last token is known, not computed");
        make_ids(t.ids + t.n, 15, 2); /* the user's next message */
        t.n += 15;
        ask(s, &t, 20);
        cr_expect_eq(t.result.cached_tokens, 109, "%s: %u", models[i], t.result.cached_tokens);
        cr_expect_eq(t.result.prompt_tokens, 125);
        expect_as_fresh(&f, &t);
        /* The same question once more: only the last token is computed again, unless a window has passed. */
        t.n = 125;
        ask(s, &t, 20);
        cr_expect(t.result.cached_tokens == 124 || (i && t.result.cached_tokens == 0), "%s: %u", models[i],
                  t.result.cached_tokens);
        expect_as_fresh(&f, &t);
        soq_session_free(s);
        close_model(&f);
    }
    cr_expect_eq(soq__alloc_live(), live);
}

/* A prompt that departs from the past goes back to the common part; where a window has passed that, to the beginning. */
Test(engine_cache, edited_past)
{
    for (int i = 0; i < 2; i++) {
        struct fixture f = open_model(i ? GEMMA : LLAMA, ALONE);
        struct soq_session *s = new_session(&f);
        struct turn t = {.n = 130};

        make_ids(t.ids, 130, 1);
        ask(s, &t, 1);
        make_ids(t.ids + 125, 10, 7); /* just now: the window still has what it needs */
        t.n = 135;
        ask(s, &t, 10);
        cr_expect_eq(t.result.cached_tokens, 125, "%u", t.result.cached_tokens);
        expect_as_fresh(&f, &t);
        make_ids(t.ids + 40, 60, 8); /* long ago */
        t.n = 100;
        ask(s, &t, 10);
        cr_expect_eq(t.result.cached_tokens, i ? 0 : 40, "%u", t.result.cached_tokens);
        expect_as_fresh(&f, &t);
        soq_session_free(s);
        close_model(&f);
    }
}

Test(engine_cache, fork_and_rollback)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct fixture f = open_model(LLAMA, ALONE);
    struct soq_session *s = new_session(&f), *fork = NULL, *grandchild = NULL;
    struct turn t = {.n = 77}, a, b;
    struct soq_model_info info = {.struct_size = sizeof info};
    uint64_t before;

    make_ids(t.ids, 77, 1);
    ask(s, &t, 0);
    soq_model_info(f.model, &info, NULL);
    before = info.kv_used;
    cr_assert_eq(soq_session_fork(s, &fork, &err), 0, "%s", err.text);
    cr_assert_eq(soq_session_fork(fork, &grandchild, &err), 0, "%s", err.text);
    soq_model_info(f.model, &info, NULL);
    cr_expect_eq(info.kv_used, before, "forks take no memory until they write");
    cr_expect_eq(soq_session_length(grandchild), 77);
    a = b = t;
    make_ids(a.ids + 77, 10, 5);
    make_ids(b.ids + 77, 12, 6);
    a.n = 87;
    b.n = 89;
    ask(s, &a, 15);
    ask(fork, &b, 15);
    cr_expect_eq(a.result.cached_tokens, 77);
    cr_expect_eq(b.result.cached_tokens, 77);
    expect_as_fresh(&f, &a);
    expect_as_fresh(&f, &b);
    soq_session_free(s); /* the others live on */
    ask(grandchild, &t, 15);
    cr_expect_eq(t.result.cached_tokens, 76);
    expect_as_fresh(&f, &t);
    cr_expect_eq(soq_session_rollback(fork, 30, &err), 0, "%s", err.text);
    cr_expect_eq(soq_session_length(fork), 30);
    cr_expect_eq(soq_session_rollback(fork, 31, &err), -SOQ_EINVAL);
    cr_expect(strstr(err.text, "31") && strstr(err.text, "30"), "%s", err.text);
    b.n = 89;
    ask(fork, &b, 15);
    cr_expect_eq(b.result.cached_tokens, 30);
    expect_as_fresh(&f, &b);
    cr_expect_eq(soq_session_rollback(fork, 0, NULL), 0);
    soq_session_free(fork);
    soq_session_free(grandchild);
    close_model(&f);
}

/* ---- Blocks and windows
 * --------------------------------------------------------------------------------------------------------- */

static struct turn answer(const char *model, const char *const *settings, uint32_t n, int32_t max_tokens)
{
    struct fixture f = open_model(model, settings);
    struct soq_session *s = new_session(&f);
    struct turn t = {.n = n};

    make_ids(t.ids, n, 3);
    ask(s, &t, max_tokens);
    soq_session_free(s);
    close_model(&f);
    return t;
}

static void expect_same_answer(const struct turn *a, const struct turn *b, const char *what)
{
    cr_expect(a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0, "%s: other tokens", what);
}

Test(engine_cache, block_size_is_no_matter)
{
    for (int i = 0; i < 2; i++) {
        const char *model = i ? GEMMA : LLAMA;
        struct turn base = answer(model, (const char *[]){REFERENCE_SETTINGS, NULL}, 70, 100);
        struct turn small =
            answer(model, (const char *[]){REFERENCE_SETTINGS, "kv.block_tokens=8", "engine.chunk=5", NULL}, 70, 100);
        struct turn large = answer(model, (const char *[]){REFERENCE_SETTINGS, "kv.block_tokens=256", NULL}, 70, 100);

        expect_same_answer(&base, &small, "blocks of 8");
        expect_same_answer(&base, &large, "blocks of 256");
    }
}

#define CAPACITY 64
#define SINKS 4

Test(engine_cache, window_is_full_while_it_holds)
{
    static const char *const windowed[] = {"kv.policy=window", "kv.window.capacity=64", "kv.window.sinks=4", NULL};
    struct turn full = answer(LLAMA, NULL, 30, 34), window = answer(LLAMA, windowed, 30, 34);

    expect_same_answer(&full, &window, "as long as the capacity");
    full = answer(LLAMA, NULL, 30, 200);
    window = answer(LLAMA, windowed, 30, 200);
    cr_expect(memcmp(full.ids + 120, window.ids + 120, 100 * sizeof *full.ids) != 0, "the window has no effect at all");
}

static int sees_window(uint32_t head, uint32_t q, uint32_t p)
{
    (void)head;
    return p < SINKS || p + (CAPACITY - SINKS) > q ? 0 : UNSEEN;
}

static int sees_all(uint32_t head, uint32_t q, uint32_t p)
{
    (void)head;
    (void)q;
    (void)p;
    return 0;
}

static void expect_reference(const char *const *settings, reference_view *sees, const char *what)
{
    struct fixture f = open_model(LLAMA, settings);
    struct soq__sequence *seq = new_sequence(&f);
    struct soq_error err = SOQ_ERROR_INIT;
    struct collected got = {.rows = N_MAX};
    int32_t ids[N_MAX];
    double *want, worst = 0;

    make_ids(ids, N_MAX, 1);
    cr_assert_eq(run_ids(seq, ids, N_MAX, 0, &got, &err), 0, "%s", err.text);
    want = malloc(sizeof *want * N_MAX * got.n_vocab);
    reference_logits(f.model->model, sees, ids, N_MAX, want);
    for (size_t i = 0; i < (size_t)N_MAX * got.n_vocab; i++)
        worst = fmax(worst, fabs(want[i] - (double)got.logits[i]));
    cr_expect_leq(worst, 1e-3, "%s: differs by %g", what, worst);
    free(want);
    soq__free(got.logits);
    soq__sequence_free(seq);
    close_model(&f);
}

#define WINDOW "kv.policy=window", "kv.window.capacity=64", "kv.window.sinks=4"

Test(engine_cache, window_against_the_textbook)
{
    expect_reference((const char *[]){REFERENCE_SETTINGS, NULL}, sees_all, "full");
    expect_reference((const char *[]){REFERENCE_SETTINGS, WINDOW, NULL}, sees_window, "window");
    expect_reference((const char *[]){REFERENCE_SETTINGS, WINDOW, "engine.chunk=7", NULL}, sees_window, "window, chunks of 7");
    expect_reference((const char *[]){REFERENCE_SETTINGS, WINDOW, "kv.block_tokens=8", "engine.chunk=33", NULL}, sees_window,
                     "window, blocks of 8");
    expect_reference((const char *[]){REFERENCE_SETTINGS, WINDOW, "kv.block_tokens=256", NULL}, sees_window,
                     "window, blocks of 256");
}

/* However long the answer: the blocks of the sinks, of the window, of what the next grid point has not freed yet. */
Test(engine_cache, window_bounds_the_memory)
{
    struct fixture f = open_model(LLAMA, (const char *[]){WINDOW, "kv.block_tokens=8", "model.context=4000", NULL});
    struct soq__sequence *seq = new_sequence(&f);
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_model_info info = {.struct_size = sizeof info};
    int32_t ids[N_MAX];

    make_ids(ids, N_MAX, 1);
    cr_assert_eq(run_ids(seq, ids, N_MAX, 2000, NULL, &err), 0, "%s", err.text);
    cr_expect_eq(seq->kv.n_committed, 2249);
    cr_expect_leq(seq->kv.groups[0].n_held, 1 + (CAPACITY - SINKS + 7) / 8 + 1);
    soq_model_info(f.model, &info, NULL);
    cr_expect_leq(info.kv_peak, (uint64_t)2 << 20);
    soq__sequence_free(seq);
    close_model(&f);
}

/* What an engine does not have it does not claim to have: the session begins again, with the same result. */
Test(engine_cache, window_turns)
{
    struct fixture f = open_model(LLAMA, (const char *[]){WINDOW, "kv.block_tokens=8", NULL});
    struct soq_session *s = new_session(&f), *fork = NULL;
    struct soq_error err = SOQ_ERROR_INIT;
    struct turn t = {.n = 100}, other;

    make_ids(t.ids, 100, 1);
    ask(s, &t, 20);
    make_ids(t.ids + t.n, 10, 4);
    t.n += 10;
    cr_assert_eq(soq_session_fork(s, &fork, &err), 0, "%s", err.text);
    other = t;
    ask(s, &t, 20);
    cr_expect_eq(t.result.cached_tokens, 119);
    expect_as_fresh(&f, &t);
    cr_expect_eq(soq_session_rollback(s, 50, &err), -SOQ_EINVAL);
    cr_expect(strstr(err.text, "50") && strstr(err.text, "freed"), "%s", err.text);
    other.n = 60;
    ask(fork, &other, 20);
    cr_expect_eq(other.result.cached_tokens, 0);
    expect_as_fresh(&f, &other);
    soq_session_free(fork);
    soq_session_free(s);
    close_model(&f);
}

Test(engine_cache, window_needs_a_capacity)
{
    const char *settings[] = {"kv.policy=window", NULL};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *rt = open_runtime(settings, &err);
    struct soq_model *model = NULL;

    cr_assert(rt != NULL, "%s", err.text);
    cr_expect_eq(soq_model_load(rt, soq__test_data(LLAMA), NULL, &model, &err), -SOQ_EINVAL);
    cr_expect(strstr(err.text, "[kv.window] capacity"), "%s", err.text);
    soq_runtime_free(rt);
}

/* ---- Plans that cannot be carried out
 * --------------------------------------------------------------------------------------------- */

static struct soq_kv_plan plan;

static int describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    (void)self;
    (void)shape;
    (void)err;
    *plan_out = plan;
    return 0;
}

Test(engine_cache, plans)
{
    static const struct soq_kv_policy_ops ops = {.struct_size = sizeof ops, .describe = describe};
    const struct soq__plugin_role role = {.role = SOQ_ROLE_KV_POLICY, .name = "fancy", .ops.kv_policy = &ops};
    const struct soq__role_instance policy = {.plugin = &role};
    const struct soq_kv_shape shape = {.struct_size = sizeof shape, .n_layers = 1, .context = 100, .block_tokens = 32};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_kv_plan out;

    plan = (struct soq_kv_plan){.struct_size = sizeof plan, .grid = 8};
    cr_expect_eq(soq__policy_plan(&policy, &shape, &out, &err), 0, "%s", err.text);
    cr_expect_eq(out.grid, 8);
    plan.grid = 64; /* entries would outlive what was promised for them */
    cr_expect_eq(soq__policy_plan(&policy, &shape, &out, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "64"), "%s", err.text);
    plan = (struct soq_kv_plan){.struct_size = sizeof plan, .needs = SOQ_NEED_SELECTION};
    cr_expect_eq(soq__policy_plan(&policy, &shape, &out, &err), -SOQ_EUNSUPPORTED);
    plan = (struct soq_kv_plan){.struct_size = sizeof plan, .window = 16, .slot_positions = 1};
    cr_expect_eq(soq__policy_plan(&policy, &shape, &out, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "sinks"), "%s", err.text);
    plan.sinks = 4;
    cr_expect_eq(soq__policy_plan(&policy, &shape, &out, &err), 0, "%s", err.text);
    plan.window = plan.slot_positions = 0;
    cr_expect_eq(soq__policy_plan(&policy, &shape, &out, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "sinks"), "%s", err.text);
}
