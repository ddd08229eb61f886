/* Passes over a row of logits. Loops run over blocks of LANES numbers with one accumulator per lane: compilers turn those into
 * vector code on any machine, and the order of summation is fixed. Indices are as wide as addresses: where they could wrap
 * around, numbers that lie side by side would be gathered one by one. */
#include "logits.h"

#include <math.h>
#include <stdbool.h>

#include "fail.h"
#include "wide.h"

enum { LANES = 16, BLOCK = 16 * LANES };

/* Sums are the same bit by bit when compiled for wider vectors: nothing is contracted to a fused multiply-add (AVX-512 has it),
 * and lanes are added in the same order. */
#define INLINE static inline __attribute__((always_inline))

/* ---- Maximum and sum */

INLINE float maximum_of(const float *logits, uint32_t n, bool *nan_out)
{
    float best[LANES], max = -INFINITY;
    uint32_t bad[LANES] = {0}, any = 0;
    size_t i = 0;

    for (size_t j = 0; j < LANES; j++)
        best[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        for (size_t j = 0; j < LANES; j++) {
            float x = logits[i + j];

            best[j] = x > best[j] ? x : best[j];
            bad[j] |= x != x;
        }
    }
    for (; i < n; i++) {
        best[0] = logits[i] > best[0] ? logits[i] : best[0];
        bad[0] |= logits[i] != logits[i];
    }
    for (size_t j = 0; j < LANES; j++) {
        max = best[j] > max ? best[j] : max;
        any |= bad[j];
    }
    *nan_out = any != 0;
    return max;
}

IN_WIDTHS(float, maximum, (const float *logits, uint32_t n, bool *nan_out), (logits, n, nan_out))

static int refuse_nan(const float *logits, struct soq_error *err)
{
    uint32_t token = 0;

    while (!isnan(logits[token]))
        token++;
    return plugin_fail(err, SOQ_EINVAL,
                       "sampler standard: the logit of token %u is no number; the model's weights or a backend are broken",
                       token);
}

int standard_settle(float *logits, uint32_t n_vocab, float *max_out, struct soq_error *err)
{
    bool nan;
    float max = maximum(logits, n_vocab, &nan);

    if (nan)
        return refuse_nan(logits, err);
    if (max == INFINITY) {
        for (uint32_t t = 0; t < n_vocab; t++)
            logits[t] = logits[t] == INFINITY ? 0.0f : -INFINITY;
        max = 0;
    }
    *max_out = max;
    return 0;
}

/* Looks for the block with it first: a loop that may stop anywhere is none of vectors. */
INLINE uint32_t first_of(const float *logits, uint32_t n_vocab, float value)
{
    size_t i = 0;

    for (uint32_t any = 0; i + BLOCK <= n_vocab; i += BLOCK) {
        for (size_t j = 0; j < BLOCK; j++)
            any |= logits[i + j] == value;
        if (any)
            break;
    }
    while (logits[i] != value)
        i++;
    return (uint32_t)i;
}

IN_WIDTHS(uint32_t, first, (const float *logits, uint32_t n_vocab, float value), (logits, n_vocab, value))

uint32_t standard_first(const float *logits, uint32_t n_vocab, float value)
{
    return first(logits, n_vocab, value);
}

INLINE double sum_exp_of(const float *logits, uint32_t n_vocab, float max)
{
    double sum = 0;
    size_t i = 0;

    for (; i + BLOCK <= n_vocab; i += BLOCK) {
        float lane[LANES] = {0};

        for (size_t j = 0; j < BLOCK; j += LANES)
            for (size_t k = 0; k < LANES; k++)
                lane[k] += exp_negative(logits[i + j + k] - max);
        for (size_t k = 0; k < LANES; k++)
            sum += (double)lane[k];
    }
    for (; i < n_vocab; i++)
        sum += (double)exp_negative(logits[i] - max);
    return sum;
}

IN_WIDTHS(double, sum_exp, (const float *logits, uint32_t n_vocab, float max), (logits, n_vocab, max))

double standard_sum_exp(const float *logits, uint32_t n_vocab, float max)
{
    return sum_exp(logits, n_vocab, max);
}

