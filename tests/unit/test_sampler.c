/* The sampler `standard`: exact sets, penalties by hand, the distribution of draws, and what it refuses. */
#include <criterion/criterion.h>
#include <math.h>

#include "philox.h"
#include "plugin_open.h"

enum { MAX_VOCAB = 4096 };

static const struct soq_sampler_ops *sampler(void)
{
    static const struct soq_sampler_ops *ops;

    if (!ops)
        ops = open_plugin("standard", SOQ_ROLE_SAMPLER)->ops;
    return ops;
}

/* Everything off: plain draws from the softmax. */
static struct soq_sampling neutral(void)
{
    return (struct soq_sampling){
        .struct_size = sizeof(struct soq_sampling),
        .temperature = 1,
        .top_p = 1,
        .repeat_penalty = 1,
        .repeat_last_n = 64,
        .seed = 1234,
        .bias_stride = sizeof(struct soq_logit_bias),
    };
}

static struct soq_sampler_row row_of(float *logits, uint32_t *scratch, uint32_t n_vocab)
{
    return (struct soq_sampler_row){
        .struct_size = sizeof(struct soq_sampler_row),
        .n_vocab = n_vocab,
        .logits = logits,
        .scratch = scratch,
    };
}

/* Samples from a copy of the logits; position, mask and history are those of `like`. */
static struct soq_sampled draw(const struct soq_sampling *s, const float *logits, uint32_t n,
                               const struct soq_sampler_row *like)
{
    float copy[MAX_VOCAB];
    uint32_t scratch[MAX_VOCAB];
    struct soq_sampler_row row = *like;
    struct soq_sampled out = {.struct_size = sizeof out};
    struct soq_error err = SOQ_ERROR_INIT;

    memcpy(copy, logits, n * sizeof *copy);
    memset(scratch, 0xa5, sizeof scratch);
    row.logits = copy;
    row.scratch = scratch;
    row.n_vocab = n;
    cr_assert_eq(sampler()->check(NULL, s, n, &err), 0, "%s", err.text);
    cr_assert_eq(sampler()->sample(NULL, NULL, s, &row, &out, &err), 0, "%s", err.text);
    return out;
}

static struct soq_sampled draw_at(const struct soq_sampling *s, const float *logits, uint32_t n, uint32_t position)
{
    struct soq_sampler_row like = {.struct_size = sizeof like, .position = position};

    return draw(s, logits, n, &like);
}

static uint64_t random_state = 88172645463325252u;

static double random_number(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) * 0x1p-53;
}

/* ---- Random numbers */

/* The known answers of the authors' library, Random123 (kat_vectors). */
Test(sampler, philox_known_answers)
{
    static const struct {
        struct philox counter;
        uint32_t key[2];
        struct philox want;
    } cases[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         {0xffffffff, 0xffffffff},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct philox got = philox4x32(cases[i].counter, cases[i].key[0], cases[i].key[1]);

        cr_assert_arr_eq(got.word, cases[i].want.word, sizeof got.word);
    }
    cr_assert_eq(philox_uniform(0, 0, 0), (double)(0x6627e8d5e169c58du >> 11) * 0x1p-53);
}

/* ---- The distribution that is told */

/* Sorts nothing and filters nothing fast: the chain by its definition, in double. */
static void slow_distribution(const struct soq_sampling *s, const float *logits, uint32_t n, double *p)
{
    bool in[MAX_VOCAB];
    double sum = 0, reached = 0;
    uint32_t order[MAX_VOCAB], left = s->top_k > 0 && (uint32_t)s->top_k < n ? (uint32_t)s->top_k : n;

    for (uint32_t i = 0; i < n; i++) { /* by logit, then id */
        uint32_t at = i;

        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
        in[i] = false;
    }
    for (uint32_t i = 0; i < left; i++)
        sum += exp((double)(logits[order[i]] - logits[order[0]]));
    for (uint32_t i = 0; i < left && (i == 0 || reached < (double)s->top_p * sum); i++) {
        double w = exp((double)(logits[order[i]] - logits[order[0]]));

        reached += w;
        in[order[i]] = w >= (double)s->min_p;
    }
    sum = 0;
    for (uint32_t t = 0; t < n; t++)
        sum += p[t] = in[t] ? exp((double)(logits[t] - logits[order[0]]) / (double)s->temperature) : 0;
    for (uint32_t t = 0; t < n; t++)
        p[t] /= sum;
}

