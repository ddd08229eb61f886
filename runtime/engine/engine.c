/* Putting an engine together from a model and the plugins that the configuration names; waiting for a job. */
#include "engine/engine.h"
#include "engine/draft.h"
#include "engine/draw.h"
#include "engine/identity.h"
#include "engine/jobs.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/size.h"
#include "config/settings.h"
#include "model/fingerprint.h"

/* ---- Plugins --------------------------------------------------------------------------------------------------------- */

static int init_sampler(struct soq__engine *e, const struct soq__engine_params *p, struct soq_error *err)
{
    const char *spec = soq__settings_string(p->settings, "decoding", "sampler");
    int rc = soq__role_init(&e->sampler, p->registry, p->settings, SOQ_ROLE_SAMPLER, spec, &e->host.services, err);

    if (rc)
        soq__fail_prefix(err, "[decoding] sampler = %s", spec);
    return rc;
}

/* Policies and codecs. */
static int init_strategies(struct soq__engine *e, const struct soq__engine_params *p, struct soq_error *err)
{
    struct soq__layer_rules layers;
    const struct soq__policies_params params = {
        .registry = p->registry,
        .settings = p->settings,
        .host = &e->host.services,
        .hparams = &e->model->hparams,
        .layers = &layers,
        .fingerprint = &e->fingerprint,
        .lossy = e->drafting.on,
        .context = e->context,
    };
    int rc = soq__layer_rules_init(&layers, p->settings, params.hparams->n_layers, params.hparams->n_kv_heads, err);

    if (!rc) /* before weights are loaded, which it may let go of */
        rc = soq__model_fingerprint(e->model->gguf, &e->fingerprint, err);
    if (!rc)
        rc = soq__policies_init(&e->policies, &params, err);
    if (!rc)
        rc = soq__codecs_init(&e->codecs, &params, err);
    soq__layer_rules_done(&layers);
    return rc ? rc : soq__drafting_check(e, err);
}

/* ---- KV cache -------------------------------------------------------------------------------------------------------- */

/* Of all blocks that a sequence takes, the bytes that lie in the memory of instance i. */
static uint64_t block_bytes_at(const struct soq__engine *e, uint32_t i)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < e->layout.n_groups; g++)
        if (e->exec.instances[e->layout.groups[g].owner].memory == i)
            bytes += soq__kv_final_bytes(&e->layout.groups[g]);
    return bytes;
}

/* Three quarters of what is free; the memory that would be full first decides. */
static uint64_t kv_limit(const struct soq__engine *e, const struct soq__settings *settings)
{
    uint64_t given = soq__settings_size(settings, "kv", "memory"), limit = UINT64_MAX, all = 0;

    if (given)
        return given;
    for (uint32_t g = 0; g < e->layout.n_groups; g++)
        all += soq__kv_final_bytes(&e->layout.groups[g]);
    for (uint32_t i = 0; i < e->exec.n_instances; i++) {
        uint64_t bytes = block_bytes_at(e, i), free_bytes = e->exec.choices[i].devices[0].memory_free;

        if (!bytes)
            continue;
        free_bytes = (free_bytes ? free_bytes : soq__memory_available()) / 4 * 3 / bytes;
        limit = free_bytes < limit / all ? free_bytes * all : limit;
    }
    return limit;
}

static struct soq__kv_layout_params layout_params(const struct soq__engine *e, const struct soq__settings *settings)
{
    return (struct soq__kv_layout_params){
        .hparams = &e->model->hparams,
        .block_tokens = (uint32_t)soq__settings_int(settings, "kv", "block_tokens"),
        .policies = e->policies.kv,
        .head_policy = {e->policies.of[SOQ__KV_FULL], e->policies.of[SOQ__KV_LOSSY]},
        .codecs = e->codecs.kv,
        .layer_codecs = {e->codecs.of_layer[SOQ__KV_FULL], e->codecs.of_layer[SOQ__KV_LOSSY]},
        .codec_origins = {e->codecs.origins[SOQ__KV_FULL], e->codecs.origins[SOQ__KV_LOSSY]},
        .pack_grid = (uint32_t)soq__settings_int(settings, "kv", "pack_grid"),
        .residual = (uint32_t)soq__settings_int(settings, "kv", "residual"),
    };
}

