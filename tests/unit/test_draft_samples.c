/* Drafts beyond temperature 0: the distribution of an answer is the full cache's, by samples against the exact one (10^5 of the
 * rule alone are in test_speculate.c); with draft_accept = equal, or with a lossy view that is the full one, the tokens are;
 * and the same seed gives the same tokens however rows are batched. */
#include <math.h>
#include <unistd.h>

#include "engine/admit.h"
#include "engine/draw.h"
#include "tests/unit/engine_fixture.h"
#include "tests/unit/tiny_model.h"

#define GQA "kv-golden/models/gqa.gguf"
#define N_PROMPT 97u
#define N_ANSWER 48u

static void make_ids_below(int32_t *ids, uint32_t n, uint32_t limit)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(3 + (i * 37 + i * i % 13) % (limit - 3));
}

static struct soq_sampling warm(uint64_t seed)
{
    struct soq_sampling s = greedy();

    s.temperature = 1;
    s.top_k = 40;
    s.top_p = 0.95f;
    s.repeat_penalty = 1.1f;
    s.repeat_last_n = 16;
    s.seed = seed;
    return s;
}

/* ---- The same tokens ----------------------------------------------------------------------------------------------------- */

struct told {
    int32_t tokens[N_ANSWER];
    float logprobs[N_ANSWER];
    uint32_t n_drafted, n_accepted;
};

/* Otherwise as many as there are processors. */
static void draw_on(struct soq__engine *e, uint32_t threads)
{
    struct soq__draw *d = &e->draw;
    size_t n_vocab = e->net.logits.cols;

    soq__draw_done(d);
    d->threads = threads;
    d->rows = soq__alloc_array(e->max_sequences + threads, sizeof *d->rows);
    d->scratch = soq__alloc_array(n_vocab * threads, sizeof *d->scratch);
    d->probabilities = soq__alloc_array(n_vocab * threads, sizeof *d->probabilities);
    cr_assert(d->rows && d->scratch && d->probabilities);
}

/* Preempts the job's sequence every few tokens, if it is asked to. */
static bool interfere(void *arg)
{
    struct soq__job *job = arg;
    uint32_t *next = job->arg;

    if (!*next || job->seq->engine->stepping || job->state != SOQ__JOB_RUNNING || job->seq->kv.n_committed < *next)
        return false;
    cr_assert_eq(soq__preempt(job->seq, NULL), 0);
    *next = job->seq->kv.n_committed + 9;
    return false;
}

/* threads: that draw; 0: as many as there are processors. */
static struct told tell_on(uint32_t threads, const char *const *settings, const struct soq_sampling *sampling, bool preempt)
{
    struct fixture f = open_model(GQA, settings);
    struct soq__sequence *seq = new_sequence(&f);
    struct told t = {0};
    uint32_t next = preempt ? 100 : 0;
    int32_t ids[N_PROMPT];
    struct soq__job job = {.seq = seq,
                           .prompt = ids,
                           .n_prompt = N_PROMPT,
                           .max_tokens = N_ANSWER,
                           .ignore_eog = true,
                           .sampling = *sampling,
                           .arg = &next};

    if (threads)
        draw_on(f.model->engine, threads);
    make_ids_below(ids, N_PROMPT, 280);
    soq__engine_run(f.model->engine, &job, interfere, &job);
    cr_assert_eq(job.rc, 0, "%s", job.err.text);
    memcpy(t.tokens, seq->tokens + N_PROMPT, sizeof t.tokens);
    memcpy(t.logprobs, seq->logprobs + N_PROMPT, sizeof t.logprobs);
    t.n_drafted = job.n_drafted;
    t.n_accepted = job.n_accepted;
    soq__sequence_free(seq);
    close_model(&f);
    return t;
}

static struct told tell(const char *const *settings, uint64_t seed, bool preempt)
{
    const struct soq_sampling sampling = warm(seed);

    return tell_on(0, settings, &sampling, preempt);
}

static void expect_same(const struct told *a, const struct told *b, const char *what, uint64_t seed)
{
    cr_expect_eq(memcmp(a->tokens, b->tokens, sizeof a->tokens), 0, "seed %d: other tokens %s", (int)seed, what);
    for (uint32_t i = 0; i < N_ANSWER; i++)
        cr_expect(fabsf(a->logprobs[i] - b->logprobs[i]) < 1e-5f, "seed %d: log-probability %u is %g, not %g %s", (int)seed, i,
                  (double)b->logprobs[i], (double)a->logprobs[i], what);
}

