/* Checks of samplers: which token is taken, with which probability, and that nothing but the row decides. */
#include <stdlib.h>

#include "check/kit.h"
#include "check/table.h"

enum { THREADS = 4 };

/* A row of logits in guarded memory. */
struct sampler {
    struct soq__kit *kit;
    const struct soq_sampler_ops *ops;
    void *self, *state;
    struct soq_sampling sampling; /* the defaults, then as the check wants them */
    struct soq_sampler_row row;
    float *raw; /* [n_vocab] logits as they came */
};

static void resize(struct sampler *s, uint32_t n_vocab)
{
    s->row.n_vocab = n_vocab;
    s->row.logits = soq__kit_guard(s->kit, n_vocab * sizeof(float), sizeof(float));
    s->row.scratch = soq__kit_guard(s->kit, n_vocab * sizeof(uint32_t), sizeof(uint32_t));
    s->raw = realloc(s->raw, n_vocab * sizeof(float));
    SOQ__EXPECT(s->kit, s->raw, "the kit is out of memory");
    soq__kit_fill(s->raw, n_vocab, n_vocab);
    for (uint32_t t = 0; t < n_vocab; t++)
        s->raw[t] *= 8;
}

static void start(struct sampler *s, struct soq__kit *kit, uint32_t n_vocab)
{
    struct soq_sampling empty = {.top_k = 0}, *box;
    struct soq_error *err;

    *s = (struct sampler){.kit = kit};
    soq__kit_open(kit);
    s->ops = kit->role->ops.sampler;
    s->self = soq__kit_instance(kit);
    s->state = soq__kit_guard(kit, s->ops->state_size, 8);
    box = soq__kit_box(kit, &empty, sizeof empty);
    err = soq__kit_error(kit);
    soq__kit_ok(kit, "defaults", s->ops->defaults(s->self, box, err), err);
    soq__kit_unbox(kit, box, &s->sampling, sizeof s->sampling);
    resize(s, n_vocab);
}

/* All filters and penalties off. */
static void plain(struct sampler *s, float temperature)
{
    s->sampling = (struct soq_sampling){.struct_size = sizeof s->sampling,
                                        .temperature = temperature,
                                        .top_p = 1,
                                        .repeat_penalty = 1,
                                        .bias_stride = sizeof(struct soq_logit_bias)};
}

static int check(struct sampler *s, struct soq_error *err)
{
    return s->ops->check(s->self, soq__kit_box(s->kit, &s->sampling, sizeof s->sampling), s->row.n_vocab, err);
}

static int sample(struct sampler *s, struct soq_sampled *sampled_out, struct soq_error *err)
{
    struct soq_sampled empty = {.token = -77}, *box = soq__kit_box(s->kit, &empty, sizeof empty);
    void *sampling = soq__kit_box(s->kit, &s->sampling, sizeof s->sampling), *row;
    int rc;

    memcpy(s->row.logits, s->raw, s->row.n_vocab * sizeof(float));
    row = soq__kit_box(s->kit, &s->row, sizeof s->row);
    s->kit->host.no_alloc = true;
    rc = s->ops->sample(s->self, s->state, sampling, row, box, err);
    s->kit->host.no_alloc = false;
    soq__kit_unbox(s->kit, box, sampled_out, sizeof *sampled_out);
    soq__kit_unbox(s->kit, sampling, NULL, sizeof s->sampling);
    soq__kit_unbox(s->kit, row, NULL, sizeof s->row);
    return rc;
}

static struct soq_sampled take(struct sampler *s)
{
    struct soq_error *err = soq__kit_error(s->kit);
    struct soq_sampled sampled;

    soq__kit_ok(s->kit, "sample", sample(s, &sampled, err), err);
    SOQ__EXPECT(s->kit, sampled.token >= 0 && (uint32_t)sampled.token < s->row.n_vocab, "took token %d of %u", sampled.token,
                s->row.n_vocab);
    SOQ__EXPECT(s->kit, sampled.n_candidates >= 1 && sampled.n_candidates <= s->row.n_vocab, "%u candidates of %u",
                sampled.n_candidates, s->row.n_vocab);
    return sampled;
}

static void expect_refused(struct sampler *s, const char *what)
{
    struct soq_error *err = soq__kit_error(s->kit);
    struct soq_sampled sampled;

    soq__kit_refused(s->kit, what, sample(s, &sampled, err), -SOQ_EINVAL, err);
    SOQ__EXPECT(s->kit, sampled.token == -77, "%s: the failed call wrote its result", what);
}

