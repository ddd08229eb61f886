/* The role sampler: logits to a token. Part of the plugin ABI: include soquete/plugin.h. */
#ifndef SOQUETE_SAMPLER_H
#define SOQUETE_SAMPLER_H

#include "soquete/host.h"

#ifdef __cplusplus
extern "C" {
#endif

struct soq_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY bans the token */
};

/* What a request asks for; the host has checked nothing but struct_size. */
struct soq_sampling {
    uint32_t struct_size;
    int32_t top_k;           /* <= 0: off */
    float temperature;       /* 0: greedy */
    float top_p;             /* 1: off */
    float min_p;             /* 0: off */
    float repeat_penalty;    /* 1: off */
    float presence_penalty;  /* 0: off */
    float frequency_penalty; /* 0: off */
    int32_t repeat_last_n;   /* tokens of history that penalties look at; 0: none, -1: all */
    uint64_t seed;
    uint32_t n_bias, bias_stride;
    const struct soq_logit_bias *bias; /* valid during the sequence */
};

struct soq_sampler_row {
    uint32_t struct_size;
    uint32_t n_vocab;
    float *logits;          /* [n_vocab], scratch that the sampler may overwrite */
    uint32_t *scratch;      /* [n_vocab], for indices */
    const uint32_t *mask;   /* bit t % 32 of word t / 32: token t is allowed; NULL: all are */
    const int32_t *history; /* tokens so far, prompt included */
    uint32_t n_history;
    uint32_t position; /* of the token to be sampled: random numbers are a function of (seed, position) */
};

struct soq_sampled {
    uint32_t struct_size;
    int32_t token;
    float logprob; /* natural log of the token's probability under the model: softmax of the logits as they came, no temperature
                    */
    uint32_t n_candidates; /* that were left to draw from */
};

/* What sample() draws from. */
struct soq_distribution {
    uint32_t struct_size;
    uint32_t n_candidates; /* tokens that are left to draw from */
    float *p;              /* [n_vocab] of the caller's: probabilities; 0 for tokens that are not left */
    double log_sum;        /* the log-probability of token t under the model is logits[t] - log_sum */
};

struct soq_sampler_ops {
    uint32_t struct_size;
    uint32_t reserved;
    size_t instance_size;
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config,
                struct soq_error *err); /* required; [decoding.NAME] */
    void (*shutdown)(void *self);       /* optional */
    /* Required. Fills the defaults of the section; the request's own values are laid over them by the host. */
    int (*defaults)(void *self, struct soq_sampling *sampling_out, struct soq_error *err);
    /* Required. Refuses values out of range, naming the parameter. */
    int (*check)(void *self, const struct soq_sampling *sampling, uint32_t n_vocab, struct soq_error *err);
    size_t state_size; /* per sequence, as for policies; 0 when the sampler is a pure function */
    /* Required. Any thread, several at once (different rows); no allocation. All candidates masked or NaN logits: SOQ_EINVAL.
     */
    int (*sample)(void *self, void *state, const struct soq_sampling *sampling, const struct soq_sampler_row *row,
                  struct soq_sampled *sampled_out, struct soq_error *err);
    /* Optional, since minor 2: drafts beyond temperature 0 need it. The distribution that sample() draws from; the same
     * failures. Any thread, several at once (different rows and `out`); no allocation. The state stays as it is, and so do the
     * logits but for those of +INFINITY: these become 0 and all others -INFINITY. */
    int (*distribution)(void *self, const void *state, const struct soq_sampling *sampling, const struct soq_sampler_row *row,
                        struct soq_distribution *out, struct soq_error *err);
};

#ifdef __cplusplus
}
#endif
#endif
