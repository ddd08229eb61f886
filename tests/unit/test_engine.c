/* The embedding API over a tiny model: how requests end, what is refused and how, memory limits, cancelling, structs of other
 * versions, sampling. */
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/utf8.h"
#include "tests/unit/engine_fixture.h"

#define MODEL "golden/llama/model-q8_0.gguf" /* 288 tokens, made for 256 positions */
#define N_VOCAB 288
#define EOS 2

static const int32_t prompt[40] = {1,  17, 45, 100, 7,  9,  200, 33, 34, 35, 36, 120, 121, 122, 50, 51, 52, 53, 54, 55,
                                   60, 61, 62, 63,  64, 65, 66,  67, 68, 69, 70, 71,  72,  73,  74, 75, 76, 77, 78, 79};

struct heard {
    int32_t ids[512];
    uint32_t n, n_text; /* tokens, bytes */
    char text[4096];
    uint32_t cancel_after; /* returns nonzero at that many tokens; 0: never */
    uint32_t calls_after;  /* calls that came all the same */
};

static int hear(void *ctx, const struct soq_event *event)
{
    struct heard *h = ctx;

    if (h->cancel_after && h->n >= h->cancel_after)
        h->calls_after++;
    if (event->token >= 0) {
        cr_expect_eq(event->index, h->n);
        cr_expect(event->logprob <= 0, "log-probability %g", (double)event->logprob);
        h->ids[h->n++ % 512] = event->token;
    }
    if (h->n_text + event->text_size < sizeof h->text)
        memcpy(h->text + h->n_text, event->text, event->text_size);
    h->n_text += (uint32_t)event->text_size;
    return h->cancel_after && h->n >= h->cancel_after;
}

static struct soq_session *new_session(struct fixture *f)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s = NULL;

    cr_assert_eq(soq_session_create(f->model, &s, &err), 0, "%s", err.text);
    return s;
}

/* A greedy request over the first n of prompt, which no token ends. */
static struct soq_request request(uint32_t n, int32_t max_tokens, struct heard *heard)
{
    static struct soq_sampling zero;
    struct soq_request req = SOQ_REQUEST_INIT;

    zero = greedy();
    req.ids = prompt;
    req.n_ids = n;
    req.max_tokens = max_tokens;
    req.ignore_eog = 1;
    req.sampling = &zero;
    req.on_event = heard ? hear : NULL;
    req.ctx = heard;
    return req;
}

static struct soq_result generate(struct soq_session *s, const struct soq_request *req)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_result result = SOQ_RESULT_INIT;

    cr_assert_eq(soq_generate(s, req, &result, &err), 0, "%s", err.text);
    return result;
}

static void expect_refused(struct soq_session *s, const struct soq_request *req, int code, const char *const *says)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_result result = SOQ_RESULT_INIT;
    int rc = soq_generate(s, req, &result, &err);

    cr_expect_eq(rc, code, "%d: %s", rc, err.text);
    cr_expect_eq(err.code, code);
    for (; *says; says++)
        cr_expect(strstr(err.text, *says), "\"%s\" does not say %s", err.text, *says);
    cr_expect_eq(result.reason, 0, "a result is written only on success");
}

#define SAYS(...)                                                                                                              \
    (const char *const[])                                                                                                      \
    {                                                                                                                          \
        __VA_ARGS__, NULL                                                                                                      \
    }

/* ---- How requests end ------------------------------------------------------------------------------------------------- */

Test(engine, max_tokens_are_exact)
{
    int64_t live = soq__alloc_live();
    struct fixture f = open_model(MODEL, NULL);
    struct soq_session *s = new_session(&f);

    for (int32_t n = 0; n <= 3; n++) {
        struct heard h = {0};
        struct soq_request req = request(5, n, &h);
        struct soq_result r = generate(s, &req);

        cr_expect_eq(r.reason, SOQ_REASON_LENGTH);
        cr_expect_eq(r.generated_tokens, (uint32_t)n);
        cr_expect_eq(h.n, (uint32_t)n);
        cr_expect_eq(soq_session_length(s), 5 + (uint32_t)(n > 0 ? n - 1 : 0));
    }
    soq_session_free(s);
    close_model(&f);
    cr_expect_eq(soq__alloc_live(), live);
}