static void expect_distribution(const struct soq_sampling *s, const float *logits, uint32_t n)
{
    float copy[MAX_VOCAB], p[MAX_VOCAB];
    uint32_t scratch[MAX_VOCAB];
    double want[MAX_VOCAB], sum = 0;
    struct soq_sampler_row row = row_of(copy, scratch, n);
    struct soq_distribution d = {.struct_size = sizeof d, .p = p};
    struct soq_error err = SOQ_ERROR_INIT;

    memcpy(copy, logits, n * sizeof *copy);
    cr_assert_eq(sampler()->distribution(NULL, NULL, s, &row, &d, &err), 0, "%s", err.text);
    cr_assert_arr_eq(copy, logits, n * sizeof *copy, "the logits stay as they are");
    slow_distribution(s, logits, n, want);
    for (uint32_t t = 0; t < n; t++) {
        cr_assert(fabs((double)p[t] - want[t]) <= 2e-6 * want[t] + 1e-12, "token %u of %u: %g, not %g", t, n, (double)p[t],
                  want[t]);
        sum += exp((double)logits[t] - d.log_sum);
    }
    cr_assert(fabs(sum - 1) < 1e-5, "log_sum: %g", sum);
}

Test(sampler, distribution_is_the_chain_by_its_definition)
{
    static const uint32_t sizes[] = {1, 2, 6, 100, 1500, MAX_VOCAB};
    float logits[MAX_VOCAB];

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (uint32_t round = 0; round < 12; round++) {
            struct soq_sampling s = neutral();

            for (uint32_t t = 0; t < sizes[i]; t++)
                logits[t] = (float)(random_number() * 8);
            s.temperature = round % 3 ? 0.7f : 1.9f;
            s.top_k = round & 1 ? 40 : 0;
            s.top_p = round & 2 ? 0.9f : 1;
            s.min_p = round & 4 ? 0.02f : 0;
            expect_distribution(&s, logits, sizes[i]);
        }
}

Test(sampler, distribution_of_penalties_and_greedy)
{
    static const float logits[] = {1, 2, 3, 4};
    static const int32_t history[] = {3, 3, 2};
    const double adjusted[] = {1, 2, 3 / 1.5 - 0.3, 4 / 1.5 - 0.6};
    struct soq_sampling s = neutral();
    float copy[4], p[4];
    uint32_t scratch[4];
    struct soq_sampler_row row = row_of(copy, scratch, 4);
    struct soq_distribution d = {.struct_size = sizeof d, .p = p};
    double sum = 0;

    memcpy(copy, logits, sizeof copy);
    row.history = history;
    row.n_history = 3;
    s.repeat_penalty = 1.5f;
    s.frequency_penalty = 0.3f;
    cr_assert_eq(sampler()->distribution(NULL, NULL, &s, &row, &d, NULL), 0);
    for (int t = 0; t < 4; t++)
        sum += exp(adjusted[t]);
    for (int t = 0; t < 4; t++)
        cr_assert_float_eq((double)p[t], exp(adjusted[t]) / sum, 1e-6);
    s.temperature = 0;
    cr_assert_eq(sampler()->distribution(NULL, NULL, &s, &row, &d, NULL), 0);
    cr_assert(p[0] == 0 && p[1] == 0 && p[2] == 0 && p[3] == 1 && d.n_candidates == 1);
}

/* ---- Greedy */

Test(sampler, temperature_zero_is_top_k_one)
{
    static const float logits[] = {1, 5, -2, 5, 4.999f, 5};
    struct soq_sampling cold = neutral(), one = neutral();

    cold.temperature = 0;
    one.top_k = 1;
    for (uint32_t position = 0; position < 100; position++) {
        struct soq_sampled a = draw_at(&cold, logits, 6, position), b = draw_at(&one, logits, 6, position);

        cr_assert_eq(a.token, 1, "the lowest id among equals");
        cr_assert_eq(b.token, 1);
        cr_assert_eq(a.n_candidates, 1);
        cr_assert_eq(a.logprob, b.logprob);
    }
}