/* Layers are grouped by who computes their attention: he holds their blocks. */
static int init_layout(struct soq__engine *e, struct soq__kv_layout_params *lp, struct soq_error *err)
{
    uint32_t n_layers = e->model->hparams.n_layers;
    uint8_t *owners = soq__alloc_array(n_layers, SOQ__KV_VIEWS);
    int rc;

    if (!owners)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    for (uint32_t view = 0; view < SOQ__KV_VIEWS; view++) {
        lp->owners[view] = owners + view * n_layers;
        for (uint32_t l = 0; l < n_layers; l++)
            owners[view * n_layers + l] = (uint8_t)e->net.layers[l].views[view].at;
    }
    rc = soq__kv_layout_init(&e->layout, lp, err);
    soq__free(owners);
    return rc;
}

/* [kv] trace */
static int init_trace(struct soq__engine *e, const struct soq__settings *settings, struct soq_error *err)
{
    const char *path = soq__settings_string(settings, "kv", "trace");
    int rc = *path ? soq__trace_create(path, &e->trace, err) : 0;

    if (e->trace)
        e->kv.trace = soq__trace_hook(e->trace);
    return rc;
}

static int init_cache(struct soq__engine *e, const struct soq__settings *settings, struct soq_error *err)
{
    struct soq__kv_owner owners[SOQ_BACKENDS_MAX] = {0};
    const struct soq__kv_cache_params cp = {
        .limit = kv_limit(e, settings),
        .swap_limit = soq__settings_size(settings, "kv", "swap_memory"),
        .owners = owners,
        .layout = &e->layout,
        .policies = e->policies.kv,
        .n_policies = e->policies.n,
        .context = e->context,
        .chunk = soq__max_u32(e->chunk, 1 + e->drafting.most),
        .max_slots = e->max_sequences,
    };
    int rc;

    for (uint32_t i = 0; i < e->exec.n_instances; i++) {
        const struct soq__instance *attention = &e->exec.instances[i];

        if (attention->memory < e->exec.n_instances) {
            const struct soq__instance *memory = &e->exec.instances[attention->memory];

            owners[i] = (struct soq__kv_owner){memory->ops, memory->self, attention->ops, attention->self};
        }
    }
    rc = soq__kv_cache_init(&e->kv, &cp, err);
    return rc ? rc : init_trace(e, settings, err);
}

/* ---- What is kept beyond a sequence, and what may go --------------------------------------------------------------- */

/* What keeps sequences of this policy from taking over what others have computed; NULL: nothing. */
static const char *hit_problem(const struct soq__kv_policy *p)
{
    if (p->ops->traits & SOQ_POLICY_NO_PREFIX_HITS || p->plan.no_prefix_hits)
        return "it cannot work with prefixes that another sequence computed";
    if (soq__kv_weighs(p) && !p->plan.queries)
        return "it adds up the attention of every row, so each sequence must compute its own";
    if (p->ops->state_size && p->ops->on_commit)
        return "its state depends on every row, so each sequence must compute its own";
    return NULL;
}

/* An index would hold on to the memory that a policy frees, so of itself it is there only where none does. */
static int wants_prefixes(const struct soq__engine *e, const struct soq__settings *settings, bool *out, struct soq_error *err)
{
    enum { AUTO, ON, OFF };
    unsigned choice = soq__settings_choice(settings, "kv", "prefix_cache");
    bool keeps_all = true, has_residual = false;

    for (uint32_t g = 0; g < e->layout.n_groups; g++)
        has_residual = has_residual || e->layout.groups[g].residual;
    if (has_residual && choice == ON)
        return soq__fail(err, SOQ_EUNSUPPORTED,
                         "[kv] prefix_cache = on with a codec that keeps the last entries plain: another sequence would find "
                         "them packed; use auto or off, or a residual of 0");

    for (uint32_t i = 0; i < e->policies.n && choice != OFF; i++) {
        const struct soq__kv_policy *p = &e->policies.kv[i];

        keeps_all = keeps_all && !p->plan.needs && !p->plan.window && !p->ops->state_size;
        if (choice == ON && hit_problem(p))
            return soq__fail(err, SOQ_EUNSUPPORTED, "[kv] prefix_cache = on with [%s] policy = %s: %s; use auto or off",
                             soq__kv_section(p->view), p->name, hit_problem(p));
    }
    *out = choice == ON || (choice == AUTO && keeps_all && !has_residual);
    return 0;
}

