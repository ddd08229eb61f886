/* Drafts of a lossy view, checked by the full one: tokens and logits are those of the full cache alone, bit for bit, for every
 * policy and number of drafts, however rows are batched and whatever happens to the sequence in between; and what was drafted
 * leaves no trace in the lossy view. Beyond temperature 0 see test_draft_samples.c. */
#include <pthread.h>
#include <unistd.h>

#include "engine/admit.h"
#include "engine/draft.h"
#include "engine/jobs.h"
#include "kv/promise.h"
#include "tests/unit/engine_fixture.h"

#define GQA "kv-golden/models/gqa.gguf"
#define LLAMA "golden/llama256/model-q4_k.gguf" /* heads of 32 numbers, as codecs want them */
#define GEMMA "golden/gemma3/model.gguf"        /* windows of 16 in five layers of six */
#define N_PROMPT 97u
#define N_ANSWER 48u
#define N_ROWS (N_PROMPT + N_ANSWER - 1)

/* Each policy as the lossy view's, with a budget far below the prompt: once, and again and again. */
static const char *const policies[] = {
    "draft.policy=full",
    "draft.policy=window capacity:48 sinks:4",
    "draft.policy=streaming capacity:48 when:always",
    "draft.policy=streaming capacity:48 when:decode every:16",
    "draft.policy=snapkv capacity:48 window:16",
    "draft.policy=snapkv capacity:48 window:8 when:always every:16",
    "draft.policy=pyramidkv capacity:48 window:16",
    "draft.policy=adakv capacity:48 window:16",
    "draft.policy=adakv capacity:48 window:8 when:always every:12",
    "draft.policy=h2o capacity:48 recent:20 when:always every:7",
    "draft.policy=tova capacity:48 when:always every:1", /* every row ends at a selection: nothing is drafted */
    "draft.policy=keydiff capacity:48",
    "draft.policy=l2norm capacity:48 when:always every:16",
    "draft.policy=observed capacity:48",
    "draft.policy=random capacity:48 when:always every:16",
};
#define N_POLICIES (sizeof policies / sizeof policies[0])
#define FULL 0
#define SNAPKV 4
#define TOVA 10

/* ---- One answer ---------------------------------------------------------------------------------------------------------- */

/* An answer, and what it left. */
struct outcome {
    int32_t tokens[N_PROMPT + N_ANSWER];
    float *logits; /* [N_ROWS][n_vocab] */
    uint32_t n_vocab, n_steps, n_drafted, n_accepted, n_preempted;
    uint64_t kept; /* hash of what the lossy view kept at each selection */
    uint64_t sums; /* hash of its sums of attention mass at the end */
};

struct asked {
    struct collected c;
    uint32_t preempt_every; /* rows; 0: never */
    uint32_t n_preempted;
};

static uint64_t hash(uint64_t h, uint64_t x)
{
    return (h ^ x) * UINT64_C(0x100000001b3);
}

static void note_kept(void *arg, const struct soq__kv_kept *kept)
{
    uint64_t *h = arg;

    *h = hash_kept(*h, kept);
}

static uint64_t hash_sums(const struct soq__kv_seq *seq)
{
    uint64_t h = 1;

    for (uint32_t g = 0; g < seq->cache->n_groups; g++) {
        const struct soq__kv_seq_group *sg = &seq->groups[g];
        const struct soq__kv_group_layout *layout = seq->cache->groups[g].layout;

        for (uint32_t line = 0; sg->mass && line < layout->n_layers * layout->n_heads; line++)
            for (uint32_t e = sg->base; e < seq->n_committed; e++)
                h = hash(h, sg->mass[(size_t)line * sg->mass_cap + e]);
    }
    return h;
}

/* Between two steps, under the lock: now and then the sequence loses its memory. */
static bool interfere(void *arg)
{
    struct soq__job *job = arg;
    struct asked *a = job->arg;
    struct soq_error err = SOQ_ERROR_INIT;

    if (!a->preempt_every || job->seq->engine->stepping || job->state != SOQ__JOB_RUNNING ||
        job->seq->kv.n_committed < (a->n_preempted + 1) * a->preempt_every)
        return false;
    cr_assert_eq(soq__preempt(job->seq, &err), 0, "%s", err.text);
    a->n_preempted++;
    return false;
}

