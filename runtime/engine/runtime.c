/* soquete.h: runtimes, models, sessions. */
#include "engine/runtime.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "config/settings.h"
#include "engine/session.h"

const char *soq_version(void)
{
    return PACKAGE_VERSION;
}

const char *soq_error_text(int code)
{
    return soq__error_text(code);
}

/* ---- Structs of other sizes ------------------------------------------------------------------------------------------ */

/* Copies what both sides know, but for struct_size; each struct begins with it. */
static int copy_common(void *to, const void *from, const void *given, const char *name, struct soq_error *err)
{
    const size_t first = sizeof(uint32_t);
    uint32_t theirs, a, b;

    memcpy(&theirs, given, first);
    memcpy(&a, to, first);
    memcpy(&b, from, first);
    if (theirs <= first)
        return soq__fail(err, SOQ_EINVAL, "struct %s: struct_size is %u; initialise it with its ..._INIT", name, theirs);
    memcpy((char *)to + first, (const char *)from + first, (a < b ? a : b) - first);
    return 0;
}

int soq__struct_in(void *full, const void *given, const char *name, struct soq_error *err)
{
    return copy_common(full, given, given, name, err);
}

int soq__struct_out(void *given, const void *full, const char *name, struct soq_error *err)
{
    return copy_common(given, full, given, name, err);
}

/* ---- Runtime --------------------------------------------------------------------------------------------------------- */

static int load_settings(struct soq__settings *settings, const struct soq_runtime_params *p, struct soq_error *err)
{
    char *path = NULL;
    int rc = soq__settings_locate(p->config, &path, err);

    if (!rc && path)
        rc = soq__settings_load(settings, path, err);
    soq__free(path);
    for (size_t i = 0; !rc && p->settings && p->settings[i]; i++)
        rc = soq__settings_override(settings, p->settings[i], err);
    return rc;
}

static int build_runtime(struct soq_runtime *rt, const struct soq_runtime_params *p, struct soq_error *err)
{
    struct soq__registry_params rp = {.dirs = p->plugin_dirs};
    int rc = soq__settings_create(&rt->settings, err);

    if (!rc)
        rc = load_settings(rt->settings, p, err);
    if (rc)
        return rc;
    rt->log = p->log;
    rt->log_ctx = p->log_ctx;
    if (p->log)
        soq__log_install(p->log, p->log_ctx, (enum soq_log_level)soq__settings_choice(rt->settings, "runtime", "log_level"));
    while (p->plugin_dirs && p->plugin_dirs[rp.n_dirs])
        rp.n_dirs++;
    rp.config_dirs = soq__settings_list(rt->settings, "runtime", "plugin_dir", &rp.n_config_dirs);
    rc = soq__registry_create(&rp, &rt->registry, err);
    if (!rc) /* a plugin that checks its section is loaded later, or never */
        rc = soq__registry_claim_sections(rt->registry, rt->settings, err);
    return rc ? rc : soq__settings_check_unclaimed(rt->settings, err);
}

int soq_runtime_create(const struct soq_runtime_params *params, struct soq_runtime **runtime_out, struct soq_error *err)
{
    struct soq_runtime_params full = SOQ_RUNTIME_PARAMS_INIT;
    struct soq_runtime *rt;
    int rc = params ? soq__struct_in(&full, params, "soq_runtime_params", err) : 0;

    if (rc)
        return rc;
    rt = soq__alloc_zero(1, sizeof *rt);
    if (!rt)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    rc = build_runtime(rt, &full, err);
    if (rc) {
        soq_runtime_free(rt);
        return rc;
    }
    *runtime_out = rt;
    return 0;
}

void soq_runtime_free(struct soq_runtime *rt)
{
    if (!rt)
        return;
    soq__registry_free(rt->registry);
    soq__settings_free(rt->settings);
    if (rt->log)
        soq__log_remove(rt->log, rt->log_ctx);
    soq__free(rt);
}

/* ---- Model ----------------------------------------------------------------------------------------------------------- */