/* ---- Bias, penalties, mask
 *
 * A token that will change is first marked: its logit moves to scratch[token], and a NaN takes its place, whose payload counts
 * the token's occurrences in the history. Then each marked token gets its new logit, once. */

enum { COUNT_MAX = 0x3fffff };
static const uint32_t mark_bits = 0x7fc00000;

static bool is_marked(float logit)
{
    return (f32_bits(logit) & ~(uint32_t)COUNT_MAX) == mark_bits;
}

static void mark(const struct soq_sampler_row *row, int32_t token, uint32_t occurrences)
{
    float *logit;
    uint32_t count = 0;

    if (token < 0 || (uint32_t)token >= row->n_vocab)
        return;
    logit = &row->logits[token];
    if (is_marked(*logit))
        count = f32_bits(*logit) & COUNT_MAX;
    else
        row->scratch[token] = f32_bits(*logit);
    *logit = f32_from_bits(mark_bits | (count + occurrences < COUNT_MAX ? count + occurrences : COUNT_MAX));
}

static void unmark(const struct soq_sampling *s, const struct soq_sampler_row *row, int32_t token, float bias)
{
    float count, logit;

    if (token < 0 || (uint32_t)token >= row->n_vocab || !is_marked(row->logits[token]))
        return;
    count = (float)(f32_bits(row->logits[token]) & COUNT_MAX);
    logit = f32_from_bits(row->scratch[token]) + bias;
    if (count > 0) {
        logit = logit > 0 ? logit / s->repeat_penalty : logit * s->repeat_penalty;
        logit -= count * s->frequency_penalty + s->presence_penalty;
    }
    row->logits[token] = logit;
}

/* The part of the history that penalties look at: [first, n_history). */
static uint32_t first_penalised(const struct soq_sampling *s, const struct soq_sampler_row *row)
{
    if (s->repeat_penalty == 1 && s->presence_penalty == 0 && s->frequency_penalty == 0)
        return row->n_history;
    if (s->repeat_last_n < 0 || (uint32_t)s->repeat_last_n > row->n_history)
        return 0;
    return row->n_history - (uint32_t)s->repeat_last_n;
}

bool standard_changes(const struct soq_sampling *sampling, const struct soq_sampler_row *row)
{
    return sampling->n_bias || row->mask || first_penalised(sampling, row) < row->n_history;
}

static const struct soq_logit_bias *bias_at(const struct soq_sampling *s, uint32_t i)
{
    return (const struct soq_logit_bias *)((const char *)s->bias + (size_t)i * s->bias_stride);
}

void standard_adjust(const struct soq_sampling *sampling, const struct soq_sampler_row *row)
{
    uint32_t first = first_penalised(sampling, row);

    for (uint32_t i = 0; i < sampling->n_bias; i++)
        mark(row, bias_at(sampling, i)->token, 0);
    for (uint32_t i = first; i < row->n_history; i++)
        mark(row, row->history[i], 1);
    for (uint32_t i = 0; i < sampling->n_bias; i++)
        unmark(sampling, row, bias_at(sampling, i)->token, bias_at(sampling, i)->bias);
    for (uint32_t i = first; i < row->n_history; i++)
        unmark(sampling, row, row->history[i], 0);
}

float standard_raw(const struct soq_sampling *sampling, const struct soq_sampler_row *row, uint32_t token)
{
    bool changed = false;

    for (uint32_t i = 0; i < sampling->n_bias && !changed; i++)
        changed = bias_at(sampling, i)->token == (int32_t)token;
    for (uint32_t i = first_penalised(sampling, row); i < row->n_history && !changed; i++)
        changed = row->history[i] == (int32_t)token;
    return changed ? f32_from_bits(row->scratch[token]) : row->logits[token];
}

void standard_mask(const uint32_t *mask, float *logits, uint32_t n_vocab)
{
    for (uint32_t t = 0; t < n_vocab; t++)
        logits[t] = mask[t / 32] >> (t % 32) & 1 ? logits[t] : -INFINITY;
}