Test(engine, default_max_tokens)
{
    struct fixture f = open_model(MODEL, (const char *[]){"engine.max_tokens=7", NULL});
    struct soq_session *s = new_session(&f);
    struct soq_request req = request(5, -1, NULL);

    cr_expect_eq(generate(s, &req).generated_tokens, 7);
    req.max_tokens = -2;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("max_tokens", "-2"));
    soq_session_free(s);
    close_model(&f);
}

/* The context is full: the last token that is sampled has no room to be computed. */
Test(engine, context_ends_with_length)
{
    struct fixture f = open_model(MODEL, (const char *[]){"model.context=32", NULL});
    struct soq_session *a = new_session(&f), *b = new_session(&f);
    struct heard ha = {0}, hb = {0};
    struct soq_request long_one = request(32, 100, &ha), short_one = request(20, 100, &hb), over = request(33, 1, NULL);
    struct soq_result r = generate(a, &long_one);

    cr_expect_eq(r.reason, SOQ_REASON_LENGTH);
    cr_expect_eq(r.generated_tokens, 1, "a prompt as long as the context leaves one token");
    cr_expect_eq(soq_session_length(a), 32);
    r = generate(b, &short_one); /* the context is per sequence */
    cr_expect_eq(r.reason, SOQ_REASON_LENGTH);
    cr_expect_eq(r.generated_tokens, 13);
    cr_expect_eq(hb.n, 13);
    expect_refused(a, &over, -SOQ_ELIMIT, SAYS("33", "32", "[model] context"));
    cr_expect_eq(soq_session_length(a), 32, "a refused request leaves the session alone");
    soq_session_free(a);
    soq_session_free(b);
    close_model(&f);
}

Test(engine, end_of_generation)
{
    struct fixture f = open_model(MODEL, NULL);
    struct soq_session *s = new_session(&f);
    struct soq_logit_bias bias = {.token = EOS, .bias = 1000};
    struct soq_sampling sampling = greedy();
    struct heard h = {0}, ignoring = {0};
    struct soq_request req = request(5, 6, &h);
    struct soq_result r;

    sampling.n_bias = 1;
    sampling.bias_stride = sizeof bias;
    sampling.bias = &bias;
    req.sampling = &sampling;
    req.ignore_eog = 0;
    r = generate(s, &req);
    cr_expect_eq(r.reason, SOQ_REASON_EOG);
    cr_expect_str_eq(soq_reason_text(r.reason), "stop");
    cr_expect_eq(r.generated_tokens, 0, "the token itself does not count");
    cr_expect_eq(h.n, 0, "and is not emitted");
    cr_expect(r.ttft_s > 0 && r.itl_s == 0 && r.decode_s == 0);
    req.ignore_eog = 1;
    req.ctx = &ignoring;
    r = generate(s, &req);
    cr_expect_eq(r.reason, SOQ_REASON_LENGTH);
    cr_expect_eq(ignoring.n, 6);
    cr_expect_eq(ignoring.ids[0], EOS);
    cr_expect_eq(ignoring.n_text, 0, "a control token has no text");
    soq_session_free(s);
    close_model(&f);
}

