/* Sampler `standard`: greedy, temperature, top-k, top-p, min-p, penalties, logit bias.
 *
 * The order is that of llama.cpp's default chain, so that settings carry over:
 *
 *     bias -> penalties -> mask -> top-k -> top-p -> min-p -> temperature -> draw
 *
 * Filters therefore look at probabilities before the temperature, and each at what the one before it left. temperature = 0 is
 * greedy and the same as top_k = 1: the largest logit, the lowest id among equals.
 *
 *   - repeat_penalty: logits of tokens in the last repeat_last_n are divided by it where positive, else multiplied, once per
 *     distinct token (N. S. Keskar et al., "CTRL", 2019, section 4.1, with the sign handled);
 *   - presence_penalty and frequency_penalty: minus presence, minus frequency x occurrences in the same window (OpenAI's API);
 *   - top-p: the fewest best tokens that hold p of the mass (A. Holtzman et al., "The Curious Case of Neural Text
 *     Degeneration", ICLR 2020); min-p: all with at least min_p times the best one's probability (N. N. Minh et al., "Turning
 * Up the Heat", ICLR 2025).
 *
 * A pure function of the row and (seed, position): there is no state, 0 is a seed like any other. The log-probability that it
 * returns is the model's own, before any of the above. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "fail.h"
#include "philox.h"
#include "soquete/plugin.h"
#include "standard/logits.h"
#include "standard/pool.h"

enum { STREAM_DRAW = 0 };

struct standard {
    struct soq_sampling defaults; /* of the section [decoding.standard] */
};

/* ---- Parameters: one table for the section and for checks of requests */

#define SEED_MAX 9007199254740992.0 /* 2^53: what an INI value can say exactly */

#define OPTION(type_, key_, default_, min_, max_, help_)                                                                       \
    {                                                                                                                          \
        .struct_size = sizeof(struct soq_option), .type = type_, .key = key_, .default_value = default_, .min = min_,          \
        .max = max_, .help = help_,                                                                                            \
    }

static const struct soq_option standard_options[] = {
    OPTION(SOQ_OPT_FLOAT, "temperature", "0.8", 0, 1e6, "Flattens (> 1) or sharpens (< 1) the distribution; 0: greedy."),
    OPTION(SOQ_OPT_FLOAT, "top_p", "0.95", 1e-9, 1, "Keeps the fewest tokens that hold this share of the probability; 1: off."),
    OPTION(SOQ_OPT_FLOAT, "min_p", "0.05", 0, 1, "Drops tokens below this share of the best one's probability; 0: off."),
    OPTION(SOQ_OPT_FLOAT, "repeat_penalty", "1", 1e-2, 100, "Makes tokens of the recent text less likely (> 1); 1: off."),
    OPTION(SOQ_OPT_FLOAT, "presence_penalty", "0", -100, 100, "Subtracted from the logits of tokens in the recent text."),
    OPTION(SOQ_OPT_FLOAT, "frequency_penalty", "0", -100, 100, "The same, times the number of occurrences."),
    OPTION(SOQ_OPT_INT, "top_k", "40", -1, INT32_MAX, "Keeps this many of the most probable tokens; 0: off."),
    OPTION(SOQ_OPT_INT, "repeat_last_n", "64", -1, INT32_MAX, "Tokens of recent text that penalties look at; -1: all."),
    OPTION(SOQ_OPT_INT, "seed", "0", 0, SEED_MAX, "Seed of the random numbers; the same seed gives the same tokens."),
};

/* The parameters that are floats lead the option table, in this order. */
static const size_t float_offsets[] = {
    offsetof(struct soq_sampling, temperature),
    offsetof(struct soq_sampling, top_p),
    offsetof(struct soq_sampling, min_p),
    offsetof(struct soq_sampling, repeat_penalty),
    offsetof(struct soq_sampling, presence_penalty),
    offsetof(struct soq_sampling, frequency_penalty),
};
enum { N_FLOATS = sizeof float_offsets / sizeof float_offsets[0] };