static void hear(void *arg, uint32_t position, const float *logits, uint32_t n_vocab)
{
    collect(&((struct asked *)arg)->c, position, logits, n_vocab);
}

static struct outcome answer(struct fixture *f, struct soq__sequence *seq, uint32_t preempt_every)
{
    struct soq__engine *e = f->model->engine;
    struct asked a = {.c = {.rows = N_ROWS}, .preempt_every = preempt_every};
    struct outcome o = {.n_vocab = e->net.logits.cols, .kept = 1};
    int32_t ids[N_PROMPT];
    struct soq__job job = {.seq = seq,
                           .prompt = ids,
                           .n_prompt = N_PROMPT,
                           .max_tokens = N_ANSWER,
                           .ignore_eog = true,
                           .sampling = greedy(),
                           .on_logits = hear,
                           .arg = &a};

    o.logits = a.c.logits = soq__alloc_zero((size_t)N_ROWS * o.n_vocab, sizeof(float));
    make_ids(ids, N_PROMPT, 1);
    if (e->drafting.on)
        e->kv.trace = (struct soq__kv_trace){.fn = note_kept, .arg = &o.kept};
    soq__engine_run(e, &job, interfere, &job);
    e->kv.trace = (struct soq__kv_trace){0};
    cr_assert_eq(job.rc, 0, "%s", job.err.text);
    memcpy(o.tokens, seq->tokens, sizeof o.tokens);
    cr_assert_eq(seq->n_tokens, N_PROMPT + N_ANSWER);
    cr_assert_eq(seq->kv.n_committed, N_ROWS);
    cr_assert_eq(seq->kv.n_tentative, 0);
    cr_assert_eq(job.n_steps + job.n_accepted, N_ANSWER);
    o.n_steps = job.n_steps;
    o.n_drafted = job.n_drafted;
    o.n_accepted = job.n_accepted;
    o.n_preempted = a.n_preempted;
    o.sums = hash_sums(&seq->kv);
    return o;
}

#define MORE_MAX 6

/* more: up to MORE_MAX settings. */
static struct fixture open_drafting(const char *model, const char *policy, int n_drafts, const char *const *more)
{
    const char *settings[8 + MORE_MAX] = {"kv.block_tokens=8", "decoding.drafter=self", policy};
    char drafts[40];
    size_t n = 3;

    snprintf(drafts, sizeof drafts, "decoding.draft_tokens=%d", n_drafts);
    settings[n++] = drafts;
    for (size_t i = 0; more && more[i]; i++)
        settings[n++] = more[i];
    return open_model(model, settings);
}

static struct outcome answer_alone(const char *model, const char *policy, int n_drafts, const char *const *more,
                                   uint32_t preempt_every)
{
    struct fixture f =
        policy ? open_drafting(model, policy, n_drafts, more) : open_model(model, (const char *[]){"kv.block_tokens=8", NULL});
    struct soq__sequence *seq = new_sequence(&f);
    struct outcome o = answer(&f, seq, preempt_every);

    soq__sequence_free(seq);
    cr_assert(f.model->engine->prefix.cache || f.model->engine->kv.budget.used == 0, "everything is given back");
    close_model(&f);
    return o;
}

static struct outcome full_cache(const char *model)
{
    return answer_alone(model, NULL, 0, NULL, 0);
}

static void expect_same(const struct outcome *full, struct outcome *o, const char *policy, const char *what, int n)
{
    cr_expect(memcmp(full->tokens, o->tokens, sizeof o->tokens) == 0, "%s: other tokens %s %d", policy, what, n);
    cr_expect(memcmp(full->logits, o->logits, (size_t)N_ROWS * o->n_vocab * sizeof(float)) == 0, "%s: other logits %s %d",
              policy, what, n);
    soq__free(o->logits);
}

/* ---- Alone --------------------------------------------------------------------------------------------------------------- */

