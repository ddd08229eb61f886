/* Accepting drafts: the reference data of kv-golden, part D, and 10^5 samples against the exact distribution. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>

#include "engine/speculate.h"
#include "tests/unit/support.h"

enum { VOCAB = 6 };

static json_t *reference(void)
{
    json_error_t error;
    json_t *root = json_load_file(soq__test_data("kv-golden/speculative.json"), 0, &error);

    cr_assert(root != NULL, "%s", error.text);
    cr_assert_eq(json_integer_value(json_object_get(root, "vocab")), VOCAB);
    return root;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    cr_assert(json_is_number(value), "%s", key);
    return json_number_value(value);
}

static void read_row(const json_t *list, float *out)
{
    cr_assert_eq(json_array_size(list), VOCAB);
    for (size_t t = 0; t < VOCAB; t++)
        out[t] = (float)json_number_value(json_array_get(list, t));
}

/* p, q and what follows from them. */
struct pair {
    float p[VOCAB], q[VOCAB], residual[VOCAB];
    double accepted; /* probability that a draft is */
};

static void derive(struct pair *d)
{
    d->accepted = 0;
    for (int32_t t = 0; t < VOCAB; t++)
        d->accepted += (double)d->q[t] * soq__acceptance(d->p, d->q, t);
    memcpy(d->residual, d->q, sizeof d->residual);
    soq__residual(d->p, d->residual, VOCAB);
}

static struct pair read_pair(const json_t *p, const json_t *q)
{
    struct pair d;

    read_row(p, d.p);
    read_row(q, d.q);
    derive(&d);
    return d;
}

static double sum_of(const float *x)
{
    double sum = 0;

    for (int t = 0; t < VOCAB; t++)
        sum += (double)x[t];
    return sum;
}

/* The distribution of the emitted token. */
static double emitted(const struct pair *d, int32_t token)
{
    return (double)d->q[token] * soq__acceptance(d->p, d->q, token) +
           (1 - d->accepted) * (double)d->residual[token] / sum_of(d->residual);
}

/* One round with given random numbers: drawn from q, accepted or replaced. */
static int32_t play(const struct pair *d, const double u[3], int32_t *draft_out, bool *accepted_out)
{
    *draft_out = soq__pick(d->q, VOCAB, u[0]);
    *accepted_out = u[1] < soq__acceptance(d->p, d->q, *draft_out);
    return *accepted_out ? *draft_out : soq__pick(d->residual, VOCAB, u[2]);
}

static void check_case(const json_t *c)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    struct pair d = read_pair(json_object_get(c, "p"), json_object_get(c, "q"));
    float want[VOCAB], accept[VOCAB];
    bool differ;

    read_row(json_object_get(c, "residual"), want);
    read_row(json_object_get(c, "accept_given_token"), accept);
    differ = sum_of(want) > 0;
    cr_assert_float_eq(d.accepted, number(c, "accept_probability"), 1e-6, "%s", name);
    for (int32_t t = 0; t < VOCAB; t++) {
        cr_assert_float_eq(emitted(&d, t), (double)d.p[t], 1e-6, "%s: token %d", name, t);
        if (d.q[t] > 0)
            cr_assert_float_eq(soq__acceptance(d.p, d.q, t), (double)accept[t], 1e-6, "%s: token %d", name, t);
        cr_assert_float_eq((double)d.residual[t] / sum_of(d.residual), differ ? (double)want[t] : (double)d.p[t], 1e-6,
                           "%s: token %d of the residual", name, t);
    }
}

/* Chances of a geometric run that ends at g: what the number of accepted drafts is. */
static void check_rounds(const json_t *c)
{
    struct pair d = read_pair(json_object_get(c, "p"), json_object_get(c, "q"));
    const char *key;
    json_t *round;

    json_object_foreach(json_object_get(c, "rounds"), key, round)
    {
        size_t g = strtoul(key, NULL, 10);
        double all = 1, tokens = 1;

        for (size_t n = 0; n <= g; n++, all *= d.accepted) {
            double chance = n < g ? all * (1 - d.accepted) : all;

            cr_assert_float_eq(chance, json_number_value(json_array_get(json_object_get(round, "accepted_distribution"), n)),
                               1e-6);
            tokens += n < g ? all * d.accepted : 0;
        }
        cr_assert_float_eq(tokens, number(round, "expected_tokens"), 1e-5);
    }
}