Test(draft_samples, equal_tokens, .timeout = 120)
{
    static const char *const policies[] = {"draft.policy=snapkv capacity:48 window:16", "draft.policy=window capacity:32",
                                           "draft.policy=h2o capacity:48 recent:20 when:always every:7"};
    static const char *const drafts[] = {"decoding.draft_tokens=0", "decoding.draft_tokens=1", "decoding.draft_tokens=5"};

    for (uint64_t seed = 0; seed < 3; seed++) {
        struct told full = tell(NULL, seed, false);

        for (size_t i = 0; i < 3; i++) {
            struct told t =
                tell((const char *[]){"decoding.drafter=self", "decoding.draft_accept=equal", policies[i], drafts[seed], NULL},
                     seed, false);

            expect_same(&full, &t, policies[i], seed);
        }
    }
}

/* Where p is q every draft is accepted, drawn with the random number that the token would be drawn with. */
Test(draft_samples, the_same_view)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct told full = tell(NULL, seed, false);
        struct told t =
            tell((const char *[]){"decoding.drafter=self", "draft.policy=full", "decoding.draft_tokens=4", NULL}, seed, false);

        expect_same(&full, &t, "with a lossy view that is the full one", seed);
        cr_expect(t.n_drafted > 0 && t.n_accepted == t.n_drafted);
    }
}

Test(draft_samples, batches_do_not_show, .timeout = 120)
{
    static const char *const policies[] = {"draft.policy=snapkv capacity:48 window:8 when:always every:16",
                                           "draft.policy=window capacity:32"};

    for (size_t i = 0; i < 2; i++) {
        const char *settings[] = {"decoding.drafter=self", policies[i], "kv.block_tokens=8", "kv.preempt=swap", NULL, NULL};
        struct told alone = tell(settings, 7, false), t = tell(settings, 7, true);

        cr_expect(alone.n_accepted > 0 && alone.n_accepted < alone.n_drafted, "%u of %u", alone.n_accepted, alone.n_drafted);
        expect_same(&alone, &t, "when preempted", 7);
        settings[4] = "engine.chunk=5";
        t = tell(settings, 7, false);
        expect_same(&alone, &t, "in small chunks", 7);
    }
}

/* Rows behind a refused draft are drawn in vain, and how many there are depends on the number of threads. */
Test(draft_samples, threads_do_not_show, .timeout = 120)
{
    static const char *const accepts[] = {"decoding.draft_accept=ratio", "decoding.draft_accept=equal"};
    static const uint32_t threads[] = {2, 3, 8};

    for (int i = 0; i < 3; i++) {
        const char *settings[] = {"decoding.drafter=self", "draft.policy=window capacity:32", "decoding.draft_tokens=6",
                                  accepts[i % 2], NULL};
        const struct soq_sampling sampling = i < 2 ? warm(5) : greedy();
        struct told one = tell_on(1, settings, &sampling, false);

        cr_expect(one.n_accepted > 0 && one.n_accepted < one.n_drafted, "%u of %u", one.n_accepted, one.n_drafted);
        for (int t = 0; t < 3; t++) {
            struct told several = tell_on(threads[t], settings, &sampling, false);

            cr_expect_eq(memcmp(&several, &one, sizeof one), 0, "%s at temperature %g: something else on %u threads",
                         accepts[i % 2], (double)sampling.temperature, threads[t]);
        }
    }
}

/* ---- The same distribution ----------------------------------------------------------------------------------------------- */

enum { SAMPLES = 20000, WORDS = 6, LENGTH = 3, CELLS = WORDS * WORDS * WORDS, TINY_PROMPT = 20 };
/* A chi-square of 215 degrees of freedom is above this less than once in a million. */
#define CHI_SQUARE_MAX 330
#define TEMPERATURE 1.0f

/* All but WORDS tokens are banned. */
static const int32_t words[WORDS] = {4, 9, 17, 22, 30, 38};

static struct soq_sampling six_words(struct soq_logit_bias bans[TINY_VOCAB], uint64_t seed)
{
    struct soq_sampling s = greedy();
    uint32_t n = 0;