static void check_lengths(const char *model)
{
    struct outcome full = full_cache(model);
    uint32_t n_drafted = 0, n_accepted = 0;

    for (size_t i = 0; i < N_POLICIES; i++) {
        struct outcome first = {0};

        for (int n = 1; n <= 8; n++) {
            struct outcome o = answer_alone(model, policies[i], n, NULL, 0);

            expect_same(&full, &o, policies[i], "with drafts of", n);
            cr_expect(i == TOVA ? o.n_drafted == 0 : o.n_drafted > 0, "%s: %u drafts", policies[i], o.n_drafted);
            cr_expect(i != FULL || o.n_accepted == o.n_drafted, "the same view drafts what is accepted");
            first = n == 1 ? o : first;
            cr_expect_eq(o.kept, first.kept, "%s: drafts of %d change what is kept", policies[i], n);
            cr_expect_eq(o.sums, first.sums, "%s: drafts of %d change sums of attention mass", policies[i], n);
            n_drafted += i == FULL ? 0 : o.n_drafted;
            n_accepted += i == FULL ? 0 : o.n_accepted;
        }
    }
    cr_expect(n_accepted > n_drafted / 20 && n_accepted < n_drafted, "%u of %u drafts were accepted", n_accepted, n_drafted);
    soq__free(full.logits);
}

Test(drafts, every_policy_and_length, .timeout = 240)
{
    check_lengths(GQA);
}

Test(drafts, layers_with_a_window_of_their_own, .timeout = 240)
{
    check_lengths(GEMMA);
}

/* A number of drafts that follows acceptance; views with codecs of their own; the full view's is not the lossy one's. */
Test(drafts, variants)
{
    static const char *const variants[][3] = {
        {"engine.chunk=1"},
        {"engine.chunk=7", "engine.step_tokens=20"},
        {"draft.codec=f32"},
        {"draft.codec_v=f32", "kv.codec_k=f16"},
    };
    struct outcome full = full_cache(GQA);

    for (size_t i = 0; i < N_POLICIES; i++)
        for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
            struct outcome o = answer_alone(GQA, policies[i], v % 2 ? 4 : 0, variants[v], 0);

            expect_same(&full, &o, policies[i], variants[v][0], (int)v);
        }
    soq__free(full.logits);
}

/* Either view may pack its blocks; the full one's answer is then that of its codec. */
Test(drafts, codecs, .timeout = 240)
{
    static const char *const grids[] = {"kv.pack_grid=32", "kv.pack_grid=128", "kv.pack_grid=128"}; /* as kivi's */
    static const char *const full_codecs[] = {"kv.codec=f16", "kv.codec=int8", "kv.codec=kivi group:8"};
    static const char *const lossy_codecs[] = {"draft.codec=int8", "draft.codec=int4", "draft.codec=fp8",
                                               "draft.codec=kivi group:8"};
    static const size_t ruled[] = {FULL, 1, SNAPKV, 9};

    for (size_t i = 0; i < sizeof full_codecs / sizeof full_codecs[0]; i++) {
        struct fixture f = open_model(LLAMA, (const char *[]){"kv.block_tokens=8", grids[i], full_codecs[i], NULL});
        struct soq__sequence *seq = new_sequence(&f);
        struct outcome full = answer(&f, seq, 0);

        soq__sequence_free(seq);
        close_model(&f);
        for (size_t k = 0; k < 4; k++)
            for (size_t p = 0; p < 4; p++) {
                const char *const more[] = {grids[i], full_codecs[i], lossy_codecs[k], NULL};
                struct outcome o = answer_alone(LLAMA, policies[ruled[p]], 1 + (int)(k + p) % 8, more, 0), other;

                other = answer_alone(LLAMA, policies[ruled[p]], 7, more, 0);
                cr_expect(o.kept == other.kept && o.sums == other.sums, "%s, %s: drafts leave traces", full_codecs[i],
                          lossy_codecs[k]);
                cr_expect_gt(o.n_drafted, 0);
                expect_same(&full, &o, policies[ruled[p]], lossy_codecs[k], (int)i);
                expect_same(&full, &other, policies[ruled[p]], lossy_codecs[k], (int)i);
            }
        soq__free(full.logits);
    }
}

/* ---- Among others -------------------------------------------------------------------------------------------------------- */

struct other {
    struct fixture *f;
    uint32_t number;
};

static void *run_other(void *arg)
{
    const struct other *o = arg;
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t round = 0; round < 3; round++) {
        struct soq__sequence *seq = new_sequence(o->f);
        uint32_t n = 30 + o->number * 23 + round * 7;
        int32_t ids[N_PROMPT];

        make_ids(ids, n, 50 + o->number);
        cr_expect_eq(run_ids(seq, ids, n, 10 + o->number, NULL, &err), 0, "%s", err.text);
        soq__sequence_free(seq);
    }
    return NULL;
}

