/* What stays in the prefix index: what sessions pin, and [kv] prefix_pin, a system message that is computed when the model is
 * loaded. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/size.h"
#include "config/settings.h"
#include "engine/runtime.h"

#define FILE_MAX ((size_t)16 << 20) /* bytes */

/* ---- Of sessions --------------------------------------------------------------------------------------------------------- */

/* One call's pins: the session may begin otherwise when they are to go, and more of its blocks may be known then. */
struct soq__pins {
    struct soq__pins *next;
    uint32_t n_asked, n; /* tokens; n: as many as were pinned */
    int32_t tokens[];    /* [n] */
};

static int check(const struct soq__sequence *seq, uint32_t n_tokens, const char *what, struct soq_error *err)
{
    if (n_tokens > seq->n_tokens)
        return soq__fail(err, SOQ_EINVAL, "%u tokens are to be %s, but the session has %u", n_tokens, what, seq->n_tokens);
    return 0;
}

static int pin(struct soq_session *s, uint32_t n_tokens, uint32_t *n_out, struct soq_error *err)
{
    const struct soq__sequence *seq = s->seq;
    struct soq__pins *p = soq__alloc(sizeof *p + n_tokens * sizeof p->tokens[0]);

    if (!p)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for %u tokens that are to be pinned", n_tokens);
    p->next = s->pinned;
    p->n_asked = n_tokens;
    p->n = *n_out = soq__prefix_pin(&seq->engine->prefix, seq->root, seq->tokens, n_tokens);
    memcpy(p->tokens, seq->tokens, p->n * sizeof p->tokens[0]);
    s->pinned = p;
    return 0;
}

int soq_session_pin(struct soq_session *s, uint32_t n_tokens, uint32_t *pinned_out, struct soq_error *err)
{
    uint32_t n = 0;
    int rc;

    soq__engine_lock(s->seq->engine);
    rc = check(s->seq, n_tokens, "pinned", err);
    if (!rc && s->seq->root)
        rc = pin(s, n_tokens, &n, err);
    soq__engine_unlock(s->seq->engine);
    if (!rc && pinned_out)
        *pinned_out = n;
    return rc;
}

/* Its own latest pins of so many tokens, else those that another session left on the tokens that it has now. */
static int unpin(struct soq_session *s, uint32_t n_tokens, struct soq_error *err)
{
    const struct soq__sequence *seq = s->seq;
    struct soq__pins **at = &s->pinned, *p;
    int rc;

    while (*at && (*at)->n_asked != n_tokens)
        at = &(*at)->next;
    p = *at;
    if (p) {
        soq__prefix_unpin(&seq->engine->prefix, seq->root, p->tokens, p->n);
        *at = p->next;
        soq__free(p);
        return 0;
    }
    rc = check(seq, n_tokens, "unpinned", err);
    if (!rc && seq->root)
        soq__prefix_unpin(&seq->engine->prefix, seq->root, seq->tokens, n_tokens);
    return rc;
}

int soq_session_unpin(struct soq_session *s, uint32_t n_tokens, struct soq_error *err)
{
    int rc;

    soq__engine_lock(s->seq->engine);
    rc = unpin(s, n_tokens, err);
    soq__engine_unlock(s->seq->engine);
    return rc;
}

void soq__pins_forget(struct soq_session *s)
{
    for (struct soq__pins *p = s->pinned, *next; p; p = next) {
        next = p->next;
        soq__free(p);
    }
}

/* ---- [kv] prefix_pin ----------------------------------------------------------------------------------------------------- */

/* The tokens that every conversation with this system message begins with, whatever the template does: those that two of them
 * have in common. */
static int common_tokens(const struct soq__model *m, const char *system, struct soq__ids *ids, struct soq_error *err)
{
    struct soq_message messages[] = {{"system", system}, {"user", "a"}};
    struct soq_request req = SOQ_REQUEST_INIT;
    struct soq__ids other = {0};
    size_t n = 0;
    int rc;

    req.messages = messages;
    req.n_messages = 2;
    rc = soq__request_tokens(m, &req, ids, err);
    messages[1].content = "b";
    if (!rc)
        rc = soq__request_tokens(m, &req, &other, err);
    while (!rc && n < ids->n && n < other.n && ids->data[n] == other.data[n])
        n++;
    ids->n = n;
    soq__ids_done(&other);
    return rc;
}

/* Computes the tokens, as many as a hit can have, and pins them. */
static int compute(struct soq__engine *e, const struct soq__ids *ids, struct soq_error *err)
{
    uint32_t unit = e->layout.grid ? e->layout.grid : e->layout.block_tokens, pinned = 0;
    struct soq__job job = {.prompt = ids->data, .n_prompt = (uint32_t)(ids->n / unit * unit)};
    int rc;

    if (!job.n_prompt)
        return soq__fail(err, SOQ_EINVAL, "%zu tokens are less than %s of %u, so there is nothing to keep", ids->n,
                         e->layout.grid ? "the codec's grid" : "a block", unit);
    job.sampling = (struct soq_sampling){.struct_size = sizeof job.sampling};
    rc = e->sampler.plugin->ops.sampler->defaults(e->sampler.self, &job.sampling, err);
    if (!rc)
        rc = soq__sequence_create(e, &job.seq, err);
    if (rc)
        return rc;
    soq__engine_run(e, &job, NULL, NULL);
    rc = job.rc;
    if (rc && err)
        *err = job.err;
    if (!rc)
        pinned = soq__prefix_pin(&e->prefix, job.seq->root, job.prompt, job.n_prompt);
    if (!rc && pinned < job.n_prompt)
        rc = soq__fail(err, SOQ_ELIMIT, "%u tokens do not fit into [kv] prefix_memory, of which %s of %s are taken",
                       job.n_prompt, SOQ__SIZE(e->prefix.stats.bytes), SOQ__SIZE(e->prefix.params.limit));
    soq__sequence_free(job.seq);
    return rc;
}

int soq__pin_configured(struct soq_model *m, struct soq_error *err)
{
    const char *path = soq__settings_string(m->runtime->settings, "kv", "prefix_pin");
    struct soq_buf text = SOQ_BUF_INIT;
    struct soq__ids ids = {0};
    int rc;

    if (!path[0])
        return 0;
    if (!m->engine->prefix.cache)
        return soq__fail(err, SOQ_EINVAL, "[kv] prefix_pin = %s: there is no prefix index; set prefix_cache = on", path);
    rc = soq__file_read(path, FILE_MAX, &text, err);
    if (!rc)
        rc = common_tokens(m->model, soq__buf_str(&text), &ids, err);
    if (!rc)
        rc = compute(m->engine, &ids, err);
    if (rc)
        soq__fail_prefix(err, "[kv] prefix_pin = %s", path);
    soq__ids_done(&ids);
    soq__buf_done(&text);
    return rc;
}