static void check_draws(const json_t *c)
{
    struct pair d = read_pair(json_object_get(c, "p"), json_object_get(c, "q"));
    const json_t *list = json_object_get(c, "draws");

    cr_assert_gt(json_array_size(list), 0);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *draw = json_array_get(list, i);
        double u[3];
        int32_t draft, token;
        bool accepted;

        for (size_t k = 0; k < 3; k++)
            u[k] = json_number_value(json_array_get(json_object_get(draw, "u"), k));
        token = play(&d, u, &draft, &accepted);
        cr_assert_eq(draft, json_integer_value(json_object_get(draw, "draft")));
        cr_assert_eq(accepted, json_is_true(json_object_get(draw, "accepted")));
        cr_assert_eq(token, json_integer_value(json_object_get(draw, "token")));
    }
}

Test(speculate, reference_cases)
{
    json_t *root = reference();
    const json_t *cases = json_object_get(root, "cases");

    cr_assert_gt(json_array_size(cases), 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        check_case(json_array_get(cases, i));
        check_rounds(json_array_get(cases, i));
        check_draws(json_array_get(cases, i));
    }
    json_decref(root);
}

/* ---- Two drafts in a row ------------------------------------------------------------------------------------------------- */

struct two_step {
    struct pair first, second[VOCAB];
};

static struct two_step read_two_step(const json_t *t)
{
    const json_t *p = json_object_get(t, "p"), *q = json_object_get(t, "q");
    struct two_step s = {.first = read_pair(json_object_get(p, ""), json_object_get(q, ""))};

    for (int i = 0; i < VOCAB; i++) {
        const char key[2] = {(char)('0' + i), '\0'};

        s.second[i] = read_pair(json_object_get(p, key), json_object_get(q, key));
    }
    return s;
}

Test(speculate, two_drafts)
{
    json_t *root = reference();
    const json_t *t = json_object_get(root, "two_step");
    struct two_step s = read_two_step(t);
    double both = 0;

    for (int32_t x = 0; x < VOCAB; x++)
        both += (double)s.first.q[x] * soq__acceptance(s.first.p, s.first.q, x) * s.second[x].accepted;
    cr_assert_float_eq(s.first.accepted, number(t, "prob_at_least_one_accepted"), 1e-6);
    cr_assert_float_eq(both, number(t, "prob_both_accepted"), 1e-6);
    for (int32_t x = 0; x < VOCAB; x++)
        for (int32_t y = 0; y < VOCAB; y++)
            cr_assert_float_eq(emitted(&s.first, x) * emitted(&s.second[x], y),
                               json_number_value(json_array_get(
                                   json_array_get(json_object_get(t, "first_two_tokens_distribution"), (size_t)x), (size_t)y)),
                               1e-6);
    json_decref(root);
}

/* ---- Samples ------------------------------------------------------------------------------------------------------------- */

enum { SAMPLES = 100000 };
/* A chi-square of 5 degrees of freedom is above this once in a million, one of 35 above that. */
#define CHI_SQUARE_5 35.9
#define CHI_SQUARE_35 93.2

/* The engine's own random numbers. */
static void uniforms(uint64_t seed, uint32_t position, double u[3])
{
    u[0] = soq__uniform(seed, position, SOQ__STREAM_DRAW);
    u[1] = soq__uniform(seed, position, SOQ__STREAM_ACCEPT);
    u[2] = soq__uniform(seed, position, SOQ__STREAM_RESIDUAL);
}

static double chi_square(const uint32_t *counts, const double *p, uint32_t n)
{
    double chi = 0;

    for (uint32_t i = 0; i < n; i++) {
        double want = p[i] * SAMPLES;

        cr_assert(want > 0 || !counts[i], "cell %u has no probability", i);
        chi += want > 0 ? (counts[i] - want) * (counts[i] - want) / want : 0;
    }
    return chi;
}