/* ---- Parameters */

static const struct {
    const char *name;
    size_t offset;
    float values[6];
} wrong[] = {
    {"temperature", offsetof(struct soq_sampling, temperature), {NAN, -1, INFINITY, -INFINITY, NAN, NAN}},
    {"top_p", offsetof(struct soq_sampling, top_p), {NAN, -0.1f, 1.1f, INFINITY, NAN, NAN}},
    {"min_p", offsetof(struct soq_sampling, min_p), {NAN, -0.1f, 1.1f, INFINITY, NAN, NAN}},
    {"repeat_penalty", offsetof(struct soq_sampling, repeat_penalty), {NAN, 0, -1, INFINITY, NAN, NAN}},
    {"presence_penalty", offsetof(struct soq_sampling, presence_penalty), {NAN, INFINITY, -INFINITY, NAN, NAN, NAN}},
    {"frequency_penalty", offsetof(struct soq_sampling, frequency_penalty), {NAN, INFINITY, -INFINITY, NAN, NAN, NAN}},
};

static void check_parameters(struct soq__kit *kit)
{
    struct soq_logit_bias outside = {.token = 100, .bias = 1}, nan = {.token = 1, .bias = NAN};
    struct sampler s;
    struct soq_error *err;

    start(&s, kit, 100);
    err = soq__kit_error(kit);
    soq__kit_ok(kit, "check of the defaults", check(&s, err), err);
    for (size_t i = 0; i < SOQ__COUNT(wrong); i++) {
        for (size_t k = 0; k < SOQ__COUNT(wrong[i].values); k++) {
            struct soq_sampling before = s.sampling;

            memcpy((char *)&s.sampling + wrong[i].offset, &wrong[i].values[k], sizeof(float));
            soq__kit_at(kit, "%s = %g", wrong[i].name, (double)wrong[i].values[k]);
            err = soq__kit_error(kit);
            soq__kit_refused(kit, "check", check(&s, err), -SOQ_EINVAL, err);
            SOQ__EXPECT(kit, strstr(err->text, wrong[i].name), "the message does not name it: %s", err->text);
            s.sampling = before;
        }
    }
    plain(&s, 1);
    s.sampling.n_bias = 1;
    s.sampling.bias = &outside;
    soq__kit_at(kit, "a bias for token 100 of 100");
    soq__kit_refused(kit, "check", check(&s, err), -SOQ_EINVAL, err);
    s.sampling.bias = &nan;
    soq__kit_at(kit, "a bias of NaN");
    soq__kit_refused(kit, "check", check(&s, err), -SOQ_EINVAL, err);
}

/* ---- Greedy */

static uint32_t best(const struct sampler *s)
{
    uint32_t best = 0;

    for (uint32_t t = 1; t < s->row.n_vocab; t++)
        best = s->raw[t] > s->raw[best] ? t : best;
    return best;
}

static double logprob(const struct sampler *s, uint32_t token)
{
    double sum = 0, max = (double)s->raw[best(s)];

    for (uint32_t t = 0; t < s->row.n_vocab; t++)
        sum += exp((double)s->raw[t] - max);
    return (double)s->raw[token] - max - log(sum);
}

static const uint32_t vocabularies[] = {1, 2, 31, 32, 33, 1000, 32003, 128256};

static void check_greedy(struct soq__kit *kit)
{
    struct sampler s;

    start(&s, kit, 1);
    for (size_t i = 0; i < 2 * SOQ__COUNT(vocabularies); i++) {
        struct soq_sampled sampled;

        resize(&s, vocabularies[i / 2]);
        plain(&s, 0);
        if (i % 2)
            s.raw[s.row.n_vocab - 1] = 99;
        soq__kit_at(kit, "temperature 0, %u tokens", s.row.n_vocab);
        sampled = take(&s);
        SOQ__EXPECT(kit, s.raw[sampled.token] == s.raw[best(&s)], "took token %d (%g), the best is %u (%g)", sampled.token,
                    (double)s.raw[sampled.token], best(&s), (double)s.raw[best(&s)]);
    }
}

