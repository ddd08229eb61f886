/* soq_generate: a request becomes tokens, tokens become text, text goes to the caller's callback.
 *
 * Tokens are turned into text on whichever thread runs the step, under the engine's lock, so that a stop string ends the job
 * before another row is computed; the callback runs on the caller's own thread, without the lock. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "config/settings.h"
#include "engine/runtime.h"
#include "text/chat_template.h"
#include "text/stop.h"

/* ---- Prompt ---------------------------------------------------------------------------------------------------------- */

static const char *role_text(const struct soq__model *m, enum soq__token_role role, char *buf, size_t size)
{
    int32_t id = soq__tokenizer_role(m->tokenizer, role);
    struct soq__text t = id < 0 ? (struct soq__text){0} : soq__tokenizer_text(m->tokenizer, id);
    size_t n = t.len < size - 1 ? t.len : size - 1;

    if (n)
        memcpy(buf, t.data, n);
    buf[n] = '\0';
    return buf;
}

static const struct soq_message *message_at(const struct soq_request *req, uint32_t i)
{
    return (const struct soq_message *)(const void *)((const char *)req->messages + (size_t)i * req->message_stride);
}

static json_t *messages_json(const struct soq_request *req)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < req->n_messages; i++) {
        const struct soq_message *m = message_at(req, i);
        json_t *one = json_object();

        json_object_set_new_nocheck(one, "role", json_stringn_nocheck(m->role, strlen(m->role)));
        json_object_set_new_nocheck(one, "content", json_stringn_nocheck(m->content, strlen(m->content)));
        if (json_object_size(one) != 2 || json_array_append_new(list, one)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Control tokens come from the template alone: what messages contain is marked untrusted. */
static int chat_tokens(const struct soq__model *m, const struct soq_request *req, struct soq__ids *ids, struct soq_error *err)
{
    char bos[256], eos[256];
    struct soq__chat_options options = {
        .bos_token = role_text(m, SOQ_ROLE_BOS, bos, sizeof bos),
        .eos_token = role_text(m, SOQ_ROLE_EOS, eos, sizeof eos),
        .add_generation_prompt = true,
    };
    struct soq__rendered out = SOQ__RENDERED_INIT;
    json_t *messages;
    int rc;

    if (m->template_error.code) {
        if (err)
            *err = m->template_error;
        return m->template_error.code;
    }
    messages = messages_json(req);
    if (!messages)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for the messages");
    rc = soq__chat_render(m->chat_template, messages, &options, &out, err);
    json_decref(messages);
    if (!rc) {
        struct soq__encode_args args = {
            .text = soq__buf_str(&out.text),
            .n = out.text.len,
            .flags = SOQ_TOK_BOS | SOQ_TOK_SPECIAL,
            .untrusted = out.untrusted,
            .n_untrusted = out.untrusted_count,
        };

        rc = soq__tokenizer_encode(m->tokenizer, &args, ids, err);
    }
    soq__rendered_done(&out);
    return rc;
}

int soq__request_tokens(const struct soq__model *m, const struct soq_request *req, struct soq__ids *ids, struct soq_error *err)
{
    int given = (req->n_messages > 0) + (req->prompt != NULL) + (req->ids != NULL);

    if (given != 1)
        return soq__fail(err, SOQ_EINVAL, "a request needs exactly one of messages, prompt and ids, not %d of them", given);
    if (req->n_messages && (!req->messages || req->message_stride < sizeof(struct soq_message)))
        return soq__fail(err, SOQ_EINVAL, "messages are NULL, or message_stride is %u", req->message_stride);
    for (uint32_t i = 0; i < req->n_messages; i++)
        if (!message_at(req, i)->role || !message_at(req, i)->content)
            return soq__fail(err, SOQ_EINVAL, "message %u has no role or no content", i);
    if (req->ids) {
        int rc = 0;

        for (size_t i = 0; !rc && i < req->n_ids; i++)
            rc = soq__ids_push(ids, req->ids[i], err);
        return rc;
    }
    if (!m->tokenizer)
        return soq__fail(err, SOQ_EINVAL, "%s has no vocabulary; give token ids", soq__gguf_path(m->gguf));
    if (req->n_messages)
        return chat_tokens(m, req, ids, err);
    return soq__tokenizer_encode(
        m->tokenizer, &(struct soq__encode_args){.text = req->prompt, .n = strlen(req->prompt), .flags = SOQ_TOK_BOS}, ids,
        err);
}

/* ---- Answer ---------------------------------------------------------------------------------------------------------- */

struct answer {
    struct soq__job job;
    struct soq_request req;
    bool deaf;   /* the callback has had enough */
    bool failed; /* an event could not be built */
    struct soq__ids prompt;
    struct soq__detok detok;
    struct soq__stop stop;
    struct soq_buf piece; /* scratch of on_sampled */
    struct soq_buf text;  /* everything shown so far */
    uint32_t *ends;       /* [max_tokens] end of each token's text in `text` */
    uint32_t n_ready, n_read;
    struct soq_buf event; /* scratch of the caller's thread */
};

/* Detokenizes; returns SOQ_REASON_STOP where a stop string is complete. */
static int on_sampled(void *arg, const struct soq__job *job, int32_t token, struct soq_error *err)
{
    struct answer *a = arg;
    bool matched = false;
    int rc = 0;

    (void)job;
    if (a->detok.tok) {
        soq__buf_clear(&a->piece);
        rc = soq__detok_push(&a->detok, token, &a->piece, err);
        if (!rc)
            rc = soq__stop_push(&a->stop, soq__buf_str(&a->piece), a->piece.len, &a->text, &matched, err);
    }
    if (rc)
        return rc;
    a->ends[a->n_ready++] = (uint32_t)a->text.len;
    return matched ? SOQ_REASON_STOP : 0;
}

/* Calls the callback without the lock; one that has had enough cancels the job and is not called again. */
static void emit(struct answer *a, int32_t token, float logprob, uint32_t index)
{
    struct soq__engine *e = a->job.seq->engine;
    const struct soq_event event = {
        .struct_size = sizeof event,
        .token = token,
        .logprob = logprob,
        .index = index,
        .text = soq__buf_str(&a->event),
        .text_size = a->event.len,
    };

    pthread_mutex_unlock(&e->lock);
    if (a->req.on_event && !a->deaf && a->req.on_event(a->req.ctx, &event)) {
        a->deaf = true;
        atomic_store(&a->job.seq->cancelled, true);
    }
    pthread_mutex_lock(&e->lock);
}

/* Hands the next unread token to the caller. */
static bool drain(void *arg)
{
    struct answer *a = arg;
    const struct soq__sequence *seq = a->job.seq;
    uint32_t i = a->n_read, from, at;

    if (i == a->n_ready)
        return false;
    a->n_read++;
    from = i ? a->ends[i - 1] : 0;
    at = a->job.n_prompt + i;
    soq__buf_clear(&a->event);
    soq__buf_append(&a->event, soq__buf_str(&a->text) + from, a->ends[i] - from);
    if (!soq__buf_ok(&a->event)) {
        a->failed = a->deaf = true;
        atomic_store(&a->job.seq->cancelled, true);
        return true;
    }
    emit(a, seq->tokens[at], seq->logprobs[at], i);
    return true;
}

/* What detokenizer and stop strings held back, as a last event. */
static int flush(struct answer *a, struct soq_error *err)
{
    struct soq_event event = {.struct_size = sizeof event, .token = -1, .index = a->n_ready};
    bool matched = false;
    int rc = 0;

    soq__buf_clear(&a->piece);
    soq__buf_clear(&a->event);
    if (a->failed)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for the answer's text");
    if (!a->detok.tok || a->deaf || a->job.reason == SOQ_REASON_STOP)
        return 0;
    rc = soq__detok_flush(&a->detok, &a->piece, err);
    if (!rc)
        rc = soq__stop_push(&a->stop, soq__buf_str(&a->piece), a->piece.len, &a->event, &matched, err);
    if (!rc && !matched)
        rc = soq__stop_flush(&a->stop, &a->event, err);
    if (rc || !a->event.len || !a->req.on_event)
        return rc;
    event.text = soq__buf_str(&a->event);
    event.text_size = a->event.len;
    a->req.on_event(a->req.ctx, &event);
    return 0;
}

static int fill_result(const struct answer *a, struct soq_result *result, struct soq_error *err)
{
    const struct soq__job *j = &a->job;
    struct soq_result full = {
        .struct_size = sizeof full,
        .reason = a->deaf ? SOQ_REASON_CANCELLED : j->reason, /* even if the steps of others had brought it to its end */
        .prompt_tokens = j->n_prompt,
        .cached_tokens = j->n_cached,
        .generated_tokens = a->n_read,
        .prefix_tokens = j->n_prefix,
        .ttft_s = j->first_token - j->started,
        .prefill_s = j->prompt_done - j->started,
        .decode_s = j->n_generated ? j->last_token - j->prompt_done : 0,
        .itl_s = j->n_generated > 1 ? (j->last_token - j->first_token) / (j->n_generated - 1) : 0,
        .kv_bytes = j->kv_bytes,
        .kv_evicted = j->kv_after.evicted - j->kv_before.evicted,
        .kv_freed = j->kv_after.freed - j->kv_before.freed,
        .steps = j->n_steps,
        .drafted_tokens = j->n_drafted,
        .accepted_tokens = j->n_accepted,
        .kv_draft_bytes = j->kv_draft_bytes,
    };

    return soq__struct_out(result, &full, "soq_result", err);
}

/* ---- The call -------------------------------------------------------------------------------------------------------- */

static uint32_t answer_limit(const struct soq_session *s, int64_t wanted)
{
    if (wanted == -1)
        wanted = soq__settings_int(s->model->runtime->settings, "engine", "max_tokens");
    return wanted < 0 || wanted > s->seq->engine->context ? s->seq->engine->context + 1 : (uint32_t)wanted;
}

/* What the request says, laid over the sampler's defaults. */
static int read_sampling(struct soq_session *s, const struct soq_sampling *given, struct soq_sampling *out,
                         struct soq_error *err)
{
    int rc;

    *out = (struct soq_sampling){.struct_size = sizeof *out};
    rc = soq_sampling_defaults(s->model, out, err);
    return rc || !given ? rc : soq__struct_in(out, given, "soq_sampling", err);
}

static int prepare(struct soq_session *s, const struct soq_request *given, struct answer *a, struct soq_error *err)
{
    const struct soq__model *m = s->model->model;
    const struct soq_request *req = &a->req;
    struct soq__job *j = &a->job;
    int rc;

    a->req = (struct soq_request)SOQ_REQUEST_INIT;
    rc = soq__struct_in(&a->req, given, "soq_request", err);
    if (!rc && req->max_tokens < -1)
        rc = soq__fail(err, SOQ_EINVAL, "max_tokens is %d; give a number, or -1 for [engine] max_tokens", req->max_tokens);
    if (!rc)
        rc = soq__request_tokens(m, req, &a->prompt, err);
    if (rc)
        return rc;
    *j = (struct soq__job){
        .seq = s->seq,
        .prompt = a->prompt.data,
        .n_prompt = a->prompt.n > UINT32_MAX ? UINT32_MAX : (uint32_t)a->prompt.n,
        .max_tokens = answer_limit(s, req->max_tokens),
        .priority = req->priority,
        .ignore_eog = req->ignore_eog,
        .on_sampled = on_sampled,
        .arg = a,
    };
    rc = read_sampling(s, req->sampling, &j->sampling, err);
    if (rc)
        return rc;
    if (m->tokenizer)
        soq__detok_init(&a->detok, m->tokenizer, false, false);
    a->ends = soq__alloc_array((size_t)j->max_tokens + 1, sizeof *a->ends);
    if (!a->ends || !soq__buf_reserve(&a->text, 256 + (size_t)j->max_tokens * 8)) /* most answers then never grow it */
        return soq__fail(err, SOQ_ENOMEM, "out of memory for an answer of %u tokens", j->max_tokens);
    return soq__stop_init(&a->stop, req->stop, err);
}

int soq_generate(struct soq_session *s, const struct soq_request *req, struct soq_result *result, struct soq_error *err)
{
    struct answer a = {0};
    int rc;

    atomic_store(&s->seq->cancelled, false);
    rc = prepare(s, req, &a, err);
    if (!rc) {
        soq__engine_run(s->seq->engine, &a.job, drain, &a);
        rc = a.job.rc;
        if (rc && err)
            *err = a.job.err;
    }
    if (!rc)
        rc = flush(&a, err);
    if (!rc && result)
        rc = fill_result(&a, result, err);
    soq__stop_done(&a.stop);
    soq__buf_done(&a.piece);
    soq__buf_done(&a.text);
    soq__buf_done(&a.event);
    soq__ids_done(&a.prompt);
    soq__free(a.ends);
    return rc;
}

int soq_sampling_defaults(struct soq_model *m, struct soq_sampling *sampling, struct soq_error *err)
{
    struct soq__role_instance *sampler = &m->engine->sampler;
    struct soq_sampling full = {.struct_size = sizeof full};
    int rc = sampler->plugin->ops.sampler->defaults(sampler->self, &full, err);

    return rc ? rc : soq__struct_out(sampling, &full, "soq_sampling", err);
}

const char *soq_reason_text(int reason)
{
    switch (reason) {
#define TEXT(name, value, text)                                                                                                \
    case value:                                                                                                                \
        return text;
        SOQ_REASONS(TEXT)
#undef TEXT
    default:
        return "failed";
    }
}