Test(sampler, tiny_temperatures_are_finite)
{
    static const float temperatures[] = {1e-3f, 1e-30f, 1.4e-45f};
    float logits[3] = {-100, 80, 79};

    for (size_t i = 0; i < sizeof temperatures / sizeof temperatures[0]; i++) {
        struct soq_sampling s = neutral();

        s.temperature = temperatures[i];
        for (uint32_t position = 0; position < 100; position++) {
            struct soq_sampled got = draw_at(&s, logits, 3, position);

            cr_assert_eq(got.token, 1);
            cr_assert(isfinite(got.logprob));
        }
    }
    logits[2] = 80; /* a tie stays a draw, however cold */
    struct soq_sampling s = neutral();
    int32_t seen[3] = {0};
    s.temperature = 1e-30f;
    for (uint32_t position = 0; position < 200; position++)
        seen[draw_at(&s, logits, 3, position).token]++;
    cr_assert(seen[0] == 0 && seen[1] > 60 && seen[2] > 60);
}

/* ---- Distribution */

/* p is the exact distribution of the n tokens; 1e5 draws over positions, 1e5 over seeds. */
static void check_distribution(struct soq_sampling s, const float *logits, uint32_t n, const double *p, double limit)
{
    enum { DRAWS = 100000 };

    for (int by_seed = 0; by_seed < 2; by_seed++) {
        uint32_t seen[16] = {0};
        double chi = 0;

        for (uint32_t i = 0; i < DRAWS; i++) {
            if (by_seed)
                s.seed = (uint64_t)i << 20;
            seen[draw_at(&s, logits, n, by_seed ? 7 : i).token]++;
        }
        for (uint32_t t = 0; t < n; t++) {
            if (p[t] == 0)
                cr_assert_eq(seen[t], 0, "token %u has no probability", t);
            else
                chi += (seen[t] - p[t] * DRAWS) * (seen[t] - p[t] * DRAWS) / (p[t] * DRAWS);
        }
        cr_assert_lt(chi, limit, "chi-square is %g", chi);
    }
}

static void softmax(const float *logits, uint32_t n, double temperature, double *p)
{
    double sum = 0;

    for (uint32_t t = 0; t < n; t++)
        sum += p[t] = exp((double)logits[t] / temperature);
    for (uint32_t t = 0; t < n; t++)
        p[t] /= sum;
}

/* Limits: the 0.999 quantile of chi-square with n - 1 degrees of freedom. */
Test(sampler, draws_follow_the_softmax)
{
    static const float logits[8] = {0.5f, -1, 2, 0, 1.5f, -3, 1, -INFINITY};
    struct soq_sampling s = neutral();
    double p[8];

    softmax(logits, 8, 1, p);
    check_distribution(s, logits, 8, p, 22.46);
    s.temperature = 0.7f;
    softmax(logits, 8, 0.7, p);
    check_distribution(s, logits, 8, p, 22.46);
    s.temperature = 3;
    softmax(logits, 8, 3, p);
    check_distribution(s, logits, 8, p, 22.46);
}

/* Filters see probabilities before the temperature, and what they leave is drawn at the temperature. */
Test(sampler, filters_come_before_the_temperature)
{
    static const float logits[5] = {2, 1.8f, 1, -2, 1.5f}; /* p = .369 .302 .136 .007 .224 */
    static const float kept[5] = {2, 1.8f, -INFINITY, -INFINITY, 1.5f};
    struct soq_sampling s = neutral();
    double p[5];

    softmax(kept, 5, 2, p);
    s.temperature = 2; /* at which 0.8 of the mass would need the fourth token too */
    s.top_p = 0.8f;
    check_distribution(s, logits, 5, p, 13.82);
}

/* ---- Sets */