static void check_logprob(struct soq__kit *kit)
{
    struct sampler s;

    start(&s, kit, 1);
    for (size_t i = 0; i < 4 * SOQ__COUNT(vocabularies); i++) {
        struct soq_sampled sampled;
        double want;

        resize(&s, vocabularies[i / 4]);
        plain(&s, (float)(i % 4) * 0.7f);
        s.row.position = (uint32_t)i;
        soq__kit_at(kit, "temperature %g, %u tokens", (double)s.sampling.temperature, s.row.n_vocab);
        sampled = take(&s);
        want = logprob(&s, (uint32_t)sampled.token);
        SOQ__EXPECT(kit, fabs((double)sampled.logprob - want) <= 1e-4 * (1 + fabs(want)),
                    "token %d: log-probability %.7g, f64 gives %.7g", sampled.token, (double)sampled.logprob, want);
    }
}

/* ---- Masks and bans */

static void check_mask(struct soq__kit *kit)
{
    struct sampler s;

    start(&s, kit, 100);
    for (uint32_t n = 100; n <= 131; n += 31) {
        uint32_t *mask = soq__kit_guard(kit, (n + 31) / 32 * sizeof *mask, sizeof *mask);

        resize(&s, n);
        s.row.mask = mask;
        for (uint32_t only = 0; only < n; only += 11) {
            memset(mask, 0, (n + 31) / 32 * sizeof *mask);
            mask[only / 32] = 1u << only % 32;
            for (int t = 0; t < 2; t++) {
                plain(&s, (float)t);
                soq__kit_at(kit, "only token %u of %u is allowed, temperature %d", only, n, t);
                SOQ__EXPECT(kit, (uint32_t)take(&s).token == only, "took another");
            }
        }
        memset(mask, 0x55, (n + 31) / 32 * sizeof *mask);
        plain(&s, 2);
        soq__kit_at(kit, "even tokens of %u are allowed", n);
        for (s.row.position = 0; s.row.position < 300; s.row.position++)
            SOQ__EXPECT(kit, take(&s).token % 2 == 0, "took an odd one at position %u", s.row.position);
        memset(mask, 0, (n + 31) / 32 * sizeof *mask);
        soq__kit_at(kit, "no token of %u is allowed", n);
        expect_refused(&s, "sample");
    }
}

static void check_bias(struct soq__kit *kit)
{
    struct wide {
        struct soq_logit_bias bias;
        uint32_t later;
    } bans[3] = {{{.token = 7, .bias = -INFINITY}, 1}, {{.token = 0, .bias = 50}, 2}, {{.token = 9, .bias = 0}, 3}};
    struct soq_error *err;
    struct sampler s;

    start(&s, kit, 10);
    plain(&s, 0);
    s.sampling.n_bias = 3;
    s.sampling.bias_stride = sizeof bans[0];
    s.sampling.bias = &bans[0].bias;
    s.raw[7] = 30;
    s.raw[0] = -10;
    err = soq__kit_error(kit);
    soq__kit_ok(kit, "check", check(&s, err), err);
    soq__kit_at(kit, "token 7 is banned, token 0 gets 50 more, in a stride");
    SOQ__EXPECT(kit, take(&s).token == 0, "took another than token 0");
    bans[1].bias.bias = -INFINITY;
    soq__kit_at(kit, "tokens 0 and 7 are banned");
    plain(&s, 3);
    s.sampling.n_bias = 3;
    s.sampling.bias_stride = sizeof bans[0];
    s.sampling.bias = &bans[0].bias;
    for (s.row.position = 0; s.row.position < 300; s.row.position++) {
        int32_t token = take(&s).token;

        SOQ__EXPECT(kit, token != 7 && token != 0, "took token %d at position %u", token, s.row.position);
    }
}

/* ---- What is no number */

static void check_nan(struct soq__kit *kit)
{
    struct sampler s;

    start(&s, kit, 50);
    for (int t = 0; t < 2; t++) {
        resize(&s, 50);
        plain(&s, (float)t);
        soq__kit_at(kit, "temperature %d, a NaN among the logits", t);
        s.raw[49] = NAN;
        expect_refused(&s, "sample");
        soq__kit_at(kit, "temperature %d, all logits are -inf", t);
        for (uint32_t i = 0; i < 50; i++)
            s.raw[i] = -INFINITY;
        expect_refused(&s, "sample");
        soq__kit_at(kit, "temperature %d, one logit is not -inf", t);
        s.raw[33] = -4;
        for (s.row.position = 0; s.row.position < 50; s.row.position++)
            SOQ__EXPECT(kit, take(&s).token == 33, "took another");
    }
}