Test(drafts, among_others, .timeout = 120)
{
    static const char *const small[] = {"engine.chunk=16", "engine.step_tokens=32", NULL};
    struct outcome full = full_cache(GQA);

    for (size_t i = 0; i < N_POLICIES; i++) {
        struct fixture f = open_drafting(GQA, policies[i], 1 + (int)i % 8, i % 2 ? small : NULL);
        struct soq__sequence *seq = new_sequence(&f);
        struct other others[3];
        pthread_t threads[3];
        struct outcome o;

        for (uint32_t t = 0; t < 3; t++) {
            others[t] = (struct other){&f, t};
            cr_assert_eq(pthread_create(&threads[t], NULL, run_other, &others[t]), 0);
        }
        o = answer(&f, seq, 0);
        for (int t = 0; t < 3; t++)
            pthread_join(threads[t], NULL);
        expect_same(&full, &o, policies[i], "in a batch", 4);
        soq__sequence_free(seq);
        close_model(&f);
    }
    soq__free(full.logits);
}

/* Jobs as soq__engine_run() would queue them, stepped by hand. */
static void enqueue(struct fixture *f, struct soq__job *job, const int32_t *ids, uint32_t n, uint32_t max_tokens)
{
    struct soq__engine *e = f->model->engine;
    struct soq__job **end = &e->jobs;
    struct soq_error err = SOQ_ERROR_INIT;

    *job = (struct soq__job){.seq = new_sequence(f),
                             .prompt = ids,
                             .n_prompt = n,
                             .max_tokens = max_tokens,
                             .ignore_eog = true,
                             .sampling = greedy()};
    cr_assert_eq(soq__drafts_open(e, job, &err), 0, "%s", err.text);
    while (*end)
        end = &(*end)->next;
    *end = job;
    job->seq->job = job;
}

#define N_DECODING 4u

/* Everybody drafts as many as alone, whoever decodes or waits; a prompt gets half a step beside them. */
Test(drafts, room_in_a_step)
{
    struct fixture f =
        open_drafting(GQA, policies[FULL], 4, (const char *[]){"engine.step_tokens=16", "kv.prefix_cache=off", NULL});
    struct soq__engine *e = f.model->engine;
    struct soq__job jobs[N_DECODING], prompt;
    int32_t ids[N_PROMPT];
    uint32_t n_steps = 0;

    make_ids(ids, N_PROMPT, 1);
    for (uint32_t i = 0; i < N_DECODING; i++)
        enqueue(&f, &jobs[i], ids, 4, 100);
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < 5; i++) {
        cr_assert(soq__engine_step(e));
        cr_expect_leq(e->step.n_rows, N_DECODING * 5, "%u rows", e->step.n_rows);
    }
    for (uint32_t i = 0; i < N_DECODING; i++)
        cr_expect_eq(jobs[i].n_drafted, 4 * 4, "%u drafts of job %u", jobs[i].n_drafted, i);
    pthread_mutex_unlock(&e->lock);
    enqueue(&f, &prompt, ids, 40, 1);
    pthread_mutex_lock(&e->lock);
    for (; prompt.state != SOQ__JOB_DONE && jobs[0].state != SOQ__JOB_DONE; n_steps++) {
        cr_assert(soq__engine_step(e));
        cr_expect_leq(e->step.n_rows, N_DECODING * 5 + 8, "%u rows", e->step.n_rows);
    }
    for (uint32_t i = 0; i < N_DECODING; i++)
        cr_expect_eq(jobs[i].n_drafted, 4 * 4 + 5 * 4, "%u drafts of job %u", jobs[i].n_drafted, i);
    cr_expect_eq(prompt.state, SOQ__JOB_DONE, "a prompt starves behind drafts");
    cr_expect_eq(n_steps, 5, "%u steps", n_steps);
    while (e->jobs)
        cr_assert(soq__engine_step(e));
    pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i <= N_DECODING; i++) {
        struct soq__job *job = i < N_DECODING ? &jobs[i] : &prompt;

        cr_expect_eq(job->rc, 0, "%s", job->err.text);
        cr_expect_eq(job->n_generated, job->max_tokens);
        soq__drafts_close(job);
        soq__sequence_free(job->seq);
    }
    close_model(&f);
}

/* ---- Drafts that cannot be drawn ----------------------------------------------------------------------------------------- */

static struct {
    const struct soq_sampler_ops *real;
    const struct soq__sequence *seq;
    uint32_t n_failed;
} sampler;

