/* RoPE frequencies of each scaling method, against numbers that were computed apart from this code with the formulas that the
 * methods' authors publish (Python floats). */
#include <criterion/criterion.h>

#include <math.h>

#include "model/rope.h"

static void expect_frequencies(const struct soq__rope_params *p, const double *want, const uint32_t *at, uint32_t n,
                               double mscale)
{
    float inv_freq[64], got;

    soq__rope_frequencies(p, inv_freq, &got);
    cr_expect_float_eq((double)got, mscale, 1e-6, "mscale %.9g", (double)got);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pair = at ? at[i] : i;

        cr_expect_float_eq((double)inv_freq[pair], want[i], 1e-6 * want[i], "pair %u: %.9g, expected %.9g", pair,
                           (double)inv_freq[pair], want[i]);
    }
}

Test(rope, none)
{
    static const double want[] = {1, 0.1, 0.01, 0.001};

    expect_frequencies(&(struct soq__rope_params){.n_rot = 8, .base = 10000, .factor = 1}, want, NULL, 4, 1);
    /* A factor without a method is nothing. */
    expect_frequencies(&(struct soq__rope_params){.n_rot = 8, .base = 10000, .factor = 4}, want, NULL, 4, 1);
}

Test(rope, linear)
{
    static const double want[] = {0.25, 0.025, 0.0025, 0.00025};

    expect_frequencies(&(struct soq__rope_params){.n_rot = 8, .base = 10000, .scaling = SOQ__ROPE_LINEAR, .factor = 4}, want,
                       NULL, 4, 1);
}

/* factor 8, low and high frequency factor 1 and 4, 64 positions before; the file has the divisors. */
Test(rope, llama3)
{
    static const float factors[] = {1, 1.29397583f, 7.66738513f, 8, 8, 8, 8, 8};
    static const double want[] = {1,       0.244384599,    0.013042256, 0.00395284708,
                                  0.00125, 0.000395284708, 0.000125,    3.95284708e-05};

    expect_frequencies(&(struct soq__rope_params){.n_rot = 16, .base = 10000, .factor = 1, .factors = factors}, want, NULL, 8,
                       1);
}

Test(rope, yarn)
{
    static const double tiny[] = {1, 0.237170825, 0.05, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05};
    static const double large[] = {1, 0.128687373, 0.014673037, 0.000673809854, 8.57025549e-06, 1.10288367e-06, 7.67231497e-08};
    static const double plain[] = {0.25, 0.0790569415, 0.025, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05};
    static const uint32_t at[] = {0, 10, 20, 30, 40, 50, 63};
    struct soq__rope_params p = {.n_rot = 16,
                                 .base = 10000,
                                 .scaling = SOQ__ROPE_YARN,
                                 .factor = 4,
                                 .original_context = 64,
                                 .beta_fast = 32,
                                 .beta_slow = 1,
                                 .attn_factor = 1,
                                 .ext_factor = 1};

    expect_frequencies(&p, tiny, NULL, 8, 1.138629436);
    p.attn_factor = 0.5f;
    expect_frequencies(&p, tiny, NULL, 8, 1.138629436 / 2);
    p.ext_factor = 0; /* plain interpolation, and no temperature */
    expect_frequencies(&p, plain, NULL, 8, 0.5);
    p = (struct soq__rope_params){.n_rot = 128,
                                  .base = 500000,
                                  .scaling = SOQ__ROPE_YARN,
                                  .factor = 32,
                                  .original_context = 8192,
                                  .beta_fast = 32,
                                  .beta_slow = 1,
                                  .attn_factor = 1,
                                  .ext_factor = 1};
    expect_frequencies(&p, large, at, 7, 1.346573590);
}

/* Whatever a file says, what comes out is finite and positive. */
Test(rope, extremes)
{
    static const struct soq__rope_params cases[] = {
        {.n_rot = 2,
         .base = 1.0001f,
         .scaling = SOQ__ROPE_YARN,
         .factor = 1,
         .original_context = 1,
         .beta_fast = 1e-3f,
         .beta_slow = 1e6f,
         .attn_factor = 1,
         .ext_factor = 1},
        {.n_rot = 128,
         .base = 1e9f,
         .scaling = SOQ__ROPE_YARN,
         .factor = 1e4f,
         .original_context = UINT32_MAX,
         .beta_fast = 32,
         .beta_slow = 32,
         .attn_factor = 1,
         .ext_factor = 1},
        {.n_rot = 128, .base = 1e9f, .scaling = SOQ__ROPE_LINEAR, .factor = 1e6f},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float inv_freq[64], mscale;

        soq__rope_frequencies(&cases[i], inv_freq, &mscale);
        cr_expect(isfinite(mscale) && mscale > 0, "case %zu: mscale %g", i, (double)mscale);
        for (uint32_t k = 0; k < cases[i].n_rot / 2; k++)
            cr_expect(isfinite(inv_freq[k]) && inv_freq[k] >= 0 && inv_freq[k] <= 1, "case %zu, pair %u: %g", i, k,
                      (double)inv_freq[k]);
    }
}