/* The answer without stop strings, then cut at texts out of its middle. */
Test(engine, stop_strings)
{
    struct fixture f = open_model(MODEL, NULL);
    struct soq_session *s = new_session(&f);
    struct heard all = {0};
    struct soq_request req = request(12, 40, &all);
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t n_tried = 0;

    generate(s, &req);
    cr_assert_gt(all.n_text, 30);
    for (uint32_t from = 3; from < 36; from++) {
        char stop[8] = {0};
        const char *list[] = {"never in there", stop, NULL};
        struct heard h = {0};
        struct soq_result r;

        memcpy(stop, all.text + from, 3);
        if (!soq__utf8_valid(stop, 3))
            continue; /* cuts a code point */
        n_tried++;
        req.stop = list;
        req.ctx = &h;
        r = generate(s, &req);
        cr_expect_eq(r.reason, SOQ_REASON_STOP, "\"%s\": reason %d", stop, r.reason);
        cr_expect_eq(h.n_text, (uint32_t)(strstr(all.text, stop) - all.text), "\"%s\": %u bytes are shown", stop, h.n_text);
        cr_expect(memcmp(h.text, all.text, h.n_text) == 0);
        cr_expect_lt(r.generated_tokens, 40);
        cr_expect_eq(h.n, r.generated_tokens);
    }
    cr_expect_gt(n_tried, 4);
    /* One that never comes is held back at the end, and then let go. */
    {
        char tail[16] = {0};
        const char *list[] = {tail, NULL};
        struct heard h = {0};

        snprintf(tail, sizeof tail, "%.1sZZZ", all.text + all.n_text - 1);
        req.stop = list;
        req.ctx = &h;
        cr_expect_eq(generate(s, &req).reason, SOQ_REASON_LENGTH);
        cr_expect_eq(h.n_text, all.n_text);
        cr_expect(memcmp(h.text, all.text, all.n_text) == 0);
    }
    req.stop = (const char *[]){"", NULL};
    cr_expect_eq(soq_generate(s, &req, NULL, &err), -SOQ_EINVAL);
    soq_session_free(s);
    close_model(&f);
}

Test(engine, figures_add_up)
{
    struct fixture f = open_model(MODEL, (const char *[]){"kv.prefix_cache=off", NULL});
    struct soq_session *s = new_session(&f);
    struct soq_model_info info = {.struct_size = sizeof info};
    struct heard h = {0};
    struct soq_request req = request(40, 30, &h);
    struct soq_result r = generate(s, &req);
    uint64_t block = f.model->engine->kv.groups[0].layout->block_bytes;

    cr_expect_eq(r.prompt_tokens, 40);
    cr_expect_eq(r.cached_tokens, 0);
    cr_expect_eq(r.generated_tokens, 30);
    cr_expect(0 < r.prefill_s && r.prefill_s <= r.ttft_s && r.ttft_s <= r.prefill_s + r.decode_s, "%g %g %g", r.prefill_s,
              r.ttft_s, r.decode_s);
    cr_expect_float_eq(r.itl_s * 29, r.prefill_s + r.decode_s - r.ttft_s, 1e-6);
    cr_expect_eq(r.kv_bytes, (69 + 31) / 32 * block);
    cr_assert_eq(soq_model_info(f.model, &info, NULL), 0);
    cr_expect_eq(info.n_vocab, N_VOCAB);
    cr_expect_eq(info.context, 256);
    cr_expect(info.kv_used >= r.kv_bytes && info.kv_used <= info.kv_peak && info.kv_peak <= info.kv_limit);
    soq_session_free(s);
    cr_assert_eq(soq_model_info(f.model, &info, NULL), 0);
    cr_expect_eq(info.kv_used, 0, "a freed session gives everything back");
    close_model(&f);
}

/* ---- Refusals --------------------------------------------------------------------------------------------------------- */

Test(engine, bad_requests)
{
    struct fixture f = open_model(MODEL, NULL);
    struct soq_session *s = new_session(&f);
    const int32_t negative[] = {1, -1}, beyond[] = {1, 5, N_VOCAB};
    const struct soq_message message = {.role = "user", .content = "hello"}, roleless = {.content = "hello"};
    struct soq_sampling hot = greedy();
    struct soq_request req = request(0, 1, NULL);

    expect_refused(s, &req, -SOQ_EINVAL, SAYS("empty"));
    req = request(5, 1, NULL);
    req.ids = NULL;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("exactly one", "0"));
    req.prompt = "hello";
    req.ids = prompt;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("exactly one", "2"));
    req.messages = &message;
    req.n_messages = 1;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("exactly one", "3"));
    req.ids = NULL;
    req.prompt = NULL;
    req.messages = &roleless;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("message 0", "role"));
    req = request(5, 1, NULL);
    req.ids = negative;
    req.n_ids = 2;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("token 1", "-1", "287"));
    req.ids = beyond;
    req.n_ids = 3;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("token 2", "288", "287"));
    req = request(5, 1, NULL);
    hot.temperature = -1;
    req.sampling = &hot;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("temperature", "-1"));
    req = request(5, 2, NULL);
    cr_expect_eq(generate(s, &req).generated_tokens, 2, "the session is none the worse for it");
    soq_session_free(s);
    close_model(&f);
}