/* Refuses to draw behind a draft, as it does where logits are no numbers. */
static int draw_no_second(void *self, void *state, const struct soq_sampling *sampling, const struct soq_sampler_row *row,
                          struct soq_sampled *out, struct soq_error *err)
{
    bool is_second = row->n_history > sampler.seq->n_tokens;

    sampler.n_failed += is_second;
    return is_second ? -SOQ_EINVAL : sampler.real->sample(self, state, sampling, row, out, err);
}

/* Steps get shorter than they were planned; nothing is added to what the lossy view ranks by. */
Test(drafts, that_cannot_be_drawn)
{
    static const size_t weigh[] = {SNAPKV + 1, 8, 9};
    struct outcome full = full_cache(GQA);

    for (size_t i = 0; i < sizeof weigh / sizeof weigh[0]; i++) {
        const char *policy = policies[weigh[i]];
        struct fixture f = open_drafting(GQA, policy, 4, NULL);
        struct soq__engine *e = f.model->engine;
        struct soq__sequence *seq = new_sequence(&f);
        const struct soq__plugin_role *real = e->sampler.plugin;
        struct soq_sampler_ops ops = *real->ops.sampler;
        struct soq__plugin_role role = *real;
        struct outcome calm = answer_alone(GQA, policy, 4, NULL, 0), o;

        sampler.real = real->ops.sampler;
        sampler.seq = seq;
        sampler.n_failed = 0;
        ops.sample = draw_no_second;
        role.ops.sampler = &ops;
        e->sampler.plugin = &role;
        o = answer(&f, seq, 0);
        e->sampler.plugin = real;
        cr_expect_gt(sampler.n_failed, 10);
        cr_expect_eq(o.sums, calm.sums, "%s: other sums of attention mass", policy);
        cr_expect_eq(o.kept, calm.kept, "%s: something else is kept", policy);
        expect_same(&full, &calm, policy, "with all drafts", 4);
        expect_same(&full, &o, policy, "with those that can be drawn", 4);
        soq__sequence_free(seq);
        close_model(&f);
    }
    soq__free(full.logits);
}

/* ---- On two backends ----------------------------------------------------------------------------------------------------- */

/* The views lie in different memories, either way round; twin cannot move what a policy selects. */
Test(drafts, views_on_two_backends, .timeout = 120)
{
    static const char *const places[] = {"backend.place=lossy.attention:twin",
                                         "backend.place=lossy.attention:cpu, attention:twin"};

    for (int i = 0; i < 2; i++) {
        const char *const more[] = {mixed_plugins(), "backend.use=cpu/generic, twin", places[i], NULL};
        const char *plain[] = {mixed_plugins(), "backend.use=cpu/generic, twin", "kv.block_tokens=8",
                               i ? "backend.place=attention:twin" : NULL, NULL};
        struct fixture f = open_model(GQA, plain);
        struct soq__sequence *seq = new_sequence(&f);
        struct outcome full = answer(&f, seq, 0);

        soq__sequence_free(seq);
        close_model(&f);
        for (size_t k = 0; k < (i ? N_POLICIES : SNAPKV - 1); k += i ? SNAPKV : 1) {
            struct outcome o = answer_alone(GQA, policies[k], 4, more, 0);

            cr_expect_gt(o.n_drafted, 0);
            expect_same(&full, &o, policies[k], "on two backends", i);
            o = answer_alone(GQA, policies[k], 4, more, 23);
            expect_same(&full, &o, policies[k], "on two backends, swapped out", i);
        }
        soq__free(full.logits);
    }
}

/* ---- Preemption ---------------------------------------------------------------------------------------------------------- */

/* Swapped out between any two steps; where the lossy view keeps everything it may be computed again, too. */
Test(drafts, preempted, .timeout = 120)
{
    static const char *const swap[] = {"kv.preempt=swap", NULL}, *const again[] = {"kv.preempt=recompute", NULL};
    struct outcome full = full_cache(GQA);

    for (size_t i = 0; i < N_POLICIES; i++)
        for (int n = 2; n <= 5; n += 3) {
            struct outcome o = answer_alone(GQA, policies[i], n, swap, 11);

            cr_expect_gt(o.n_preempted, 5);
            expect_same(&full, &o, policies[i], "swapped out, drafts of", n);
            if (i > 2)
                continue;
            o = answer_alone(GQA, policies[i], n, again, 11);
            cr_expect_gt(o.n_preempted, 5);
            expect_same(&full, &o, policies[i], "computed again, drafts of", n);
        }
    soq__free(full.logits);
}