int soq__model_open(struct soq_runtime *rt, const char *path, const struct soq_model_params *params, uint32_t max_outputs,
                    struct soq_model **model_out, struct soq_error *err)
{
    struct soq__engine_params ep = {
        .registry = rt->registry, .settings = rt->settings, .max_outputs = max_outputs, .profile = rt->profile};
    struct soq_model_params full = SOQ_MODEL_PARAMS_INIT;
    struct soq_model *m;
    int rc = params ? soq__struct_in(&full, params, "soq_model_params", err) : 0;

    if (rc)
        return rc;
    m = soq__alloc_zero(1, sizeof *m);
    if (!m)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    m->runtime = rt;
    if (!path)
        path = soq__settings_string(rt->settings, "model", "path");
    if (path[0])
        rc = soq__model_load(path, soq__settings_string(rt->settings, "model", "template"), &m->model, err);
    else
        rc = soq__fail(err, SOQ_EINVAL, "no model is named: give a GGUF file, or set [model] path");
    if (!rc) {
        ep.model = m->model;
        ep.progress = full.progress;
        ep.progress_arg = full.progress_ctx;
        rc = soq__engine_create(&ep, &m->engine, err);
    }
    if (!rc)
        rc = soq__pin_configured(m, err);
    if (rc) {
        soq_model_free(m);
        return rc;
    }
    *model_out = m;
    return 0;
}

int soq_model_load(struct soq_runtime *rt, const char *path, const struct soq_model_params *params,
                   struct soq_model **model_out, struct soq_error *err)
{
    return soq__model_open(rt, path, params, 0, model_out, err);
}

void soq_model_free(struct soq_model *m)
{
    if (!m)
        return;
    soq__engine_free(m->engine);
    soq__model_free(m->model);
    soq__free(m);
}

static void add_kept(const struct soq__engine *e, struct soq_model_info *info)
{
    info->prefix_limit = e->prefix.params.limit;
    info->prefix_used = e->prefix.stats.bytes;
    info->prefix_pinned = e->prefix.stats.pinned_bytes;
    info->prefix_entries = e->prefix.stats.entries;
    info->prefix_lookups = e->prefix.stats.lookups;
    info->prefix_hits = e->prefix.stats.hits;
    info->prefix_tokens = e->prefix.stats.tokens_saved;
    info->prefix_evictions = e->prefix.stats.evictions;
    info->swap_limit = e->kv.swap.limit;
    info->swap_used = e->kv.swap.used;
    info->swap_peak = e->kv.swap.peak;
    info->swapped_out = e->kv.n_swapped_out;
    info->swapped_in = e->kv.n_swapped_in;
    info->dropped = e->preempt.n_dropped;
}

int soq_model_info(struct soq_model *m, struct soq_model_info *info, struct soq_error *err)
{
    struct soq__engine *e = m->engine;
    struct soq_model_info full = {
        .struct_size = sizeof full,
        .n_vocab = m->model->hparams.dim[SOQ__DIM_VOCAB],
        .n_layers = m->model->hparams.n_layers,
        .context = e->context,
        .n_parameters = m->model->n_parameters,
        .weight_bytes = e->net.weight_bytes,
        .family = m->model->hparams.arch->name,
        .backend = e->exec.choices[e->exec.primary].plugin->id,
        .has_template = m->model->chat_template != NULL,
        .has_vocabulary = m->model->tokenizer != NULL,
    };

    pthread_mutex_lock(&e->lock);
    full.kv_limit = e->kv.budget.limit;
    full.kv_used = e->kv.budget.used;
    full.kv_peak = e->kv.budget.peak;
    full.kv_evicted = e->kv.stats.evicted;
    full.kv_freed = e->kv.stats.freed;
    add_kept(e, &full);
    pthread_mutex_unlock(&e->lock);
    return soq__struct_out(info, &full, "soq_model_info", err);
}

static int need_tokenizer(const struct soq__model *m, struct soq_error *err)
{
    return m->tokenizer ? 0 : soq__fail(err, SOQ_EINVAL, "%s has no vocabulary; give token ids", soq__gguf_path(m->gguf));
}