Test(engine, sessions_run_out)
{
    struct fixture f = open_model(MODEL, (const char *[]){"engine.max_sequences=2", NULL});
    struct soq_session *a = new_session(&f), *b = new_session(&f), *c = NULL;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect_eq(soq_session_create(f.model, &c, &err), -SOQ_EBUSY);
    cr_expect(strstr(err.text, "max_sequences"), "%s", err.text);
    cr_expect_eq(soq_session_fork(a, &c, &err), -SOQ_EBUSY);
    cr_expect_null(c);
    soq_session_free(b);
    cr_expect_eq(soq_session_fork(a, &c, &err), 0, "%s", err.text);
    soq_session_free(a);
    soq_session_free(c);
    close_model(&f);
}

static int nested(void *ctx, const struct soq_event *event)
{
    struct soq_session *s = ctx;
    struct soq_request req = request(3, 1, NULL);
    struct soq_error err = SOQ_ERROR_INIT;

    if (event->index == 0) {
        cr_expect_eq(soq_generate(s, &req, NULL, &err), -SOQ_EBUSY);
        cr_expect(strstr(err.text, "one at a time"), "%s", err.text);
    }
    return 0;
}

Test(engine, one_request_at_a_time)
{
    struct fixture f = open_model(MODEL, NULL);
    struct soq_session *s = new_session(&f);
    struct soq_request req = request(5, 4, NULL);

    req.on_event = nested;
    req.ctx = s;
    cr_expect_eq(generate(s, &req).generated_tokens, 4);
    soq_session_free(s);
    close_model(&f);
}

/* ---- Memory ----------------------------------------------------------------------------------------------------------- */

/* A block of this model takes 8 KiB, a slab 2 MiB: 8192 tokens. */
#define SMALL_MEMORY "kv.memory=2MiB", "model.context=100000"

Test(engine, what_never_fits_is_refused)
{
    struct fixture f = open_model(MODEL, (const char *[]){SMALL_MEMORY, NULL});
    struct soq_session *s = new_session(&f);
    struct soq_request req = request(40, 8200, NULL);

    expect_refused(s, &req, -SOQ_ELIMIT, SAYS("8240 tokens", "4.0 MiB", "2.0 MiB", "[kv] memory"));
    req.max_tokens = 3;
    cr_expect_eq(generate(s, &req).generated_tokens, 3);
    soq_session_free(s);
    close_model(&f);
}

struct waiter {
    struct soq_session *s;
    struct soq_request req;
    struct soq_result result;
    struct heard heard;
    pthread_t thread;
    int rc;
};

static void *run_waiter(void *arg)
{
    struct waiter *w = arg;

    w->result = (struct soq_result)SOQ_RESULT_INIT;
    w->rc = soq_generate(w->s, &w->req, &w->result, NULL);
    return NULL;
}

static void start(struct waiter *w, struct fixture *f, const int32_t *ids, uint32_t n, int32_t max_tokens)
{
    *w = (struct waiter){.s = new_session(f), .req = request(n, max_tokens, &w->heard)};
    w->req.ids = ids;
    cr_assert_eq(pthread_create(&w->thread, NULL, run_waiter, w), 0);
}

static void join(struct waiter *w)
{
    pthread_join(w->thread, NULL);
    soq_session_free(w->s);
}

static uint32_t jobs_in(struct fixture *f, int state)
{
    struct soq__engine *e = f->model->engine;
    uint32_t n = 0;

    pthread_mutex_lock(&e->lock);
    for (const struct soq__job *j = e->jobs; j; j = j->next)
        n += (int)j->state == state;
    pthread_mutex_unlock(&e->lock);
    return n;
}

static void await_jobs(struct fixture *f, int state, uint32_t n)
{
    for (int i = 0; i < 20000 && jobs_in(f, state) < n; i++)
        usleep(1000);
    cr_assert_geq(jobs_in(f, state), n);
}