/* ---- Where an answer ends ------------------------------------------------------------------------------------------------ */

static struct soq_session *session_of(struct fixture *f)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s = NULL;

    cr_assert_eq(soq_session_create(f->model, &s, &err), 0, "%s", err.text);
    return s;
}

struct heard {
    char text[1024];
    size_t n;
    uint32_t n_tokens;
};

static int listen(void *ctx, const struct soq_event *event)
{
    struct heard *h = ctx;

    cr_assert_lt(h->n + event->text_size, sizeof h->text);
    memcpy(h->text + h->n, event->text, event->text_size);
    h->n += event->text_size;
    h->n_tokens += event->token >= 0;
    return 0;
}

/* Asks for a prompt of n tokens behind which all goes on; heard is reset. */
static struct soq_result ask(struct soq_session *s, uint32_t n, int32_t max_tokens, const char *stop, struct heard *heard)
{
    const char *const stops[] = {stop, NULL};
    struct soq_sampling zero = greedy();
    struct soq_request req = SOQ_REQUEST_INIT;
    struct soq_result result = SOQ_RESULT_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    int32_t ids[N_PROMPT + 200];

    *heard = (struct heard){.n = 0};
    memcpy(ids, s->seq->tokens, s->seq->n_tokens * sizeof *ids);
    make_ids(ids + s->seq->n_tokens, n, 7);
    req.ids = ids;
    req.n_ids = s->seq->n_tokens + n;
    req.max_tokens = max_tokens;
    req.stop = stop ? stops : NULL;
    req.sampling = &zero;
    req.on_event = listen;
    req.ctx = heard;
    cr_assert_eq(soq_generate(s, &req, &result, &err), 0, "%s", err.text);
    return result;
}

/* The same turns in both models: the first ends somewhere, the second goes on behind it. */
static void compare_turns(struct fixture *plain, struct fixture *drafting, uint32_t n_turns, int32_t max_tokens,
                          const char *stop)
{
    struct soq_session *a = session_of(plain), *b = session_of(drafting);
    struct heard x, y;

    for (uint32_t turn = 0; turn < n_turns; turn++) {
        struct soq_result r = ask(a, turn ? 9 : 60, max_tokens, stop, &x), q = ask(b, turn ? 9 : 60, max_tokens, stop, &y);

        cr_expect_eq(r.reason, q.reason, "max_tokens %d, stop \"%s\": %s, not %s", max_tokens, stop ? stop : "",
                     soq_reason_text(q.reason), soq_reason_text(r.reason));
        cr_expect(x.n == y.n && memcmp(x.text, y.text, x.n) == 0, "max_tokens %d, stop \"%s\", turn %u: \"%.*s\", not \"%.*s\"",
                  max_tokens, stop ? stop : "", turn, (int)y.n, y.text, (int)x.n, x.text);
        cr_expect_eq(r.generated_tokens, q.generated_tokens);
        cr_expect_eq(x.n_tokens, y.n_tokens);
        cr_expect_eq(a->seq->n_tokens, b->seq->n_tokens);
        cr_expect_eq(a->seq->kv.n_committed, b->seq->kv.n_committed);
        cr_expect_eq(memcmp(a->seq->tokens, b->seq->tokens, a->seq->n_tokens * 4), 0, "tokens of the sequence");
    }
    soq_session_free(a);
    soq_session_free(b);
}

/* At every token: by max_tokens, by a stop string that a token completes, by the end of the context. */
Test(drafts, ends_anywhere, .timeout = 120)
{
    struct fixture plain = open_model(GQA, (const char *[]){"model.context=128", NULL}), drafting;
    struct soq_session *s = session_of(&plain);
    struct heard all;
    uint32_t n_stops = 0;

    ask(s, 60, 30, NULL, &all);
    soq_session_free(s);
    cr_assert_gt(all.n, 12);
    drafting = open_drafting(GQA, policies[SNAPKV], 5, (const char *[]){"model.context=128", NULL});
    for (int32_t n = 1; n <= 20; n++)
        compare_turns(&plain, &drafting, 2, n, NULL);
    for (size_t at = 0; at + 3 < all.n && n_stops < 24; at++) {
        char stop[4] = {0};

        memcpy(stop, all.text + at, 3);
        if ((stop[0] | stop[1] | stop[2]) & 0x80 || !stop[0] || !stop[1] || !stop[2])
            continue; /* no text by itself */
        compare_turns(&plain, &drafting, 2, 30, stop);
        n_stops++;
    }
    cr_expect_gt(n_stops, 5);
    compare_turns(&plain, &drafting, 1, 500, NULL); /* until the context is full */
    close_model(&plain);
    close_model(&drafting);
}