/* ---- Distribution */

enum { TOKENS = 12, SAMPLES = 20000 };
/* Chi-square of 11 degrees of freedom is above this once in a million. */
#define CHI_SQUARE_MAX 48.7

static void draw_many(struct sampler *s, uint32_t counts[TOKENS])
{
    memset(counts, 0, TOKENS * sizeof *counts);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        s->row.position = i;
        counts[take(s).token]++;
    }
}

static void expect_distribution(struct sampler *s, const uint32_t counts[TOKENS], double temperature)
{
    double p[TOKENS], sum = 0, chi = 0;

    for (uint32_t t = 0; t < TOKENS; t++)
        sum += p[t] = exp((double)s->raw[t] / temperature);
    for (uint32_t t = 0; t < TOKENS; t++) {
        double want = p[t] / sum * SAMPLES;

        chi += (counts[t] - want) * (counts[t] - want) / want;
    }
    SOQ__EXPECT(s->kit, chi < CHI_SQUARE_MAX, "chi-square of %d draws from %d tokens is %.1f", SAMPLES, TOKENS, chi);
}

static void check_distribution(struct soq__kit *kit)
{
    static const float temperatures[] = {1.0f, 0.6f, 1.7f};
    uint32_t counts[TOKENS];
    struct sampler s;

    start(&s, kit, TOKENS);
    for (uint32_t t = 0; t < TOKENS; t++)
        s.raw[t] = (float)(t * 5 % TOKENS) * 0.25f;
    for (size_t i = 0; i < SOQ__COUNT(temperatures); i++) {
        plain(&s, temperatures[i]);
        s.sampling.seed = i;
        soq__kit_at(kit, "temperature %g", (double)temperatures[i]);
        draw_many(&s, counts);
        expect_distribution(&s, counts, (double)temperatures[i]);
    }
}

/* ---- The distribution that it tells */

static int tell(struct sampler *s, struct soq_distribution *out, struct soq_error *err)
{
    void *box, *sampling = soq__kit_box(s->kit, &s->sampling, sizeof s->sampling), *row;
    int rc;

    memcpy(s->row.logits, s->raw, s->row.n_vocab * sizeof(float));
    *out =
        (struct soq_distribution){.p = soq__kit_guard(s->kit, s->row.n_vocab * sizeof(float), sizeof(float)), .log_sum = -77};
    box = soq__kit_box(s->kit, out, sizeof *out);
    row = soq__kit_box(s->kit, &s->row, sizeof s->row);
    s->kit->host.no_alloc = true;
    rc = s->ops->distribution(s->self, s->state, sampling, row, box, err);
    s->kit->host.no_alloc = false;
    soq__kit_unbox(s->kit, box, out, sizeof *out);
    soq__kit_unbox(s->kit, sampling, NULL, sizeof s->sampling);
    soq__kit_unbox(s->kit, row, NULL, sizeof s->row);
    return rc;
}

/* Probabilities, and as many of them as candidates; the logits are those that came. */
static struct soq_distribution told(struct sampler *s)
{
    struct soq_error *err = soq__kit_error(s->kit);
    struct soq_distribution d;
    uint32_t n = s->row.n_vocab, left = 0;
    double sum = 0, want = logprob(s, best(s));

    soq__kit_ok(s->kit, "distribution", tell(s, &d, err), err);
    for (uint32_t t = 0; t < n; t++) {
        SOQ__EXPECT(s->kit, d.p[t] >= 0 && d.p[t] <= 1, "token %u has the probability %g", t, (double)d.p[t]);
        sum += (double)d.p[t];
        left += d.p[t] > 0;
    }
    SOQ__EXPECT(s->kit, fabs(sum - 1) <= 1e-4, "the probabilities of %u tokens add up to %.7g", n, sum);
    SOQ__EXPECT(s->kit, left >= 1 && left <= d.n_candidates && d.n_candidates <= n, "%u candidates, %u have a probability",
                d.n_candidates, left);
    SOQ__EXPECT(s->kit, memcmp(s->row.logits, s->raw, n * sizeof(float)) == 0, "the logits were changed");
    SOQ__EXPECT(s->kit, fabs((double)s->raw[best(s)] - d.log_sum - want) <= 1e-4 * (1 + fabs(want)),
                "log_sum is %.7g; f64 gives %.7g", d.log_sum, (double)s->raw[best(s)] - want);
    return d;
}