static void await_tokens(struct fixture *f, struct waiter *w, uint32_t n)
{
    struct soq__engine *e = f->model->engine;

    for (bool enough = false; !enough; usleep(1000)) {
        pthread_mutex_lock(&e->lock);
        enough = !w->s->seq->job || w->s->seq->job->n_generated >= n;
        pthread_mutex_unlock(&e->lock);
    }
}

/* One that fills the memory; a second one waits for it, a third behind that; the third gives up while it waits. */
Test(engine, what_fits_later_waits, .timeout = 120)
{
    struct fixture f = open_model(MODEL, (const char *[]){SMALL_MEMORY, NULL});
    struct waiter a, b, c;

    start(&a, &f, prompt, 40, 8100);
    await_jobs(&f, SOQ__JOB_RUNNING, 1);
    start(&b, &f, prompt, 20, 100);
    await_jobs(&f, SOQ__JOB_QUEUED, 1);
    start(&c, &f, prompt, 20, 100);
    await_jobs(&f, SOQ__JOB_QUEUED, 2);
    soq_session_cancel(c.s);
    join(&c);
    cr_expect_eq(c.result.reason, SOQ_REASON_CANCELLED);
    cr_expect_eq(c.heard.n, 0);
    cr_expect_eq(jobs_in(&f, SOQ__JOB_QUEUED), 1, "the one before it still waits");
    soq_session_cancel(a.s);
    pthread_join(a.thread, NULL);
    soq_session_rollback(a.s, 0, NULL);
    join(&b);
    soq_session_free(a.s);
    cr_expect_eq(a.result.reason, SOQ_REASON_CANCELLED);
    cr_expect_eq(b.rc, 0);
    cr_expect_eq(b.result.generated_tokens, 100);
    close_model(&f);
}

/* ---- Cancelling ------------------------------------------------------------------------------------------------------- */

Test(engine, cancel_before_does_not_count)
{
    struct fixture f = open_model(MODEL, NULL);
    struct soq_session *s = new_session(&f);
    struct soq_request req = request(5, 4, NULL);

    soq_session_cancel(s);
    cr_expect_eq(generate(s, &req).reason, SOQ_REASON_LENGTH);
    soq_session_cancel(s);
    cr_expect_eq(generate(s, &req).generated_tokens, 4);
    soq_session_free(s);
    close_model(&f);
}

#define LONG 50000 /* tokens: longer than any test waits */

static int32_t *long_prompt(void)
{
    int32_t *ids = malloc(LONG * sizeof *ids);

    for (int i = 0; ids && i < LONG; i++)
        ids[i] = prompt[i % 40];
    cr_assert(ids != NULL);
    return ids;
}

Test(engine, cancel_during_prefill, .timeout = 60)
{
    struct fixture f = open_model(MODEL, (const char *[]){"model.context=60000", "engine.chunk=4", NULL});
    struct waiter a;
    int32_t *ids = long_prompt();

    start(&a, &f, ids, LONG, 10);
    await_jobs(&f, SOQ__JOB_RUNNING, 1);
    usleep(20000);
    soq_session_cancel(a.s);
    pthread_join(a.thread, NULL);
    cr_expect_eq(a.rc, 0);
    cr_expect_eq(a.result.reason, SOQ_REASON_CANCELLED);
    cr_expect_eq(a.result.generated_tokens, 0);
    cr_expect_eq(a.heard.n, 0);
    cr_expect_lt(soq_session_length(a.s), LONG, "it came too late");
    soq_session_free(a.s);
    free(ids);
    close_model(&f);
}

Test(engine, cancel_during_decode, .timeout = 60)
{
    struct fixture f = open_model(MODEL, (const char *[]){"model.context=60000", NULL});
    struct heard before = {0}, after = {0};
    struct soq_request req = request(20, 10, &before);
    struct soq_session *fresh = new_session(&f);
    struct waiter a;

    generate(fresh, &req);
    start(&a, &f, prompt, 20, 50000);
    await_jobs(&f, SOQ__JOB_RUNNING, 1);
    await_tokens(&f, &a, 5);
    soq_session_cancel(a.s);
    pthread_join(a.thread, NULL);
    cr_expect_eq(a.result.reason, SOQ_REASON_CANCELLED);
    cr_expect(a.result.generated_tokens >= 5 && a.result.generated_tokens < 50000);
    cr_expect_eq(a.heard.n, a.result.generated_tokens);
    req.ctx = &after;
    generate(a.s, &req); /* the session goes on as if nothing had been */
    cr_expect(memcmp(before.ids, after.ids, 10 * sizeof *before.ids) == 0);
    soq_session_free(a.s);
    soq_session_free(fresh);
    close_model(&f);
}