    for (int32_t t = 0, w = 0; t < (int32_t)TINY_VOCAB; t++) {
        if (w < WORDS && words[w] == t)
            w++;
        else
            bans[n++] = (struct soq_logit_bias){.token = t, .bias = -INFINITY};
    }
    s.temperature = TEMPERATURE;
    s.seed = seed;
    s.bias = bans;
    s.n_bias = n;
    s.bias_stride = sizeof *bans;
    return s;
}

/* The path of a model in a file; another call makes another model. */
static char *make_tiny(void)
{
    struct soq_buf b = SOQ_BUF_INIT;
    char *path;

    tiny_build(&b, NULL, NULL);
    path = tiny_file(b.data, b.len);
    soq__buf_done(&b);
    return path;
}

/* Probabilities of the words behind a prompt, with the full cache. */
static void next_words(struct soq__sequence *seq, const int32_t *ids, uint32_t n, double p[WORDS])
{
    struct collected c = {.from = n - 1, .rows = 1};
    double sum = 0;

    cr_assert_eq(run_ids(seq, ids, n, 0, &c, NULL), 0);
    for (int w = 0; w < WORDS; w++)
        sum += p[w] = exp((double)(c.logits[words[w]] - c.logits[words[0]]) / (double)TEMPERATURE);
    for (int w = 0; w < WORDS; w++)
        p[w] /= sum;
    soq__free(c.logits);
}

static void exact_distribution(const char *path, double p[CELLS])
{
    struct fixture f = open_model(path, NULL);
    struct soq__sequence *seq = new_sequence(&f);
    int32_t ids[TINY_PROMPT + LENGTH];
    double first[WORDS], second[WORDS], third[WORDS];

    make_ids_below(ids, TINY_PROMPT, TINY_VOCAB);
    next_words(seq, ids, TINY_PROMPT, first);
    for (int x = 0; x < WORDS; x++) {
        ids[TINY_PROMPT] = words[x];
        next_words(seq, ids, TINY_PROMPT + 1, second);
        for (int y = 0; y < WORDS; y++) {
            ids[TINY_PROMPT + 1] = words[y];
            next_words(seq, ids, TINY_PROMPT + 2, third);
            for (int z = 0; z < WORDS; z++)
                p[(x * WORDS + y) * WORDS + z] = first[x] * second[y] * third[z];
        }
    }
    soq__sequence_free(seq);
    close_model(&f);
}

static int number_of(int32_t token)
{
    int w = 0;

    while (words[w] != token)
        w++;
    return w;
}

Test(draft_samples, samples_come_from_the_full_cache, .timeout = 240)
{
    const char *settings[] = {"decoding.drafter=self",   "draft.policy=window capacity:4", "kv.block_tokens=32",
                              "decoding.draft_tokens=2", "backend.cpu.threads=1",          NULL};
    char *path = make_tiny();
    struct fixture f = open_model(path, settings);
    struct soq__sequence *seq = new_sequence(&f);
    struct soq_logit_bias bans[TINY_VOCAB];
    uint32_t counts[CELLS] = {0}, n_drafted = 0, n_accepted = 0;
    int32_t ids[TINY_PROMPT];
    double p[CELLS], chi = 0;

    make_ids_below(ids, TINY_PROMPT, TINY_VOCAB);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        struct soq__job job = {.seq = seq,
                               .prompt = ids,
                               .n_prompt = TINY_PROMPT,
                               .max_tokens = LENGTH,
                               .ignore_eog = true,
                               .sampling = six_words(bans, i)};
        const int32_t *t = seq->tokens + TINY_PROMPT;

        soq__engine_run(f.model->engine, &job, NULL, NULL);
        cr_assert_eq(job.rc, 0, "%s", job.err.text);
        n_drafted += job.n_drafted;
        n_accepted += job.n_accepted;
        counts[(number_of(t[0]) * WORDS + number_of(t[1])) * WORDS + number_of(t[2])]++;
    }
    soq__sequence_free(seq);
    close_model(&f);
    exact_distribution(path, p);
    unlink(path);
    free(path);
    for (int i = 0; i < CELLS; i++)
        chi += (counts[i] - p[i] * SAMPLES) * (counts[i] - p[i] * SAMPLES) / (p[i] * SAMPLES);
    cr_expect(chi < CHI_SQUARE_MAX, "chi-square of %d samples is %.1f", SAMPLES, chi);
    cr_expect(n_accepted > n_drafted / 4 && n_accepted < n_drafted * 19 / 20, "%u of %u drafts were accepted", n_accepted,
              n_drafted);
}