Test(speculate, samples_come_from_p)
{
    json_t *root = reference();
    const json_t *cases = json_object_get(root, "cases");

    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        struct pair d = read_pair(json_object_get(c, "p"), json_object_get(c, "q"));
        uint32_t counts[VOCAB] = {0}, n_accepted = 0;
        double p[VOCAB], u[3], spread = sqrt(SAMPLES * fmax(0, d.accepted * (1 - d.accepted)));
        int32_t draft;
        bool accepted;

        for (uint32_t k = 0; k < SAMPLES; k++) {
            uniforms(i, k, u);
            counts[play(&d, u, &draft, &accepted)]++;
            n_accepted += accepted;
        }
        for (int t = 0; t < VOCAB; t++)
            p[t] = (double)d.p[t];
        cr_assert(chi_square(counts, p, VOCAB) < CHI_SQUARE_5, "case %zu: chi-square %.1f", i, chi_square(counts, p, VOCAB));
        cr_assert(fabs(n_accepted - SAMPLES * d.accepted) <= 5 * spread + 1, "case %zu: %u accepted, not %.0f", i, n_accepted,
                  SAMPLES * d.accepted);
    }
    json_decref(root);
}

/* A second token is drafted only behind an accepted one, else drawn plainly with the same random number. */
Test(speculate, samples_of_two_tokens)
{
    json_t *root = reference();
    struct two_step s = read_two_step(json_object_get(root, "two_step"));
    uint32_t counts[VOCAB * VOCAB] = {0};
    double p[VOCAB * VOCAB], u[3];

    for (uint32_t k = 0; k < SAMPLES; k++) {
        int32_t draft, x, y;
        bool accepted, second;

        uniforms(k, 7, u);
        x = play(&s.first, u, &draft, &accepted);
        uniforms(k, 8, u);
        y = accepted ? play(&s.second[x], u, &draft, &second) : soq__pick(s.second[x].p, VOCAB, u[0]);
        counts[x * VOCAB + y]++;
    }
    for (int i = 0; i < VOCAB * VOCAB; i++)
        p[i] = (double)s.first.p[i / VOCAB] * (double)s.second[i / VOCAB].p[i % VOCAB];
    cr_assert(chi_square(counts, p, VOCAB * VOCAB) < CHI_SQUARE_35, "chi-square %.1f", chi_square(counts, p, VOCAB * VOCAB));
    json_decref(root);
}

Test(speculate, draws_at_the_edges)
{
    static const float weights[] = {0, 0.5f, 0, 0.25f, 0};

    cr_assert_eq(soq__pick(weights, 5, 0), 1);
    cr_assert_eq(soq__pick(weights, 5, 0.66), 1);
    cr_assert_eq(soq__pick(weights, 5, 0.67), 3);
    cr_assert_eq(soq__pick(weights, 5, nextafter(1, 0)), 3, "never one without weight");
}

/* As many tokens as models have, some without weight, summed as the words say. */
Test(speculate, draws_among_many)
{
    enum { N = 5003 };
    float *weights = calloc(N, sizeof *weights);
    double total = 0;

    cr_assert_not_null(weights);
    for (uint32_t t = 700; t < 4500; t++)
        total += (double)(weights[t] = t % 7 && t / 600 != 3 ? 1.0f / (float)(1 + t * 31 % 64) : 0.0f);
    for (int i = 0; i < 400; i++) {
        double u = i / 400.0, reached = 0;
        int32_t want = -1;

        while (reached <= (u + 1e-12) * total) /* no sum of weights is that near to one of the 400 */
            reached += (double)weights[++want];
        cr_assert_eq(soq__pick(weights, N, u), want, "u = %g", u);
    }
    cr_assert_eq(soq__pick(weights, N, nextafter(1, 0)), 4499);
    cr_assert_eq(soq__pick(weights, 700, 0.5), 0, "no weight at all");
    free(weights);
}