static int standard_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct soq_sampling *d = &((struct standard *)self)->defaults;

    (void)host;
    (void)err;
    for (size_t i = 0; i < N_FLOATS; i++)
        *(float *)((char *)d + float_offsets[i]) = (float)config->get_float(config->ctx, standard_options[i].key);
    d->top_k = (int32_t)config->get_int(config->ctx, "top_k");
    d->repeat_last_n = (int32_t)config->get_int(config->ctx, "repeat_last_n");
    d->seed = (uint64_t)config->get_int(config->ctx, "seed");
    return 0;
}

static int standard_defaults(void *self, struct soq_sampling *sampling_out, struct soq_error *err)
{
    uint32_t size = sampling_out->struct_size;

    (void)err;
    *sampling_out = ((const struct standard *)self)->defaults;
    sampling_out->struct_size = size;
    return 0;
}

static int check_bias(const struct soq_sampling *sampling, uint32_t n_vocab, struct soq_error *err)
{
    if (!sampling->n_bias)
        return 0;
    if (!sampling->bias || sampling->bias_stride < sizeof *sampling->bias)
        return plugin_fail(err, SOQ_EINVAL, "logit_bias: %u entries, but no array of them (stride %u)", sampling->n_bias,
                           sampling->bias_stride);
    for (uint32_t i = 0; i < sampling->n_bias; i++) {
        const struct soq_logit_bias *b =
            (const struct soq_logit_bias *)((const char *)sampling->bias + (size_t)i * sampling->bias_stride);

        if (b->token < 0 || (uint32_t)b->token >= n_vocab)
            return plugin_fail(err, SOQ_EINVAL, "logit_bias: token %d is none of the model's, 0 to %u", b->token, n_vocab - 1);
        if (!(b->bias < INFINITY))
            return plugin_fail(err, SOQ_EINVAL,
                               "logit_bias of token %d = %g: must be a finite number, or -inf to ban the token", b->token,
                               (double)b->bias);
    }
    return 0;
}

static int standard_check(void *self, const struct soq_sampling *sampling, uint32_t n_vocab, struct soq_error *err)
{
    (void)self;
    if (!n_vocab)
        return plugin_fail(err, SOQ_EINVAL, "sampler standard: a vocabulary of 0 tokens");
    for (size_t i = 0; i < N_FLOATS; i++) {
        const struct soq_option *o = &standard_options[i];
        float value = *(const float *)((const char *)sampling + float_offsets[i]);

        if (!(value >= (float)o->min && value <= (float)o->max))
            return plugin_fail(err, SOQ_EINVAL, "%s = %g: must be from %g to %g", o->key, (double)value, o->min, o->max);
    }
    if (sampling->repeat_last_n < -1)
        return plugin_fail(err, SOQ_EINVAL, "repeat_last_n = %d: must be a number of tokens, or -1 for all",
                           sampling->repeat_last_n);
    return check_bias(sampling, n_vocab, err);
}

/* ---- One token */

/* A row's logits on their way through the chain. */
struct chain {
    const struct soq_sampling *sampling;
    struct soq_sampler_row row; /* logits: those that the chain changes */
    float raw_max, max;         /* of the logits as they came, and of what bias, penalties and mask left */
    double raw_sum;             /* of e^(logit - raw_max) */
    struct pool pool;
};

static int broken(const struct soq_sampler_row *row, struct soq_error *err)
{
    return plugin_fail(err, SOQ_EINVAL, "sampler standard: all %u logits are -inf; the model's output is broken", row->n_vocab);
}

/* The logits as they came. */
static int chain_begin(struct chain *c, const struct soq_sampling *sampling, const struct soq_sampler_row *row,
                       struct soq_error *err)
{
    int rc = standard_settle(row->logits, row->n_vocab, &c->raw_max, err);

    if (rc)
        return rc;
    if (c->raw_max == -INFINITY)
        return broken(row, err);
    c->sampling = sampling;
    c->row = *row;
    c->raw_sum = standard_sum_exp(row->logits, row->n_vocab, c->raw_max);
    return 0;
}