/* If there is an index at all. */
static int init_prefix(struct soq__engine *e, const struct soq__settings *settings, bool wanted, struct soq_error *err)
{
    struct soq__prefix_params params = {
        .limit = soq__settings_size(settings, "kv", "prefix_memory"),
        .ttl = (double)soq__settings_int(settings, "kv", "prefix_ttl"),
    };

    if (!wanted)
        return 0;
    params.limit = params.limit ? params.limit : e->kv.budget.limit / 4;
    params.domain = soq__hash(e->identity.data, e->identity.len);
    return soq__prefix_init(&e->prefix, &e->kv, &params, err);
}

/* Computing again gives the same only where nothing was chosen by attention and the backends do not care who else computes. */
static int init_preemption(struct soq__engine *e, const struct soq__settings *settings, struct soq_error *err)
{
    enum { AUTO, SWAP, RECOMPUTE, OFF };
    unsigned choice = soq__settings_choice(settings, "kv", "preempt");
    bool is_exact = soq__exec_is_batch_invariant(&e->exec);

    for (uint32_t i = 0; i < e->policies.n; i++) {
        if (choice == RECOMPUTE && soq__kv_selects(&e->policies.kv[i]))
            return soq__fail(
                err, SOQ_EUNSUPPORTED,
                "[kv] preempt = recompute with [%s] policy = %s: what it evicted cannot be computed again; use swap",
                soq__kv_section(e->policies.kv[i].view), e->policies.kv[i].name);
        is_exact = is_exact && !soq__kv_selects(&e->policies.kv[i]);
    }
    if (choice == RECOMPUTE && !is_exact)
        return soq__fail(err, SOQ_EUNSUPPORTED,
                         "[kv] preempt = recompute: results of this backend depend on who else computes; "
                         "use swap");
    if (choice == SWAP && !e->kv.swap.limit)
        return soq__fail(err, SOQ_EINVAL, "[kv] preempt = swap, but swap_memory is 0");
    e->preempt.swap = (choice == AUTO || choice == SWAP) && e->kv.swap.limit;
    e->preempt.recompute = (choice == AUTO || choice == RECOMPUTE) && is_exact;
    return 0;
}

/* ---- Life ------------------------------------------------------------------------------------------------------------ */

/* Asked by the backend between ops: everybody in the step has given up. */
static int all_cancelled(void *arg)
{
    const struct soq__engine *e = arg;

    for (uint32_t i = 0; i < e->n_in_flight; i++)
        if (!atomic_load(e->in_flight[i]))
            return 0;
    return e->n_in_flight > 0;
}

static void read_settings(struct soq__engine *e, const struct soq__engine_params *p)
{
    uint32_t trained = e->model->hparams.context_train, decoding;

    e->context = (uint32_t)soq__settings_int(p->settings, "model", "context");
    if (!e->context)
        e->context = trained;
    if (e->context > trained)
        soq__log(SOQ_LOG_WARN, "[model] context = %u is beyond the %u positions that the model was made for", e->context,
                 trained);
    e->max_sequences = (uint32_t)soq__settings_int(p->settings, "engine", "max_sequences");
    e->step_tokens = (uint32_t)soq__settings_int(p->settings, "engine", "step_tokens");
    e->chunk = (uint32_t)soq__settings_int(p->settings, "engine", "chunk");
    soq__drafting_init(e, p->settings);
    decoding = e->max_sequences * (1 + e->drafting.most);
    e->prompt_rows = (e->step_tokens + 1) / 2;
    e->max_rows = soq__max_u32(e->step_tokens, decoding + e->prompt_rows);
    e->max_outputs = soq__max_u32(decoding, p->max_outputs);
}