/* The reference: sorts, filters in order, in double. Marks members, returns how many. */
struct ranked {
    double logit;
    uint32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* margin_out: how far the nearest border of top-p or min-p was missed; rounding may decide below 1e-6. */
static uint32_t reference_set(const struct soq_sampling *s, const float *logits, uint32_t n, bool *in, double *margin_out)
{
    static struct ranked r[MAX_VOCAB];
    uint32_t count = 0, m = 0, kept = 0;
    double sum = 0, reached = 0;

    for (uint32_t t = 0; t < n; t++) {
        in[t] = false;
        if (logits[t] > -INFINITY)
            r[count++] = (struct ranked){(double)logits[t], t};
    }
    qsort(r, count, sizeof *r, by_rank);
    if (s->top_k > 0 && (uint32_t)s->top_k < count)
        count = (uint32_t)s->top_k;
    for (uint32_t i = 0; i < count; i++)
        sum += exp(r[i].logit - r[0].logit);
    *margin_out = 1;
    for (m = 0; m < count && (m == 0 || s->top_p >= 1 || reached < (double)s->top_p); m++) {
        reached += exp(r[m].logit - r[0].logit) / sum;
        if (s->top_p < 1)
            *margin_out = fmin(*margin_out, fabs(reached - (double)s->top_p));
    }
    for (uint32_t i = 0; i < m; i++) {
        double p = exp(r[i].logit - r[0].logit);

        *margin_out = fmin(*margin_out, i > 0 ? fabs(p / (double)s->min_p - 1) : 1);
        in[r[i].id] = p >= (double)s->min_p;
        kept += in[r[i].id];
    }
    return kept;
}

Test(sampler, sets_by_hand)
{
    static const float logits[5] = {0, 0.6931472f, -0.6931472f, 0.6931472f, 0}; /* p = 2 4 1 4 2, / 13 */
    static const struct {
        int32_t top_k;
        float top_p, min_p;
        const char *want; /* members */
    } cases[] = {
        {0, 1, 0, "01234"},        {99, 1, 0, "01234"},         {-1, 1, 0, "01234"},
        {5, 1, 0, "01234"},        {4, 1, 0, "0134"},           {3, 1, 0, "013"},
        {2, 1, 0, "13"},           {0, 0.3f, 0, "1"},           {0, 0.31f, 0, "13"},
        {0, 8.01f / 13, 0, "013"}, {0, 10.01f / 13, 0, "0134"}, {0, 0.999f, 0, "01234"},
        {0, 1e-6f, 0, "1"},        {0, 1, 0.49f, "0134"},       {0, 1, 0.51f, "13"},
        {0, 1, 1, "13"},           {0, 1, 0.24f, "01234"},      {3, 0.79f, 0, "13"},
        {3, 0.81f, 0, "013"},      {4, 0.95f, 0.6f, "13"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct soq_sampling s = neutral();
        char seen[6] = "";
        bool hit[5] = {0};
        uint32_t n = 0;

        s.top_k = cases[i].top_k;
        s.top_p = cases[i].top_p;
        s.min_p = cases[i].min_p;
        s.temperature = 100; /* all members come up */
        for (uint32_t position = 0; position < 200; position++) {
            struct soq_sampled got = draw_at(&s, logits, 5, position);

            hit[got.token] = true;
            cr_assert_eq(got.n_candidates, strlen(cases[i].want), "case %zu: %u", i, got.n_candidates);
        }
        for (uint32_t t = 0; t < 5; t++)
            if (hit[t])
                seen[n++] = (char)('0' + t);
        cr_assert_str_eq(seen, cases[i].want, "case %zu", i);
    }
}

/* Random rows of many sizes and shapes, with ties, signs and -inf, against the reference. */
Test(sampler, sets_against_a_sort)
{
    static const uint32_t sizes[] = {1, 2, 7, 100, 1023, 1500, 4096};
    static float logits[MAX_VOCAB];
    static bool in[MAX_VOCAB];
    uint32_t compared = 0;

    for (uint32_t round = 0; round < 700; round++) {
        uint32_t n = sizes[round % 7];
        struct soq_sampling s = neutral();
        double spread = 0.1 + 12 * random_number(), margin;
        uint32_t want;

        for (uint32_t t = 0; t < n; t++) {
            logits[t] = (float)((random_number() + random_number() + random_number() - 1.5) * spread);
            if (round % 3 == 0)
                logits[t] = roundf(logits[t]); /* many ties */
            if (round % 5 == 0 && t > 0 && random_number() < 0.3)
                logits[t] = -INFINITY;
        }
        s.top_k = round % 2 ? (int32_t)(random_number() * n * 1.2) : (int32_t)(random_number() * 60);
        s.top_p = round % 4 ? (float)(0.02 + 0.98 * random_number()) : 1;
        s.min_p = round % 8 < 5 ? (float)(random_number() * 0.3) : 0;
        if (s.top_k == 1)
            s.top_k = 2;
        want = reference_set(&s, logits, n, in, &margin);
        if (margin < 1e-5)
            continue; /* within rounding of a border */
        compared++;
        s.temperature = 5;
        for (uint32_t position = 0; position < 20; position++) {
            struct soq_sampled got = draw_at(&s, logits, n, position);

            cr_assert_eq(got.n_candidates, want, "round %u, n %u: %u candidates, not %u", round, n, got.n_candidates, want);
            cr_assert(in[got.token]);
        }
    }
    cr_assert_gt(compared, 600);
}

/* A vocabulary as large as they come, in the orders that hurt selections: ascending, descending, all equal, sparse. */
Test(sampler, top_k_of_a_large_vocabulary)
{
    enum { N = 262144 };
    float *logits = malloc(N * sizeof *logits);
    uint32_t *scratch = malloc(N * sizeof *scratch);

    for (int shape = 0; shape < 4; shape++) {
        for (int32_t k = 2; k < N; k *= 5) {
            struct soq_sampling s = neutral();
            struct soq_sampled got = {.struct_size = sizeof got};
            struct soq_sampler_row row = row_of(logits, scratch, N);
            uint32_t expected = (uint32_t)k;

            s.top_k = k;
            s.temperature = 1e6f;
            row.position = (uint32_t)k;
            for (uint32_t t = 0; t < N; t++)
                logits[t] = shape == 0   ? (float)t * 1e-3f
                            : shape == 1 ? (float)-(int32_t)t * 1e-3f
                            : shape == 2 ? 3
                                         : (t % 8192 ? -INFINITY : (float)t);
            cr_assert_eq(sampler()->sample(NULL, NULL, &s, &row, &got, NULL), 0);
            if (shape == 3 && expected > N / 8192)
                expected = N / 8192;
            cr_assert_eq(got.n_candidates, expected, "shape %d, k %d: %u", shape, k, got.n_candidates);
            cr_assert(shape == 0   ? got.token >= N - k
                      : shape == 3 ? got.token % 8192 == 0 && (uint32_t)got.token >= N - expected * 8192
                                   : got.token < k,
                      "shape %d, k %d: token %d", shape, k, got.token);
        }
    }
    free(scratch);
    free(logits);
}

/* ---- Penalties, bias, mask: the log-probability ratios of draws are hard to see, so a huge bias singles out what is greedy */

/* The logit that token `t` has after the adjustments: two tokens tie when a second one is biased to the same value. */
static void expect_logit(struct soq_sampling s, const float *logits, uint32_t n, const struct soq_sampler_row *like, int32_t t,
                         float want)
{
    for (int side = -1; side <= 1; side += 2) {
        float row[16];
        uint32_t mask = 1u << t | 1u << n; /* only the token and a yardstick are allowed */
        struct soq_sampler_row masked = *like;

        memcpy(row, logits, n * sizeof *row);
        row[n] = want + (float)side * 1e-4f;
        masked.mask = &mask;
        s.temperature = 0;
        cr_assert_eq(draw(&s, row, n + 1, &masked).token, side > 0 ? (int32_t)n : t, "token %d is not at %g", t, (double)want);
    }
}

Test(sampler, penalties_by_hand)
{
    static const float logits[6] = {3, -3, 2, 1, 0, 4};
    static const int32_t history[] = {5, 5, 0, 1, 0, 0, 4, -1, 77};
    struct soq_sampler_row like = {.struct_size = sizeof like, .history = history, .n_history = 9};
    struct soq_sampling s = neutral();

    s.repeat_penalty = 1.5f;
    expect_logit(s, logits, 6, &like, 0, 2);     /* 3 / 1.5, once, not per occurrence */
    expect_logit(s, logits, 6, &like, 1, -4.5f); /* -3 * 1.5 */
    expect_logit(s, logits, 6, &like, 4, 0);
    expect_logit(s, logits, 6, &like, 2, 2); /* not in the history */
    expect_logit(s, logits, 6, &like, 5, 4 / 1.5f);

    s.presence_penalty = 0.25f;
    s.frequency_penalty = 0.5f;
    expect_logit(s, logits, 6, &like, 0, 2 - 0.25f - 3 * 0.5f);
    expect_logit(s, logits, 6, &like, 1, -4.5f - 0.25f - 0.5f);
    expect_logit(s, logits, 6, &like, 4, -0.75f);
    expect_logit(s, logits, 6, &like, 3, 1);

    s.repeat_last_n = 6; /* 1 0 0 4 -1 77 */
    expect_logit(s, logits, 6, &like, 0, 2 - 0.25f - 2 * 0.5f);
    expect_logit(s, logits, 6, &like, 5, 4);
    s.repeat_last_n = 0;
    expect_logit(s, logits, 6, &like, 0, 3);
    s.repeat_last_n = -1;
    expect_logit(s, logits, 6, &like, 5, 4 / 1.5f - 0.25f - 2 * 0.5f);
    s.repeat_last_n = 1000;
    expect_logit(s, logits, 6, &like, 5, 4 / 1.5f - 0.25f - 2 * 0.5f);
}

Test(sampler, bias_comes_before_penalties)
{
    static const float logits[4] = {1, 2, 3, 4};
    static const int32_t history[] = {0, 3};
    static const struct soq_logit_bias bias[] = {{0, 5}, {1, -1}, {3, -INFINITY}, {0, 100}};
    struct soq_sampler_row like = {.struct_size = sizeof like, .history = history, .n_history = 2};
    struct soq_sampling s = neutral();

    s.bias = bias;
    s.n_bias = 4;
    expect_logit(s, logits, 4, &like, 0, 6); /* the first bias of a token counts */
    expect_logit(s, logits, 4, &like, 1, 1);
    expect_logit(s, logits, 4, &like, 2, 3);
    s.repeat_penalty = 2;
    expect_logit(s, logits, 4, &like, 0, 3);
    s.temperature = 10;
    for (uint32_t i = 0; i < 300; i++) {
        like.position = i;
        cr_assert_neq(draw(&s, logits, 4, &like).token, 3, "banned");
    }
}

Test(sampler, mask_is_honoured)
{
    static float logits[70];
    static const uint32_t mask[3] = {1u << 5, 1u << 0 | 1u << 31, 1u << 4};
    struct soq_sampler_row like = {.struct_size = sizeof like, .mask = mask};
    struct soq_sampling s = neutral();
    uint32_t seen[70] = {0};

    logits[6] = 50;
    for (uint32_t i = 0; i < 400; i++) {
        struct soq_sampled got;

        like.position = i;
        got = draw(&s, logits, 70, &like);
        seen[got.token]++;
        cr_assert_eq(got.n_candidates, 4);
        cr_assert_float_eq(got.logprob, -50, 1e-4, "the model's own probability knows no mask");
    }
    cr_assert_eq(seen[5] + seen[32] + seen[63] + seen[68], 400);
    cr_assert(seen[5] && seen[32] && seen[63] && seen[68]);
}

/* ---- Log-probabilities */

Test(sampler, logprob_is_the_models_own)
{
    static const float logits[5] = {1, -2, 0.5f, 3, 2};
    static const int32_t history[] = {0, 1, 2, 3, 4, 3};
    static const struct soq_logit_bias bias[] = {{2, 1e6f}, {4, -1e6f}};
    struct soq_sampler_row like = {.struct_size = sizeof like, .history = history, .n_history = 6};
    struct soq_sampling s = neutral();
    uint32_t seen = 0;
    double p[5];

    softmax(logits, 5, 1, p);
    for (int round = 0; round < 3; round++) {
        s.temperature = 4;
        s.repeat_penalty = round > 0 ? 1.7f : 1;
        s.frequency_penalty = round > 0 ? 0.3f : 0;
        s.n_bias = round > 1 ? 2 : 0;
        s.bias = bias;
        for (uint32_t i = 0; i < 200; i++) {
            struct soq_sampled got;

            like.position = i;
            got = draw(&s, logits, 5, &like);
            cr_assert_float_eq((double)got.logprob, log(p[got.token]), 1e-6, "token %d: %g", got.token, (double)got.logprob);
            seen |= 1u << (round * 5 + got.token);
        }
    }
    cr_assert_eq(seen & 0x3ff, 0x3ff, "each token came up, with and without penalties");
    cr_assert_eq(seen >> 10, 1u << 2, "the bias decided");
}

Test(sampler, logprob_is_stable)
{
    static float logits[3000];
    struct soq_sampling s = neutral();

    s.temperature = 0;
    for (uint32_t t = 0; t < 3000; t++)
        logits[t] = 1e4f;
    cr_assert_float_eq((double)draw_at(&s, logits, 3000, 0).logprob, -log(3000), 1e-6);
    logits[17] = 1e30f;
    cr_assert_eq(draw_at(&s, logits, 3000, 0).logprob, 0);
    for (uint32_t t = 0; t < 3000; t++)
        logits[t] = -1e5f - (float)(t % 10);
    cr_assert_float_eq((double)draw_at(&s, logits, 3000, 0).logprob, -log(300 * (1 - exp(-10)) / (1 - exp(-1))), 2e-6);
}

/* ---- Infinities and NaN */

Test(sampler, infinite_logits_share_the_mass)
{
    static const float logits[5] = {3e38f, INFINITY, -INFINITY, INFINITY, 0};
    struct soq_sampling s = neutral();
    uint32_t seen[5] = {0};

    for (uint32_t i = 0; i < 200; i++) {
        struct soq_sampled got = draw_at(&s, logits, 5, i);

        seen[got.token]++;
        cr_assert_float_eq((double)got.logprob, -log(2), 1e-6);
        cr_assert_eq(got.n_candidates, 2);
    }
    cr_assert(seen[1] > 60 && seen[3] > 60);
}

Test(sampler, refuses_broken_rows)
{
    static const uint32_t nothing[2] = {0, 0};
    static const struct soq_logit_bias ban[] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}};
    float nan[3] = {1, NAN, 2}, low[3] = {-INFINITY, -INFINITY, -INFINITY}, fine[3] = {1, 2, 3};
    uint32_t scratch[3];
    struct soq_sampling s = neutral();
    struct soq_sampled out = {.struct_size = sizeof out, .token = 42};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_sampler_row row = row_of(nan, scratch, 3);

