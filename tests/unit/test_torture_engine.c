/* Every way to run out of memory between creating a runtime and the end of an answer: allocation number n fails, alone or with
 * all that follow. Each time the outcome is success or -SOQ_ENOMEM with a message, nothing leaks, and nothing is half done. All
 * allocations are visited; there are some hundred. */
#include "tests/unit/engine_fixture.h"

#define MODEL "golden/llama/model-q8_0.gguf"

struct scene {
    struct soq_runtime *rt;
    struct soq_model *model;
    struct soq_session *session, *fork;
    char text[256];
    size_t n_text;
    uint32_t n_tokens;
};

static int listen(void *ctx, const struct soq_event *event)
{
    struct scene *s = ctx;

    s->n_tokens += event->token >= 0;
    if (s->n_text + event->text_size < sizeof s->text)
        memcpy(s->text + s->n_text, event->text, event->text_size);
    s->n_text += event->text_size;
    return 0;
}

/* ---- Phases: each returns a code; the scene holds what exists
 * ------------------------------------------------------------------- */

static int create_runtime(struct scene *s, struct soq_error *err)
{
    const char *dirs[] = {getenv("SOQ_TEST_PLUGINS"), NULL};
    const char *settings[] = {"backend.cpu.threads=1", "kv.block_tokens=8", "engine.step_tokens=16",
                              "kv.layers.0/0=policy:full", NULL};
    struct soq_runtime_params p = SOQ_RUNTIME_PARAMS_INIT;

    p.config = "/dev/null";
    p.plugin_dirs = dirs;
    p.settings = settings;
    return soq_runtime_create(&p, &s->rt, err);
}

static int load_model(struct scene *s, struct soq_error *err)
{
    return soq_model_load(s->rt, soq__test_data(MODEL), NULL, &s->model, err);
}

static int generate(struct soq_session *session, struct scene *s, struct soq_error *err)
{
    static const char *const stop[] = {"never to be seen", NULL};
    struct soq_sampling zero = greedy();
    struct soq_request req = SOQ_REQUEST_INIT;
    struct soq_result result = SOQ_RESULT_INIT;

    req.prompt = "Hello world, this is a text of some tokens";
    req.max_tokens = 3;
    req.ignore_eog = 1;
    req.sampling = &zero;
    req.stop = stop;
    req.on_event = listen;
    req.ctx = s;
    return soq_generate(session, &req, &result, err);
}

static int use_model(struct scene *s, struct soq_error *err)
{
    int32_t ids[64];
    size_t n;
    int rc = soq_tokenize(s->model, "some words", 10, SOQ_TOKENIZE_BOS, ids, 64, &n, err);

    s->n_text = s->n_tokens = 0;
    memset(s->text, 0, sizeof s->text);
    if (!rc)
        rc = soq_session_create(s->model, &s->session, err);
    if (!rc)
        rc = generate(s->session, s, err);
    if (!rc)
        rc = soq_session_fork(s->session, &s->fork, err);
    if (!rc)
        rc = generate(s->fork, s, err);
    return rc;
}

static void end_use(struct scene *s)
{
    soq_session_free(s->fork);
    soq_session_free(s->session);
    s->fork = s->session = NULL;
}

static void end_model(struct scene *s)
{
    soq_model_free(s->model);
    s->model = NULL;
}

static void end_runtime(struct scene *s)
{
    soq_runtime_free(s->rt);
    s->rt = NULL;
}

struct phase {
    const char *name;
    int (*begin)(struct scene *s, struct soq_error *err);
    void (*end)(struct scene *s);
};

/* ---- Torture
 * ---------------------------------------------------------------------------------------------------------------------- */

static void run_once(const struct phase *p, struct scene *s, uint64_t n, bool all_after)
{
    int64_t live = soq__alloc_live();
    struct soq_error err = SOQ_ERROR_INIT;
    int rc;

    soq__alloc_fail_at(n, all_after);
    rc = p->begin(s, &err);
    soq__alloc_fail_at(0, false);
    cr_assert(rc == 0 || rc == -SOQ_ENOMEM, "%s, allocation %llu%s: %d, %s", p->name, (unsigned long long)n,
              all_after ? " and all after" : "", rc, err.text);
    if (rc)
        cr_assert(err.code == rc && err.text[0], "%s, allocation %llu: no message", p->name, (unsigned long long)n);
    p->end(s);
    cr_assert_eq(soq__alloc_live(), live, "%s, allocation %llu%s: %lld blocks leak (%s)", p->name, (unsigned long long)n,
                 all_after ? " and all after" : "", (long long)(soq__alloc_live() - live), err.text);
}

/* Returns the allocations of one undisturbed run. */
static uint64_t count(const struct phase *p, struct scene *s)
{
    struct soq_error err = SOQ_ERROR_INIT;
    uint64_t before, n = 0;

    for (int warm = 0; warm < 2; warm++) { /* the first run fills what is kept for good */
        before = soq__alloc_count();
        cr_assert_eq(p->begin(s, &err), 0, "%s: %s", p->name, err.text);
        n = soq__alloc_count() - before;
        p->end(s);
    }
    return n;
}

static void torture(const struct phase *p, struct scene *s)
{
    uint64_t n = count(p, s);

    cr_assert_gt(n, 20);
    for (uint64_t i = 1; i <= n; i++)
        for (int all_after = 0; all_after < 2; all_after++)
            run_once(p, s, i, all_after);
    count(p, s); /* after all that it works */
}

Test(torture_engine, runtime, .timeout = 120)
{
    static const struct phase p = {"runtime", create_runtime, end_runtime};
    struct scene s = {0};

    torture(&p, &s);
}

Test(torture_engine, model, .timeout = 120)
{
    static const struct phase p = {"model", load_model, end_model};
    struct scene s = {0};
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(create_runtime(&s, &err), 0, "%s", err.text);
    torture(&p, &s);
    end_runtime(&s);
}

/* An answer that comes is the whole answer. */
Test(torture_engine, use, .timeout = 120)
{
    static const struct phase p = {"use", use_model, end_use};
    struct scene s = {0};
    struct soq_error err = SOQ_ERROR_INIT;
    char text[256];

    cr_assert_eq(create_runtime(&s, &err), 0, "%s", err.text);
    cr_assert_eq(load_model(&s, &err), 0, "%s", err.text);
    count(&p, &s);
    memcpy(text, s.text, sizeof text);
    cr_assert_eq(s.n_tokens, 6);
    for (uint64_t i = 1, n = count(&p, &s); i <= n; i++)
        for (int all = 0; all < 2; all++) {
            run_once(&p, &s, i, all);
            if (s.n_tokens == 6)
                cr_expect(memcmp(text, s.text, sizeof text) == 0, "allocation %llu: another answer", (unsigned long long)i);
        }
    count(&p, &s);
    cr_expect(memcmp(text, s.text, sizeof text) == 0, "not the same any more");
    end_model(&s);
    end_runtime(&s);
}