static int init_scratch(struct soq__engine *e, struct soq_error *err)
{
    size_t n_vocab = e->model->hparams.dim[SOQ__DIM_VOCAB];
    const struct soq__instance *head = &e->exec.instances[e->net.output.at];
    bool on_host = strcmp(head->ops->domain, "host") == 0;
    int rc = soq__draw_init(&e->draw, e, (uint32_t)n_vocab, err);

    if (rc)
        return rc;
    e->in_flight = soq__alloc_array(e->max_sequences, sizeof(const atomic_bool *));
    if (!on_host)
        e->logits = soq__alloc_array(n_vocab, sizeof(float) * e->max_outputs);
    if (!e->in_flight || (!on_host && !e->logits))
        return soq__fail(err, SOQ_ENOMEM, "out of memory for logits");
    return soq__step_init(&e->step, e->max_rows, e->max_sequences, e->max_outputs, soq__kv_max_segments(&e->kv), err);
}

/* Placement before layout, since blocks lie where attention is computed; layout and what prefixes need before weights, since
 * they are quick to refuse. */
static int build_net(struct soq__engine *e, const struct soq__engine_params *p, struct soq_error *err)
{
    struct soq__kv_layout_params lp;
    struct soq__net_params np = {
        .model = e->model,
        .exec = &e->exec,
        .max_rows = e->max_rows,
        .max_outputs = e->max_outputs,
        .layout = &lp,
        .policies = &e->policies,
        .progress = p->progress,
        .progress_arg = p->progress_arg,
    };
    bool prefixes = false;
    int rc = init_strategies(e, p, err);

    if (rc)
        return rc;
    lp = layout_params(e, p->settings);
    rc = soq__net_place(&e->net, &np, err);
    if (!rc)
        rc = init_layout(e, &lp, err);
    if (rc || p->place_only)
        return rc;
    rc = wants_prefixes(e, p->settings, &prefixes, err);
    if (!rc)
        rc = soq__net_load(&e->net, &np, &e->layout, err);
    if (!rc)
        rc = init_cache(e, p->settings, err);
    if (!rc)
        rc = soq__identity_write(e, &e->identity, err);
    if (!rc)
        rc = init_prefix(e, p->settings, prefixes, err);
    return rc ? rc : init_preemption(e, p->settings, err);
}

static int build(struct soq__engine *e, const struct soq__engine_params *p, struct soq_error *err)
{
    const struct soq__exec_params xp = {
        .registry = p->registry,
        .settings = p->settings,
        .host = &e->host,
        .max_rows = e->max_rows,
        .max_slots = e->max_sequences,
        .profile = p->profile,
    };
    int rc = soq__pool_create(&e->pool, err);

    if (rc)
        return rc;
    soq__host_init(&e->host, e->pool);
    e->host.cancel_test = all_cancelled;
    e->host.cancel_arg = e;
    rc = init_sampler(e, p, err);
    if (!rc)
        rc = soq__exec_init(&e->exec, &xp, err);
    if (!rc)
        rc = build_net(e, p, err);
    return rc || p->place_only ? rc : init_scratch(e, err);
}

int soq__engine_create(const struct soq__engine_params *p, struct soq__engine **out, struct soq_error *err)
{
    struct soq__engine *e = soq__alloc_zero(1, sizeof *e);
    int rc;

    if (!e)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    e->model = p->model;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    read_settings(e, p);
    rc = build(e, p, err);
    if (rc) {
        soq__engine_free(e);
        return rc;
    }
    if (!p->place_only) {
        soq__drafting_warn(e);
        soq__log(SOQ_LOG_INFO, "%s: up to %u sequences of %u tokens; the KV cache takes up to %s",
                 soq__gguf_path(e->model->gguf), e->max_sequences, e->context, SOQ__SIZE(e->kv.budget.limit));
    }
    *out = e;
    return 0;
}