    row.position = 9;
    cr_assert_eq(sampler()->sample(NULL, NULL, &s, &row, &out, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "token 1 is no number"), "%s", err.text);
    row.logits = low;
    cr_assert_eq(sampler()->sample(NULL, NULL, &s, &row, &out, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "all 3 logits are -inf"), "%s", err.text);
    row.logits = fine;
    row.mask = nothing;
    cr_assert_eq(sampler()->sample(NULL, NULL, &s, &row, &out, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "no token is left at position 9"), "%s", err.text);
    row.mask = NULL;
    fine[0] = 1, fine[1] = 2, fine[2] = 3;
    s.bias = ban;
    s.n_bias = 3;
    cr_assert_eq(sampler()->sample(NULL, NULL, &s, &row, &out, &err), -SOQ_EINVAL);
    cr_assert_eq(out.token, 42, "outputs are written on success only");
}

/* ---- Parameters */

Test(sampler, check_names_what_is_wrong)
{
    struct soq_logit_bias bias = {9, 1};
    static const struct {
        size_t offset;
        float value;
        const char *text;
    } cases[] = {
        {offsetof(struct soq_sampling, temperature), NAN, "temperature = nan: must be from 0 to 1e+06"},
        {offsetof(struct soq_sampling, temperature), -0.1f, "temperature = -0.1: must be from 0"},
        {offsetof(struct soq_sampling, temperature), INFINITY, "temperature = inf"},
        {offsetof(struct soq_sampling, top_p), 0, "top_p = 0: must be from 1e-09 to 1"},
        {offsetof(struct soq_sampling, top_p), 1.01f, "top_p = 1.01"},
        {offsetof(struct soq_sampling, top_p), NAN, "top_p = nan"},
        {offsetof(struct soq_sampling, min_p), -1e-6f, "min_p = -1e-06: must be from 0 to 1"},
        {offsetof(struct soq_sampling, min_p), 1.5f, "min_p = 1.5"},
        {offsetof(struct soq_sampling, repeat_penalty), 0, "repeat_penalty = 0: must be from 0.01 to 100"},
        {offsetof(struct soq_sampling, presence_penalty), 1000, "presence_penalty = 1000: must be from -100 to 100"},
        {offsetof(struct soq_sampling, frequency_penalty), NAN, "frequency_penalty = nan"},
    };
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_sampling s;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        s = neutral();
        *(float *)((char *)&s + cases[i].offset) = cases[i].value;
        cr_assert_eq(sampler()->check(NULL, &s, 10, &err), -SOQ_EINVAL);
        cr_assert(strstr(err.text, cases[i].text), "%s", err.text);
    }
    s = neutral();
    cr_assert_eq(sampler()->check(NULL, &s, 10, &err), 0);
    cr_assert_eq(sampler()->check(NULL, &s, 0, &err), -SOQ_EINVAL);
    s.repeat_last_n = -2;
    cr_assert_eq(sampler()->check(NULL, &s, 10, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "repeat_last_n = -2"), "%s", err.text);

    s = neutral();
    s.n_bias = 1;
    cr_assert_eq(sampler()->check(NULL, &s, 10, &err), -SOQ_EINVAL);
    s.bias = &bias;
    cr_assert_eq(sampler()->check(NULL, &s, 10, &err), 0);
    cr_assert_eq(sampler()->check(NULL, &s, 9, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "token 9 is none of the model's, 0 to 8"), "%s", err.text);
    bias.bias = NAN;
    cr_assert_eq(sampler()->check(NULL, &s, 10, &err), -SOQ_EINVAL);
    bias.bias = INFINITY;
    cr_assert_eq(sampler()->check(NULL, &s, 10, &err), -SOQ_EINVAL);
    bias.bias = -INFINITY;
    cr_assert_eq(sampler()->check(NULL, &s, 10, &err), 0);
}