int soq_tokenize(struct soq_model *m, const char *text, size_t n, uint32_t flags, int32_t *ids, size_t capacity,
                 size_t *count_out, struct soq_error *err)
{
    struct soq__encode_args args = {
        .text = text,
        .n = n,
        .flags = (flags & SOQ_TOKENIZE_BOS ? (unsigned)SOQ_TOK_BOS : 0) |
                 (flags & SOQ_TOKENIZE_SPECIAL ? (unsigned)SOQ_TOK_SPECIAL : 0),
    };
    struct soq__ids all = {0};
    int rc = need_tokenizer(m->model, err);

    if (!rc)
        rc = soq__tokenizer_encode(m->model->tokenizer, &args, &all, err);
    if (!rc) {
        size_t some = all.n < capacity ? all.n : capacity;

        if (some)
            memcpy(ids, all.data, some * sizeof *ids);
        *count_out = all.n;
    }
    soq__ids_done(&all);
    return rc;
}

int soq_detokenize(struct soq_model *m, const int32_t *ids, size_t count, char *text, size_t capacity, size_t *n_out,
                   struct soq_error *err)
{
    struct soq_buf all = SOQ_BUF_INIT;
    int rc = need_tokenizer(m->model, err);

    if (!rc)
        rc = soq__tokenizer_decode(m->model->tokenizer, ids, count, false, &all, err);
    if (!rc) {
        size_t some = all.len < capacity ? all.len : capacity;

        if (some)
            memcpy(text, all.data, some);
        *n_out = all.len;
    }
    soq__buf_done(&all);
    return rc;
}

/* ---- Session --------------------------------------------------------------------------------------------------------- */

static int wrap(struct soq_model *m, struct soq__sequence *seq, struct soq_session **out, struct soq_error *err)
{
    struct soq_session *s = soq__alloc_zero(1, sizeof *s);

    if (!s) {
        soq__sequence_free(seq);
        return soq__fail(err, SOQ_ENOMEM, "out of memory for a session");
    }
    *s = (struct soq_session){.model = m, .seq = seq};
    *out = s;
    return 0;
}

int soq_session_create(struct soq_model *m, struct soq_session **session_out, struct soq_error *err)
{
    return soq_session_open(m, NULL, session_out, err);
}

int soq_session_open(struct soq_model *m, const struct soq_session_params *params, struct soq_session **session_out,
                     struct soq_error *err)
{
    struct soq_session_params full = SOQ_SESSION_PARAMS_INIT;
    struct soq__sequence *seq;
    int rc = params ? soq__struct_in(&full, params, "soq_session_params", err) : 0;

    if (!rc)
        rc = soq__sequence_open(m->engine, full.salt, full.salt ? strlen(full.salt) : 0, &seq, err);
    return rc ? rc : wrap(m, seq, session_out, err);
}

int soq_session_save(struct soq_session *s, const char *path, const void *note, size_t n_note, struct soq_error *err)
{
    return soq__sequence_save(s->seq, path, note, n_note, err);
}

int soq_session_load(struct soq_model *m, const struct soq_session_params *params, const char *path,
                     struct soq_session **session_out, struct soq_error *err)
{
    struct soq_session *s;
    int rc = soq_session_open(m, params, &s, err);

    if (rc)
        return rc;
    rc = soq__sequence_load(s->seq, path, &s->note, err);
    if (!rc && !soq__buf_ok(&s->note))
        rc = soq__fail(err, SOQ_ENOMEM, "%s: out of memory for the note", path);
    if (rc) {
        soq_session_free(s);
        return rc;
    }
    *session_out = s;
    return 0;
}

const void *soq_session_note(const struct soq_session *s, size_t *n_out)
{
    *n_out = s->note.len;
    return s->note.data;
}

int soq_session_fork(struct soq_session *s, struct soq_session **session_out, struct soq_error *err)
{
    struct soq__sequence *seq;
    int rc = soq__sequence_fork(s->seq, &seq, err);

    return rc ? rc : wrap(s->model, seq, session_out, err);
}

void soq_session_free(struct soq_session *s)
{
    if (!s)
        return;
    soq__sequence_free(s->seq);
    soq__pins_forget(s);
    soq__buf_done(&s->note);
    soq__free(s);
}

int soq_session_rollback(struct soq_session *s, uint32_t n_tokens, struct soq_error *err)
{
    return soq__sequence_rollback(s->seq, n_tokens, err);
}

uint32_t soq_session_length(struct soq_session *s)
{
    return soq__sequence_length(s->seq);
}

void soq_session_cancel(struct soq_session *s)
{
    atomic_store(&s->seq->cancelled, true);
}