/* Draws come as told. */
static void expect_told(struct sampler *s)
{
    uint32_t counts[TOKENS];
    struct soq_distribution d = told(s);
    double chi = 0;

    draw_many(s, counts);
    for (uint32_t t = 0; t < TOKENS; t++) {
        double want = (double)d.p[t] * SAMPLES;

        SOQ__EXPECT(s->kit, want > 0 || !counts[t], "token %u was drawn, its probability is told to be 0", t);
        chi += want > 0 ? (counts[t] - want) * (counts[t] - want) / want : 0;
    }
    SOQ__EXPECT(s->kit, chi < CHI_SQUARE_MAX, "chi-square of %d draws against the probabilities is %.1f", SAMPLES, chi);
}

static void check_told(struct soq__kit *kit)
{
    static const int32_t history[] = {3, 3, 5, 11};
    struct soq_logit_bias bias = {.token = 7, .bias = 1.5f};
    struct sampler s;

    start(&s, kit, TOKENS);
    if (!s.ops->distribution)
        soq__kit_skip(kit, "does not tell what it draws from: no drafts beyond temperature 0");
    for (uint32_t t = 0; t < TOKENS; t++)
        s.raw[t] = (float)(t * 5 % TOKENS) * 0.3f;
    for (int i = 0; i < 8; i++) {
        plain(&s, 1.3f);
        s.sampling.top_k = i & 1 ? 9 : 0;
        s.sampling.min_p = i & 2 ? 0.1f : 0;
        s.sampling.top_p = i & 4 ? 0.9f : 1;
        soq__kit_at(kit, "top_k = %d, min_p = %g, top_p = %g", s.sampling.top_k, (double)s.sampling.min_p,
                    (double)s.sampling.top_p);
        expect_told(&s);
    }
    plain(&s, 0.8f);
    s.row.history = history;
    s.row.n_history = SOQ__COUNT(history);
    s.sampling.repeat_last_n = -1;
    s.sampling.repeat_penalty = 1.4f;
    s.sampling.frequency_penalty = 0.2f;
    s.sampling.n_bias = 1;
    s.sampling.bias = &bias;
    soq__kit_at(kit, "penalties and a bias");
    expect_told(&s);
    s.row.n_history = 0;
    for (size_t i = 0; i < 2 * SOQ__COUNT(vocabularies); i++) {
        resize(&s, vocabularies[i / 2]);
        plain(&s, (float)(i % 2));
        soq__kit_at(kit, "%u tokens, temperature %zu", s.row.n_vocab, i % 2);
        SOQ__EXPECT(kit, told(&s).p[best(&s)] > 0, "the best token has no probability");
    }
}

static void check_told_nan(struct soq__kit *kit)
{
    struct soq_error *err;
    struct soq_distribution d;
    struct sampler s;

    start(&s, kit, 50);
    if (!s.ops->distribution)
        soq__kit_skip(kit, "does not tell what it draws from");
    plain(&s, 1);
    s.raw[49] = NAN;
    err = soq__kit_error(kit);
    soq__kit_at(kit, "a NaN among the logits");
    soq__kit_refused(kit, "distribution", tell(&s, &d, err), -SOQ_EINVAL, err);
    SOQ__EXPECT(kit, d.log_sum == -77, "the failed call wrote its result");
}

/* Logits 0, 1, ..., 11 in steps of a half: which tokens may be drawn is known. */
static void check_filters(struct soq__kit *kit)
{
    static const struct {
        const char *what;
        int32_t top_k;
        float top_p, min_p;
        uint32_t left;
    } filters[] = {
        {"top_k = 3", 3, 1, 0, 3},      {"top_k = 1", 1, 1, 0, 1},      {"top_k = 99", 99, 1, 0, TOKENS},
        {"top_p = 0.3", 0, 0.3f, 0, 1}, {"top_p = 0.6", 0, 0.6f, 0, 2}, {"top_p = 0.8", 0, 0.8f, 0, 4},
        {"min_p = 0.5", 0, 1, 0.5f, 2}, {"min_p = 0.2", 0, 1, 0.2f, 4}, {"min_p = 1", 0, 1, 1, 1},
    };
    uint32_t counts[TOKENS];
    struct sampler s;

    start(&s, kit, TOKENS);
    for (uint32_t t = 0; t < TOKENS; t++)
        s.raw[t] = (float)t * 0.5f;
    for (size_t i = 0; i < SOQ__COUNT(filters); i++) {
        plain(&s, 1);
        s.sampling.top_k = filters[i].top_k;
        s.sampling.top_p = filters[i].top_p;
        s.sampling.min_p = filters[i].min_p;
        soq__kit_at(kit, "%s", filters[i].what);
        draw_many(&s, counts);
        for (uint32_t t = 0; t < TOKENS; t++) {
            bool in = t >= TOKENS - filters[i].left;

            SOQ__EXPECT(kit, in ? counts[t] > 0 || filters[i].left == TOKENS : counts[t] == 0,
                        "token %u, %s, was drawn %u times", t, in ? "which is in" : "which is out", counts[t]);
        }
    }
}