/* ---- Sessions ------------------------------------------------------------------------------------------------------------ */

static char *temporary(void)
{
    static char path[4096];
    const char *dir = getenv("TMPDIR");
    int fd;

    snprintf(path, sizeof path, "%s/soquete-drafts-XXXXXX", dir ? dir : P_tmpdir);
    fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    return path;
}

/* Saved, loaded and forked behind an answer, each goes on as the one that stayed, and as the full cache. */
Test(drafts, sessions_and_forks)
{
    struct fixture plain = open_model(GQA, NULL);
    const char *path = temporary();

    for (size_t i = 0; i < N_POLICIES; i++) {
        struct fixture f = open_drafting(GQA, policies[i], 3, NULL);
        struct soq_session *full = session_of(&plain), *s[3] = {session_of(&f)};
        struct soq_error err = SOQ_ERROR_INIT;
        struct heard want, got;

        ask(full, 60, 20, NULL, &want);
        ask(s[0], 60, 20, NULL, &got);
        cr_assert_eq(soq_session_save(s[0], path, NULL, 0, &err), 0, "%s", err.text);
        cr_assert_eq(soq_session_load(f.model, NULL, path, &s[1], &err), 0, "%s", err.text);
        cr_assert_eq(soq_session_fork(s[0], &s[2], &err), 0, "%s", err.text);
        ask(full, 5, 20, NULL, &want);
        for (int k = 0; k < 3; k++) {
            ask(s[k], 5, 20, NULL, &got);
            cr_expect(got.n == want.n && memcmp(got.text, want.text, want.n) == 0, "%s: session %d goes on otherwise",
                      policies[i], k);
            soq_session_free(s[k]);
        }
        soq_session_free(full);
        close_model(&f);
    }
    unlink(path);
    close_model(&plain);
}

/* A file of a cache with another lossy view is refused, and so is one without. */
Test(drafts, session_of_another_view)
{
    static const char *const others[] = {"draft.policy=snapkv capacity:56 window:16", "draft.policy=keydiff capacity:48"};
    struct fixture f = open_drafting(GQA, policies[SNAPKV], 3, NULL),
                   plain = open_model(GQA, (const char *[]){"kv.block_tokens=8", NULL});
    struct soq_session *s = session_of(&f), *loaded = NULL;
    const char *path = temporary();
    struct soq_error err = SOQ_ERROR_INIT;
    struct heard h;

    ask(s, 60, 20, NULL, &h);
    cr_assert_eq(soq_session_save(s, path, NULL, 0, &err), 0, "%s", err.text);
    cr_expect_eq(soq_session_load(plain.model, NULL, path, &loaded, &err), -SOQ_EINVAL);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct fixture other = open_drafting(GQA, others[i], 3, NULL);

        cr_expect_eq(soq_session_load(other.model, NULL, path, &loaded, &err), -SOQ_EINVAL);
        cr_expect(strstr(err.text, "policy"), "%s", err.text);
        close_model(&other);
    }
    soq_session_free(s);
    unlink(path);
    close_model(&plain);
    close_model(&f);
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