Test(sampler, defaults_are_those_of_the_section)
{
    static const struct override set[] = {{"temperature", "0.25"}, {"top_k", "7"}, {"seed", "9007199254740992"}, {0}};
    struct plugin_values values = {open_plugin("standard", SOQ_ROLE_SAMPLER), NULL};
    struct soq_config config = plugin_config(&values);
    _Alignas(64) char self[512] = {0};
    struct soq_sampling s = {.struct_size = sizeof s};
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_leq(sampler()->instance_size, sizeof self);
    cr_assert_eq(sampler()->init(self, NULL, &config, &err), 0);
    cr_assert_eq(sampler()->defaults(self, &s, &err), 0);
    cr_assert_eq(s.struct_size, sizeof s);
    cr_assert(s.temperature == 0.8f && s.top_k == 40 && s.top_p == 0.95f && s.min_p == 0.05f && s.seed == 0);
    cr_assert(s.repeat_penalty == 1 && s.repeat_last_n == 64 && s.presence_penalty == 0 && s.frequency_penalty == 0);
    cr_assert_eq(sampler()->check(self, &s, 100, &err), 0);

    values.overrides = set;
    cr_assert_eq(sampler()->init(self, NULL, &config, &err), 0);
    cr_assert_eq(sampler()->defaults(self, &s, &err), 0);
    cr_assert(s.temperature == 0.25f && s.top_k == 7 && s.seed == (uint64_t)1 << 53);
}