/* ---- Seeds: a function of (seed, position), whatever was drawn before and by whom */

struct seeds {
    struct sampler *s;
    int32_t tokens[THREADS][200];
    float told[THREADS][TOKENS]; /* probabilities; zeros where the sampler does not tell them */
};

static void draw_there(void *arg, uint32_t index)
{
    struct seeds *seeds = arg;
    struct sampler *s = seeds->s;
    float logits[TOKENS];
    uint32_t scratch[TOKENS];
    struct soq_sampler_row row = {.struct_size = sizeof row, .n_vocab = TOKENS, .logits = logits, .scratch = scratch};
    struct soq_sampled sampled = {.struct_size = sizeof sampled};
    struct soq_distribution d = {.struct_size = sizeof d, .p = seeds->told[index]};
    struct soq_error err = SOQ_ERROR_INIT;

    for (row.position = 0; row.position < 200; row.position++) {
        memcpy(logits, s->raw, sizeof logits);
        soq__kit_ok(s->kit, "sample", s->ops->sample(s->self, s->state, &s->sampling, &row, &sampled, &err), &err);
        seeds->tokens[index][row.position] = sampled.token;
        memcpy(logits, s->raw, sizeof logits);
        if (s->ops->distribution)
            soq__kit_ok(s->kit, "distribution", s->ops->distribution(s->self, s->state, &s->sampling, &row, &d, &err), &err);
    }
}

static void check_seeds(struct soq__kit *kit)
{
    struct sampler s;
    struct seeds seeds = {.s = &s};
    int32_t forward[200], differ = 0;
    const float *alone;

    start(&s, kit, TOKENS);
    if (s.ops->state_size)
        soq__kit_skip(kit, "keeps a state, so that the order of draws may matter");
    plain(&s, 1.5f);
    s.sampling.seed = 42;
    for (s.row.position = 0; s.row.position < 200; s.row.position++)
        forward[s.row.position] = take(&s).token;
    soq__kit_at(kit, "backwards");
    for (uint32_t i = 200; i-- > 0;) {
        s.row.position = i;
        SOQ__EXPECT(kit, take(&s).token == forward[i], "another token at position %u", i);
    }
    soq__kit_at(kit, "%d threads at once", THREADS);
    soq__kit_threads(kit, THREADS, draw_there, &seeds);
    alone = s.ops->distribution ? told(&s).p : seeds.told[0];
    for (uint32_t i = 0; i < THREADS; i++) {
        SOQ__EXPECT(kit, memcmp(seeds.tokens[i], forward, sizeof forward) == 0, "other tokens on thread %u", i);
        SOQ__EXPECT(kit, memcmp(seeds.told[i], alone, sizeof seeds.told[i]) == 0, "other probabilities on thread %u", i);
    }
    soq__kit_at(kit, "another seed");
    s.sampling.seed = 43;
    for (s.row.position = 0; s.row.position < 200; s.row.position++)
        differ += take(&s).token != forward[s.row.position];
    SOQ__EXPECT(kit, differ > 50, "only %d of 200 tokens differ", differ);
}

/* ---- Penalties */