void soq__engine_free(struct soq__engine *e)
{
    if (!e)
        return;
    if (e->prefix.cache)
        soq__prefix_done(&e->prefix);
    if (e->kv.slots)
        soq__kv_cache_done(&e->kv);
    soq__trace_free(e->trace);
    soq__buf_done(&e->identity);
    soq__step_done(&e->step);
    soq__net_done(&e->net);
    soq__kv_layout_done(&e->layout);
    soq__exec_done(&e->exec);
    soq__role_done(&e->sampler);
    soq__codecs_done(&e->codecs);
    soq__policies_done(&e->policies);
    soq__pool_free(e->pool);
    soq__free(e->logits);
    soq__draw_done(&e->draw);
    soq__free(e->in_flight);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    soq__free(e);
}

/* ---- Jobs ------------------------------------------------------------------------------------------------------------ */

/* Takes the lock with no step in flight. Whoever steps lets those who wait here go first: steps follow each other so closely
 * that they would hardly ever find a gap. */
void soq__engine_lock(struct soq__engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->n_waiting++;
    while (e->stepping)
        pthread_cond_wait(&e->changed, &e->lock);
    e->n_waiting--;
}

void soq__engine_unlock(struct soq__engine *e)
{
    pthread_cond_broadcast(&e->changed); /* the stepping goes on; somebody may have waited for memory that is free now */
    pthread_mutex_unlock(&e->lock);
}

static int enqueue(struct soq__engine *e, struct soq__job *job)
{
    struct soq__job **end = &e->jobs;

    if (job->seq->job)
        return soq__fail(&job->err, SOQ_EBUSY, "the session has a request in hand: one at a time");
    while (*end)
        end = &(*end)->next;
    *end = job;
    job->next = NULL;
    job->state = SOQ__JOB_QUEUED;
    job->step_rows = 0;
    job->seq->job = job;
    job->kv_before = job->seq->kv.stats;
    return 0;
}

static int check_job(struct soq__engine *e, struct soq__job *job)
{
    uint32_t n_vocab = e->net.logits.cols;

    if (!job->n_prompt)
        return soq__fail(&job->err, SOQ_EINVAL, "the prompt is empty: there must be at least one token");
    if (job->n_prompt > e->context)
        return soq__fail(&job->err, SOQ_ELIMIT,
                         "the prompt has %u tokens, the context holds %u; shorten it or raise [model] context", job->n_prompt,
                         e->context);
    for (uint32_t i = 0; i < job->n_prompt; i++)
        if (job->prompt[i] < 0 || (uint32_t)job->prompt[i] >= n_vocab)
            return soq__fail(&job->err, SOQ_EINVAL, "prompt token %u is %d, but ids go from 0 to %u", i, job->prompt[i],
                             n_vocab - 1);
    return e->sampler.plugin->ops.sampler->check(e->sampler.self, &job->sampling, n_vocab, &job->err);
}

static void see_through(struct soq__engine *e, struct soq__job *job, soq__drain *drain, void *drain_arg)
{
    for (;;) {
        if (drain && drain(drain_arg))
            continue;
        if (job->state == SOQ__JOB_DONE)
            return;
        if (!e->stepping && !e->n_waiting && soq__engine_step(e))
            pthread_cond_broadcast(&e->changed);
        else
            pthread_cond_wait(&e->changed, &e->lock);
    }
}

void soq__engine_run(struct soq__engine *e, struct soq__job *job, soq__drain *drain, void *drain_arg)
{
    job->started = soq__clock_now();
    job->err = (struct soq_error)SOQ_ERROR_INIT;
    job->n_generated = job->n_cached = job->n_prefix = job->n_overtaken = 0;
    job->was_admitted = false;
    job->first_token = job->last_token = job->prompt_done = job->started;
    job->rc = check_job(e, job);
    if (!job->rc)
        job->rc = soq__drafts_open(e, job, &job->err);
    if (job->rc)
        return;
    pthread_mutex_lock(&e->lock);
    job->rc = enqueue(e, job); /* a step in flight does not mind: it looks at jobs with rows in it alone */
    if (!job->rc)
        see_through(e, job, drain, drain_arg);
    pthread_cond_broadcast(&e->changed); /* whoever waits may have to take over the stepping */
    pthread_mutex_unlock(&e->lock);
    soq__drafts_close(job);
}