/* Bias, penalties and mask. */
static int chain_adjust(struct chain *c, struct soq_error *err)
{
    const struct soq_sampler_row *row = &c->row;
    int rc;

    c->max = c->raw_max;
    if (!standard_changes(c->sampling, row))
        return 0;
    standard_adjust(c->sampling, row);
    if (row->mask)
        standard_mask(row->mask, row->logits, row->n_vocab);
    rc = standard_settle(row->logits, row->n_vocab, &c->max, err);
    if (!rc && c->max == -INFINITY)
        rc = plugin_fail(err, SOQ_EINVAL, "sampler standard: no token is left at position %u; mask and logit_bias forbid all",
                         row->position);
    return rc;
}

static bool is_greedy(const struct soq_sampling *sampling)
{
    return sampling->temperature == 0 || sampling->top_k == 1;
}

static void chain_filter(struct chain *c)
{
    pool_init(&c->pool, c->row.logits, c->row.n_vocab, c->max);
    pool_top_k(&c->pool, c->sampling->top_k);
    pool_top_p(&c->pool, c->sampling->top_p);
    pool_min_p(&c->pool, c->sampling->min_p);
}

static int standard_sample(void *self, void *state, const struct soq_sampling *sampling, const struct soq_sampler_row *row,
                           struct soq_sampled *sampled_out, struct soq_error *err)
{
    struct chain c;
    uint32_t token, n = 1;
    int rc = chain_begin(&c, sampling, row, err);

    (void)self;
    (void)state;
    if (!rc)
        rc = chain_adjust(&c, err);
    if (rc)
        return rc;
    if (is_greedy(sampling)) {
        token = standard_first(row->logits, row->n_vocab, c.max);
    } else {
        chain_filter(&c);
        token = pool_draw(&c.pool, sampling->temperature, philox_uniform(sampling->seed, row->position, STREAM_DRAW), &n);
    }
    sampled_out->token = (int32_t)token;
    sampled_out->logprob = (float)((double)(standard_raw(sampling, row, token) - c.raw_max) - log(c.raw_sum));
    sampled_out->n_candidates = n;
    return 0;
}

static int standard_distribution(void *self, const void *state, const struct soq_sampling *sampling,
                                 const struct soq_sampler_row *row, struct soq_distribution *out, struct soq_error *err)
{
    struct chain c;
    uint32_t n = 1, best;
    int rc = chain_begin(&c, sampling, row, err);

    (void)self;
    (void)state;
    if (rc)
        return rc;
    memcpy(out->p, row->logits, row->n_vocab * sizeof *out->p);
    c.row.logits = out->p; /* the logits stay as they are */
    rc = chain_adjust(&c, err);
    if (rc)
        return rc;
    if (is_greedy(sampling)) {
        best = standard_first(out->p, row->n_vocab, c.max);
        memset(out->p, 0, row->n_vocab * sizeof *out->p);
        out->p[best] = 1;
    } else {
        chain_filter(&c);
        n = pool_probabilities(&c.pool, sampling->temperature, row->n_vocab, out->p);
    }
    out->n_candidates = n;
    out->log_sum = (double)c.raw_max + log(c.raw_sum);
    return 0;
}

/* ---- The plugin */

static const struct soq_sampler_ops standard_ops = {
    .struct_size = sizeof standard_ops,
    .instance_size = sizeof(struct standard),
    .init = standard_init,
    .defaults = standard_defaults,
    .check = standard_check,
    .sample = standard_sample,
    .distribution = standard_distribution,
};

static const struct soq_role_entry standard_roles[] = {
    {
        .struct_size = sizeof standard_roles[0],
        .role = SOQ_ROLE_SAMPLER,
        .minor = SOQ_SAMPLER_MINOR,
        .min_minor = SOQ_SAMPLER_MINOR,
        .ops = &standard_ops,
        .options = standard_options,
        .n_options = sizeof standard_options / sizeof standard_options[0],
        .option_stride = sizeof standard_options[0],
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "standard",
    .variant = "",
    .version = "0.1.0",
    .summary = "Sampler: temperature, top-k, top-p, min-p, penalties, logit bias",
    .licence = "Apache-2.0",
    .n_roles = sizeof standard_roles / sizeof standard_roles[0],
    .role_stride = sizeof standard_roles[0],
    .roles = standard_roles,
};