static int cancel_self(void *ctx, const struct soq_event *event)
{
    if (event->index == 2)
        soq_session_cancel(ctx);
    return 0;
}

Test(engine, cancel_from_the_callback)
{
    struct fixture f = open_model(MODEL, NULL);
    struct soq_session *s = new_session(&f);
    struct heard h = {.cancel_after = 3};
    struct soq_request req = request(5, 200, &h);
    struct soq_result r = generate(s, &req);

    cr_expect_eq(r.reason, SOQ_REASON_CANCELLED);
    cr_expect_eq(h.n, 3);
    cr_expect_eq(h.calls_after, 0, "a callback that has had enough is left in peace");
    req.on_event = cancel_self;
    req.ctx = s;
    r = generate(s, &req);
    cr_expect_eq(r.reason, SOQ_REASON_CANCELLED);
    cr_expect(r.generated_tokens >= 3 && r.generated_tokens <= 5, "%u tokens", r.generated_tokens);
    soq_session_free(s);
    close_model(&f);
}

/* Sessions come and go, fork and roll back while a long prompt is computed, which nothing interrupts: each waits for a step or
 * two, not for the whole of it. */
Test(engine, nobody_is_starved, .timeout = 120)
{
    struct fixture f = open_model(MODEL, (const char *[]){"model.context=60000", "engine.chunk=4", NULL});
    struct soq_request req = request(20, 3, NULL);
    struct waiter a;
    int32_t *ids = long_prompt();

    start(&a, &f, ids, LONG, 1);
    await_jobs(&f, SOQ__JOB_RUNNING, 1);
    for (int i = 0; i < 30; i++) {
        struct soq_session *s = new_session(&f), *fork = NULL;

        cr_expect_eq(generate(s, &req).generated_tokens, 3);
        cr_expect_eq(soq_session_fork(s, &fork, NULL), 0);
        cr_expect_eq(soq_session_rollback(s, 7, NULL), 0);
        soq_session_free(fork);
        soq_session_free(s);
        cr_assert_eq(jobs_in(&f, SOQ__JOB_RUNNING), 1, "the other one had ended after %d rounds", i);
    }
    soq_session_cancel(a.s);
    join(&a);
    free(ids);
    close_model(&f);
}

/* ---- Structs of other versions ---------------------------------------------------------------------------------------- */

/* A copy of the first n bytes that ends at a page that cannot be read. */
static void *at_the_edge(const void *data, uint32_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *copy;

    cr_assert(two != MAP_FAILED);
    cr_assert_eq(mprotect(two + page, page, PROT_NONE), 0);
    copy = two + page - n;
    memcpy(copy, data, n);
    memcpy(copy, &n, sizeof n); /* struct_size */
    return copy;
}

