/* Sequences of an engine: their life, forks, going back. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/admit.h"
#include "kv/swap.h"

static int open_kv(struct soq__sequence *seq, const void *salt, size_t n, struct soq_error *err)
{
    struct soq__engine *e = seq->engine;
    int rc;

    soq__engine_lock(e);
    rc = soq__kv_seq_init(&seq->kv, &e->kv, err);
    if (!rc && e->prefix.cache)
        rc = soq__prefix_enter(&e->prefix, salt, n, &seq->root, err);
    soq__engine_unlock(e);
    return rc;
}

int soq__sequence_open(struct soq__engine *e, const void *salt, size_t n, struct soq__sequence **out, struct soq_error *err)
{
    struct soq__sequence *seq = soq__alloc_zero(1, sizeof *seq);
    size_t state_size = e->sampler.plugin->ops.sampler->state_size;
    int rc;

    if (!seq)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for a sequence");
    seq->engine = e;
    seq->tokens = soq__alloc_array((size_t)e->context + 1, sizeof *seq->tokens);
    seq->logprobs = soq__alloc_array((size_t)e->context + 1, sizeof *seq->logprobs);
    if (state_size)
        seq->sampler_state = soq__alloc_zero(1, state_size);
    if (!seq->tokens || !seq->logprobs || (state_size && !seq->sampler_state))
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory for a sequence of %u tokens", e->context);
    else
        rc = open_kv(seq, salt, n, err);
    if (rc) {
        soq__sequence_free(seq);
        return rc;
    }
    *out = seq;
    return 0;
}

int soq__sequence_create(struct soq__engine *e, struct soq__sequence **out, struct soq_error *err)
{
    return soq__sequence_open(e, NULL, 0, out, err);
}

void soq__sequence_free(struct soq__sequence *seq)
{
    struct soq__engine *e;

    if (!seq)
        return;
    e = seq->engine;
    soq__engine_lock(e);
    soq__kv_seq_done(&seq->kv);
    soq__prefix_leave(&e->prefix, seq->root);
    soq__engine_unlock(e);
    soq__free(seq->tokens);
    soq__free(seq->logprobs);
    soq__free(seq->sampler_state);
    soq__free(seq);
}

/* What the copy shares must be in the pool. */
static int fork_kv(struct soq__sequence *copy, struct soq__sequence *seq, struct soq_error *err)
{
    int rc = soq__bring_in(seq, err);

    if (rc)
        return rc;
    do
        rc = soq__kv_fork(&copy->kv, &seq->kv, err);
    while (rc == -SOQ_EBUSY && soq__make_room_for_fork(seq));
    return rc;
}

int soq__sequence_fork(struct soq__sequence *seq, struct soq__sequence **out, struct soq_error *err)
{
    struct soq__engine *e = seq->engine;
    struct soq__sequence *copy;
    size_t n_salt;
    const void *salt = soq__prefix_salt(seq->root, &n_salt);
    int rc = soq__sequence_open(e, salt, n_salt, &copy, err);

    if (rc)
        return rc;
    soq__engine_lock(e);
    rc = fork_kv(copy, seq, err);
    if (!rc) {
        copy->n_tokens = seq->n_tokens;
        copy->n_dropped = seq->n_dropped;
        memcpy(copy->tokens, seq->tokens, seq->n_tokens * sizeof *seq->tokens);
        memcpy(copy->logprobs, seq->logprobs, seq->n_tokens * sizeof *seq->logprobs);
        if (seq->sampler_state)
            memcpy(copy->sampler_state, seq->sampler_state, e->sampler.plugin->ops.sampler->state_size);
    }
    soq__engine_unlock(e);
    if (rc) {
        soq__sequence_free(copy);
        return rc;
    }
    *out = copy;
    return 0;
}

uint32_t soq__sequence_computed(const struct soq__sequence *seq)
{
    return seq->kv.n_committed > seq->n_dropped ? seq->kv.n_committed : seq->n_dropped;
}

uint32_t soq__sequence_length(struct soq__sequence *seq)
{
    uint32_t n;

    pthread_mutex_lock(&seq->engine->lock); /* a step in flight does not mind */
    n = soq__sequence_computed(seq);
    pthread_mutex_unlock(&seq->engine->lock);
    return n;
}

int soq__sequence_rollback(struct soq__sequence *seq, uint32_t n_tokens, struct soq_error *err)
{
    struct soq__engine *e = seq->engine;
    int rc = 0;

    soq__engine_lock(e);
    if (n_tokens > seq->n_tokens)
        rc = soq__fail(err, SOQ_EINVAL, "cannot go back to %u tokens: there are %u", n_tokens, seq->n_tokens);
    else if (n_tokens < seq->kv.n_committed)
        rc = soq__kv_rollback(&seq->kv, n_tokens, err);
    if (!rc) {
        seq->n_tokens = n_tokens;
        seq->n_dropped = seq->n_dropped < n_tokens ? seq->n_dropped : n_tokens;
    }
    soq__engine_unlock(e);
    return rc;
}
