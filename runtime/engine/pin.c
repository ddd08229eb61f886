/* [kv] prefix_pin: a system message that is computed when the model is loaded, and stays. */
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "config/settings.h"
#include "engine/runtime.h"

#define FILE_MAX ((size_t)16 << 20) /* bytes */

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
        rc = soq__fail(err, SOQ_ELIMIT, "%u tokens do not fit into [kv] prefix_memory, of which %.1f MiB of %.1f MiB are taken",
                       job.n_prompt, (double)e->prefix.stats.bytes / (1 << 20), (double)e->prefix.params.limit / (1 << 20));
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