Test(engine, older_structs)
{
    const char *settings[] = {"decoding.standard.temperature=0", "decoding.standard.presence_penalty=1.5", NULL};
    const char *dirs[] = {getenv("SOQ_TEST_PLUGINS"), NULL};
    struct soq_runtime_params rp = SOQ_RUNTIME_PARAMS_INIT;
    struct soq_model_params mp = SOQ_MODEL_PARAMS_INIT;
    struct soq_request req = request(5, 6, NULL);
    struct soq_sampling sampling = greedy();
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s;
    struct fixture f;
    struct {
        struct soq_result result;
        char beyond[16];
    } out;
    struct soq_sampling *old_sampling;

    rp.config = "/dev/null";
    rp.plugin_dirs = dirs;
    rp.settings = settings;
    cr_assert_eq(soq_runtime_create(at_the_edge(&rp, offsetof(struct soq_runtime_params, log)), &f.rt, &err), 0, "%s",
                 err.text);
    cr_assert_eq(soq_model_load(f.rt, soq__test_data(MODEL), at_the_edge(&mp, 8), &f.model, &err), 0, "%s", err.text);
    s = new_session(&f);
    /* A request from before there were stop strings, with sampling from before there was a presence penalty: those are the
     * defaults. */
    old_sampling = at_the_edge(&sampling, offsetof(struct soq_sampling, presence_penalty));
    req.sampling = old_sampling;
    memset(&out, 0x55, sizeof out);
    out.result.struct_size = offsetof(struct soq_result, ttft_s);
    cr_assert_eq(soq_generate(s, at_the_edge(&req, offsetof(struct soq_request, stop)), &out.result, &err), 0, "%s", err.text);
    cr_expect_eq(out.result.generated_tokens, 6);
    cr_expect_eq(out.result.struct_size, offsetof(struct soq_result, ttft_s));
    for (const char *p = (const char *)&out.result.ttft_s; p < (const char *)(&out + 1); p++)
        cr_assert_eq(*p, 0x55, "byte %zu was written", (size_t)(p - (const char *)&out));
    cr_assert_eq(soq_sampling_defaults(f.model, old_sampling, &err), 0, "%s", err.text);
    cr_expect_eq(old_sampling->struct_size, offsetof(struct soq_sampling, presence_penalty));
    soq_session_free(s);
    close_model(&f);
}

Test(engine, newer_structs)
{
    struct fixture f = open_model(MODEL, NULL);
    struct soq_session *s = new_session(&f);
    struct {
        struct soq_request req;
        void *beyond[4];
    } in = {.req = request(5, 6, NULL), .beyond = {&f, &f, &f, &f}};
    struct {
        struct soq_sampling sampling;
        uint64_t beyond[4];
    } sampling = {.sampling = greedy(), .beyond = {7, 7, 7, 7}};
    struct {
        struct soq_result result;
        uint64_t beyond[4];
    } out = {.beyond = {7, 7, 7, 7}};

    in.req.struct_size = sizeof in;
    sampling.sampling.struct_size = sizeof sampling;
    in.req.sampling = &sampling.sampling;
    out.result.struct_size = sizeof out;
    cr_assert_eq(soq_generate(s, &in.req, &out.result, NULL), 0);
    cr_expect_eq(out.result.generated_tokens, 6);
    cr_expect_eq(out.beyond[0], 7);
    cr_assert_eq(soq_sampling_defaults(f.model, &sampling.sampling, NULL), 0);
    cr_expect_eq(sampling.beyond[0], 7);
    soq_session_free(s);
    close_model(&f);
}

Test(engine, struct_size_forgotten)
{
    struct fixture f = open_model(MODEL, NULL);
    struct soq_session *s = new_session(&f);
    struct soq_request req = request(5, 6, NULL);
    struct soq_sampling sampling = {0};
    struct soq_model_info info = {0};
    struct soq_result result = {0};
    struct soq_error err = SOQ_ERROR_INIT;

    req.struct_size = 0;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("soq_request", "struct_size is 0"));
    req = request(5, 6, NULL);
    req.sampling = &sampling;
    expect_refused(s, &req, -SOQ_EINVAL, SAYS("soq_sampling", "struct_size is 0"));
    cr_expect_eq(soq_model_info(f.model, &info, &err), -SOQ_EINVAL);
    req = request(5, 6, NULL);
    cr_expect_eq(soq_generate(s, &req, &result, &err), -SOQ_EINVAL);
    cr_expect(strstr(err.text, "soq_result"), "%s", err.text);
    soq_session_free(s);
    close_model(&f);
}

/* ---- Log -------------------------------------------------------------------------------------------------------------- */

static void count_line(void *ctx, int level, const char *text)
{
    (void)level;
    (void)text;
    ++*(int *)ctx;
}

