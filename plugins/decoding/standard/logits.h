/* The sampler's view of a row of logits: what a softmax needs, and the changes that a request asks for. */
#ifndef STANDARD_LOGITS_H
#define STANDARD_LOGITS_H

#include <stdbool.h>
#include <stdint.h>

#include "half.h"
#include "soquete/plugin.h"

/* e^x for x <= 0, relative error below 2e-7, 0 below -87. Free of branches, so that loops over it vectorise. */
static inline float exp_negative(float x)
{
    float clamped = x > -87.0f ? x : -87.0f;
    /* Adding 1.5 * 2^23 rounds to an integer n, which then stands in the low bits. */
    float shifted = clamped * 1.44269504f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f; /* x - n ln 2, |r| <= ln(2) / 2 */
    float series = 1.0f / 5040;

    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    return x > -87.0f ? series * f32_from_bits((f32_bits(shifted) << 23) + 0x3f800000) : 0.0f;
}

/* The largest of the logits, -INFINITY if none is above it. Where some are +INFINITY they share all the mass: they become 0 and
 * all others -INFINITY, which is the limit. A NaN is refused, naming the token. */
int standard_settle(float *logits, uint32_t n_vocab, float *max_out, struct soq_error *err);

/* The first token with that logit; there is one. */
uint32_t standard_first(const float *logits, uint32_t n_vocab, float value);

/* Sum of e^(logit - max); the order of summation depends on n_vocab alone. */
double standard_sum_exp(const float *logits, uint32_t n_vocab, float max);

/* Bias, then penalties, in place. row->scratch keeps what standard_raw needs; it may not be changed in between. Tokens of the
 * history or of the bias list that are no tokens are passed over. Of several biases for one token the first counts. */
void standard_adjust(const struct soq_sampling *sampling, const struct soq_sampler_row *row);

/* True if bias, penalties or a mask may change a logit. */
bool standard_changes(const struct soq_sampling *sampling, const struct soq_sampler_row *row);

/* -INFINITY to all that the mask forbids: bit t % 32 of word t / 32 is token t. */
void standard_mask(const uint32_t *mask, float *logits, uint32_t n_vocab);

/* The logit of a token before standard_adjust. */
float standard_raw(const struct soq_sampling *sampling, const struct soq_sampler_row *row, uint32_t token);

#endif