static void check_penalties(struct soq__kit *kit)
{
    static const int32_t history[] = {3, 3, 5, -1, 999, 3};
    struct sampler s;

    start(&s, kit, TOKENS);
    for (uint32_t t = 0; t < TOKENS; t++)
        s.raw[t] = t == 3 ? 2.0f : t == 5 ? 1.9f : 0.1f;
    s.row.history = history;
    s.row.n_history = SOQ__COUNT(history);
    plain(&s, 0);
    s.sampling.repeat_last_n = -1;
    soq__kit_at(kit, "no penalty");
    SOQ__EXPECT(kit, take(&s).token == 3, "took another than the best");
    s.sampling.frequency_penalty = 0.5f;
    soq__kit_at(kit, "frequency_penalty = 0.5; token 3 occurred three times, token 5 once");
    SOQ__EXPECT(kit, take(&s).token == 5, "took another than token 5");
    s.sampling.frequency_penalty = 0;
    s.sampling.repeat_penalty = 100;
    soq__kit_at(kit, "repeat_penalty = 100; tokens 3 and 5 occurred");
    SOQ__EXPECT(kit, take(&s).token != 3 && take(&s).token != 5, "took one of them");
    s.sampling.repeat_last_n = 1;
    soq__kit_at(kit, "repeat_penalty = 100 for the last token, 3");
    SOQ__EXPECT(kit, take(&s).token == 5, "took another than token 5");
    s.sampling.repeat_last_n = 0;
    soq__kit_at(kit, "repeat_penalty = 100 for no token");
    SOQ__EXPECT(kit, take(&s).token == 3, "took another than token 3");
}

/* ---- Work */

int soq__kit_sampler_work(struct soq__kit *kit, void *self, struct soq_error *err)
{
    enum { N = 40 };
    const struct soq_sampler_ops *ops = kit->role->ops.sampler;
    struct soq_sampling sampling = {.top_k = 0}, *box = soq__kit_box(kit, &sampling, sizeof sampling);
    float logits[N];
    uint32_t scratch[N];
    struct soq_sampler_row row = {.n_vocab = N, .logits = logits, .scratch = scratch};
    struct soq_sampled sampled = {.token = 0}, *sampled_box = soq__kit_box(kit, &sampled, sizeof sampled);
    int rc = ops->defaults(self, box, err);

    soq__kit_unbox(kit, box, &sampling, sizeof sampling);
    soq__kit_fill(logits, N, 1);
    if (!rc)
        rc = ops->check(self, soq__kit_box(kit, &sampling, sizeof sampling), N, err);
    if (!rc)
        rc = ops->sample(self, soq__kit_guard(kit, ops->state_size, 8), soq__kit_box(kit, &sampling, sizeof sampling),
                         soq__kit_box(kit, &row, sizeof row), sampled_box, err);
    soq__kit_unbox(kit, sampled_box, &sampled, sizeof sampled);
    return rc;
}

static const struct soq__check checks[] = {
    {"sampler.parameters", SOQ_ROLE_SAMPLER, "its defaults are valid; what is out of range is refused by name",
     check_parameters, "skew.exact"},
    {"sampler.greedy", SOQ_ROLE_SAMPLER, "temperature 0 takes the largest logit", check_greedy, "skew.exact"},
    {"sampler.logprob", SOQ_ROLE_SAMPLER, "log-probabilities are the model's, within 1e-4 of f64", check_logprob, "skew.exact"},
    {"sampler.mask", SOQ_ROLE_SAMPLER, "only allowed tokens are taken; where none is, it says so", check_mask, "skew.exact"},
    {"sampler.bias", SOQ_ROLE_SAMPLER, "biases are added, bans keep", check_bias, "skew.exact"},
    {"sampler.nan", SOQ_ROLE_SAMPLER, "what is no number is refused, what has no probability not taken", check_nan,
     "skew.exact"},
    {"sampler.distribution", SOQ_ROLE_SAMPLER, "tokens come with their probabilities", check_distribution, "skew.exact"},
    {"sampler.told", SOQ_ROLE_SAMPLER, "the probabilities that it tells are those of its draws", check_told,
     "sampler.distribution"},
    {"sampler.told_nan", SOQ_ROLE_SAMPLER, "for what is no number it tells no probabilities", check_told_nan, "sampler.nan"},
    {"sampler.filters", SOQ_ROLE_SAMPLER, "top-k, top-p and min-p leave the tokens that they should", check_filters,
     "sampler.distribution"},
    {"sampler.penalties", SOQ_ROLE_SAMPLER, "penalties count the history that they should", check_penalties, "sampler.greedy"},
    {"sampler.seeds", SOQ_ROLE_SAMPLER, "a token is a function of seed and position, on any thread", check_seeds, "skew.exact"},
};
const struct soq__check_family soq__checks_sampler = SOQ__FAMILY(checks);