/* The defaults and the limits of a table are themselves within the limits of check. */
Test(sampler, options_agree_with_check)
{
    const struct soq_role_entry *entry = open_plugin("standard", SOQ_ROLE_SAMPLER);

    for (uint32_t i = 0; i < entry->n_options; i++) {
        const struct soq_option *o = &entry->options[i];

        for (int limit = 0; limit < 2; limit++) {
            char text[32];
            struct override set[] = {{o->key, text}, {0}};
            struct plugin_values values = {entry, set};
            struct soq_config config = plugin_config(&values);
            _Alignas(64) char self[512] = {0};
            struct soq_sampling s = {.struct_size = sizeof s};
            struct soq_error err = SOQ_ERROR_INIT;

            snprintf(text, sizeof text, o->type == SOQ_OPT_INT ? "%.0f" : "%.9g", limit ? o->max : o->min);
            cr_assert_eq(sampler()->init(self, NULL, &config, &err), 0);
            cr_assert_eq(sampler()->defaults(self, &s, &err), 0);
            cr_assert_eq(sampler()->check(self, &s, 100, &err), 0, "%s", err.text);
        }
    }
}

/* ---- Determinism */

Test(sampler, a_pure_function_of_seed_and_position)
{
    static float logits[1000];
    struct soq_sampling s = neutral(), other;
    uint32_t differ = 0, differ_seed = 0;

    for (uint32_t t = 0; t < 1000; t++)
        logits[t] = (float)random_number() * 3;
    other = s;
    other.seed += (uint64_t)1 << 32; /* all 64 bits of it count */
    for (uint32_t i = 0; i < 200; i++) {
        int32_t token = draw_at(&s, logits, 1000, i).token;

        cr_assert_eq(token, draw_at(&s, logits, 1000, i).token);
        differ += token != draw_at(&s, logits, 1000, i + 1).token;
        differ_seed += token != draw_at(&other, logits, 1000, i).token;
    }
    cr_assert(differ > 190 && differ_seed > 190);
}