/* Both views are forecast, held and told. */
Test(drafts, memory_of_both_views)
{
    struct fixture plain = open_model(GQA, (const char *[]){"kv.block_tokens=8", NULL});
    struct soq__sequence *whole = new_sequence(&plain);
    int32_t ids[N_PROMPT];
    uint64_t full;

    make_ids(ids, N_PROMPT, 1);
    cr_assert_eq(run_ids(whole, ids, N_PROMPT, 0, NULL, NULL), 0);
    full = soq__kv_seq_bytes(&whole->kv);
    soq__sequence_free(whole);
    close_model(&plain);
    for (size_t i = 0; i < N_POLICIES; i++) {
        struct fixture f = open_drafting(GQA, policies[i], 3, NULL);
        struct soq__engine *e = f.model->engine;
        const struct soq__kv_need_params params = {.layout = &e->layout,
                                                   .policies = e->policies.kv,
                                                   .chunk = e->kv.chunk,
                                                   .n_prompt = N_PROMPT,
                                                   .n_entries = N_PROMPT};
        struct soq__sequence *seq = new_sequence(&f);
        uint64_t kept = 0, draft;

        cr_assert_eq(run_ids(seq, ids, N_PROMPT, 0, NULL, NULL), 0);
        for (uint32_t p = 0; p < e->kv.n_pools; p++) {
            struct soq__kv_need need;

            soq__kv_need(&params, p, &need);
            kept += need.kept * e->kv.pools[p].block_bytes;
        }
        draft = soq__kv_draft_bytes(&seq->kv);
        cr_expect_leq(soq__kv_seq_bytes(&seq->kv), kept, "%s", policies[i]);
        cr_expect_eq(soq__kv_seq_bytes(&seq->kv), full + draft, "%s: %llu", policies[i], (unsigned long long)draft);
        cr_expect_eq(soq__kv_view_bytes(&seq->kv, SOQ__KV_FULL), full, "%s", policies[i]);
        cr_expect(i == FULL ? draft == 0 : draft > 0 && draft < full * 3 / 4, "%s: %llu of %llu", policies[i],
                  (unsigned long long)draft, (unsigned long long)full);
        soq__sequence_free(seq);
        close_model(&f);
    }
}

/* ---- What does not go together ------------------------------------------------------------------------------------------- */

static void expect_refused(const char *path, const char *const *settings, const char *word)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *rt = open_runtime(settings, &err);
    struct soq_model *model = NULL;

    cr_assert(rt != NULL, "%s", err.text);
    cr_expect_eq(soq__model_open(rt, soq__test_data(path), NULL, 64, &model, &err), -SOQ_EUNSUPPORTED, "%s", settings[1]);
    cr_expect(strstr(err.text, word), "%s: %s", settings[1], err.text);
    soq_runtime_free(rt);
}

Test(drafts, refused)
{
    expect_refused(GQA, (const char *[]){"decoding.drafter=self", "kv.policy=snapkv", NULL}, "[draft]");
    expect_refused(GQA, (const char *[]){"decoding.drafter=self", "kv.policy=window", "kv.window.capacity=64", NULL},
                   "[draft]");
    expect_refused(GQA, (const char *[]){mixed_plugins(), "draft.policy=shy", "decoding.drafter=self", NULL},
                   "[draft] policy = shy");
    expect_refused(GQA, (const char *[]){mixed_plugins(), "kv.policy=shy", "decoding.drafter=self", NULL}, "[kv] policy = shy");
    expect_refused(LLAMA,
                   (const char *[]){"kv.codec=int8", "draft.codec=kivi", "kv.pack_grid=32", "decoding.drafter=self", NULL},
                   "pack_grid");
    expect_refused(GQA, (const char *[]){mixed_plugins(), "decoding.sampler=sullen", "decoding.drafter=self", NULL}, "state");
}

/* A sampler that tells no probabilities drafts at temperature 0, or where tokens are to be the same. */
Test(drafts, sampler_without_probabilities)
{
    static const char *const accepts[] = {"decoding.draft_accept=ratio", "decoding.draft_accept=equal"};
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    for (int equal = 0; equal < 2; equal++) {
        struct fixture f = open_drafting(GQA, policies[SNAPKV], 3,
                                         (const char *[]){mixed_plugins(), "decoding.sampler=shy", accepts[equal], NULL});
        struct soq__sequence *seq = new_sequence(&f);

        for (int warm = 0; warm < 2; warm++) {
            struct soq__job job = {
                .seq = seq, .prompt = ids, .n_prompt = N_PROMPT, .max_tokens = 8, .ignore_eog = true, .sampling = greedy()};

            job.sampling.temperature = (float)warm;
            soq__engine_run(f.model->engine, &job, NULL, NULL);
            cr_expect_eq(job.rc, warm && !equal ? -SOQ_EUNSUPPORTED : 0, "%s", job.err.text);
            cr_expect(!job.rc || (strstr(job.err.text, "temperature") && strstr(job.err.text, "shy")), "%s", job.err.text);
        }
        soq__sequence_free(seq);
        close_model(&f);
    }
}