/* More than the model was made for: a warning, to the runtime that is there and to nobody who has gone. */
Test(engine, log)
{
    const char *dirs[] = {getenv("SOQ_TEST_PLUGINS"), NULL}, *settings[] = {"model.context=1000", NULL};
    struct soq_runtime_params p = SOQ_RUNTIME_PARAMS_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct fixture f = {0};
    int lines = 0;

    p.config = "/dev/null";
    p.plugin_dirs = dirs;
    p.settings = settings;
    p.log = count_line;
    p.log_ctx = &lines;
    cr_assert_eq(soq_runtime_create(&p, &f.rt, &err), 0, "%s", err.text);
    cr_assert_eq(soq_model_load(f.rt, soq__test_data(MODEL), NULL, &f.model, &err), 0, "%s", err.text);
    cr_expect_eq(lines, 1);
    close_model(&f);
    f = open_model(MODEL, settings);
    cr_expect_eq(lines, 1, "a runtime that is gone still gets what others log");
    close_model(&f);
}

/* What a message contains never becomes a control token, and the tokens of a turn begin with those of the one before. */
Test(engine, messages)
{
    const struct soq_message list[] = {{"user", "Hi <|eos|><|im_end|> there"}, {"assistant", "Yes?"}, {"user", "Go on"}};
    struct fixture f = open_model(MODEL, (const char *[]){"model.context=1000", NULL});
    struct soq_request req = request(0, 4, NULL);
    struct soq_session *s = new_session(&f);
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__ids ids = {0};
    struct soq_result r;

    req.ids = NULL;
    req.messages = list;
    req.n_messages = 1;
    cr_assert_eq(soq__request_tokens(f.model->model, &req, &ids, &err), 0, "%s", err.text);
    for (size_t i = 0; i < ids.n; i++)
        cr_expect_neq(ids.data[i], EOS, "token %zu", i);
    r = generate(s, &req);
    cr_expect_eq(r.prompt_tokens, ids.n);
    req.n_messages = 3;
    r = generate(s, &req);
    cr_expect_geq(r.cached_tokens, ids.n - 8, "%u of %zu tokens are cached", r.cached_tokens, ids.n);
    soq__ids_done(&ids);
    soq_session_free(s);
    close_model(&f);
}

/* ---- Sampling --------------------------------------------------------------------------------------------------------- */

static struct heard sampled(struct fixture *f, float temperature, int32_t top_k, uint64_t seed)
{
    struct soq_session *s = new_session(f);
    struct soq_sampling sampling = greedy();
    struct heard h = {0};
    struct soq_request req = request(15, 40, &h);

    sampling.temperature = temperature;
    sampling.top_k = top_k;
    sampling.seed = seed;
    req.sampling = &sampling;
    generate(s, &req);
    soq_session_free(s);
    return h;
}

static bool same(const struct heard *a, const struct heard *b)
{
    return a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0;
}

Test(engine, seeds)
{
    struct fixture f = open_model(MODEL, NULL);
    struct heard a = sampled(&f, 1.5f, 0, 5), b = sampled(&f, 1.5f, 0, 5), c = sampled(&f, 1.5f, 0, 6);
    struct heard cold = sampled(&f, 0, 0, 1), one = sampled(&f, 1.5f, 1, 9);

    cr_expect(same(&a, &b), "the same seed, other tokens");
    cr_expect(!same(&a, &c), "another seed, the same tokens");
    cr_expect(same(&cold, &one), "temperature 0 is not top_k 1");
    close_model(&f);
}

/* Random numbers are a function of seed and position: others in the batch change nothing. */
Test(engine, sampling_among_others)
{
    struct fixture f = open_model(MODEL, (const char *[]){"engine.chunk=8", "model.context=60000", NULL});
    struct heard alone = sampled(&f, 1.2f, 50, 77), among;
    struct waiter others[5]; /* more rows in every step */

    for (uint32_t i = 0; i < 5; i++)
        start(&others[i], &f, prompt, 5 + 7 * i, 50000);
    await_jobs(&f, SOQ__JOB_RUNNING, 5);
    among = sampled(&f, 1.2f, 50, 77);
    for (int i = 0; i < 5; i++)
        soq_session_cancel(others[i].s);
    for (int i = 0; i < 5; i++)
        join(&others[i]);
    cr_expect(same(&alone, &among));
    close_model(&f);
}
