/* `soquete run`: one prompt, one answer, streamed. */
#include <string.h>

#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/json_out.h"
#include "cli/load.h"
#include "cli/out.h"
#include "cli/profile.h"
#include "cli/sampling.h"
#include "cli/session_file.h"
#include "cli/stats.h"
#include "cli/stats_kv.h"

struct run_options {
    const char *file, *ids, *system, *session;
    bool raw, json, ignore_eos, quiet, profile, stats;
    struct soq__texts stop;
    struct soq__sampling_options sampling;
};

#define ROW(type, field, ...) SOQ__VALUE(type, struct run_options, field, __VA_ARGS__)

static const struct soq__opt opts[] = {
    SOQ__MODEL_OPTION,
    ROW(SOQ__OPT_TEXT, file, "file", 'f', "FILE", "Read the prompt from FILE; -: from standard input."),
    ROW(SOQ__OPT_TEXT, ids, "ids", 0, "LIST", "The prompt as token ids, 1,2,3, used exactly as they are."),
    SOQ__FLAG(struct run_options, raw, "raw", 0, "The prompt is text to continue: leave the chat template out."),
    ROW(SOQ__OPT_TEXT, system, "system", 0, "TEXT", "A system message before the prompt."),
    SOQ__SESSION_OPTION(struct run_options),
    SOQ__SETTING("engine.max_tokens", "max-tokens", 'n', "N",
                 "The most tokens that the answer may have; -1: as many as the context holds."),
    SOQ__SAMPLING_ROWS(struct run_options),
    ROW(SOQ__OPT_TEXTS, stop, "stop", 0, "TEXT", "End the answer before TEXT; may be repeated."),
    SOQ__FLAG(struct run_options, ignore_eos, "ignore-eos", 0, "Go on where the model would end the answer."),
    SOQ__CONTEXT_OPTION,
    SOQ__THREADS_OPTION,
    SOQ__FLAG(struct run_options, json, "json", 0, "One JSON object a line instead of text: token, text, end or error."),
    SOQ__FLAG(struct run_options, profile, "profile", 0, "Where the time went, backend by backend, behind the summary."),
    SOQ__FLAG(struct run_options, stats, "stats", 0, "What the pools of the KV cache hold, to the byte, behind the summary."),
    SOQ__FLAG(struct run_options, quiet, "quiet", 'q', "No summary on standard error."),
};

static const struct soq__usage usage = {
    .command = "run",
    .args = "[PROMPT...]",
    .about = "Answers one prompt: the arguments joined by blanks, a file, or standard input.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

struct run {
    const struct run_options *options;
    struct soq_buf prompt;
    struct soq__ids ids;
    struct soq__transcript transcript; /* the conversation, where the prompt is part of one */
    struct soq_buf answer;             /* for the transcript */
    bool in_line;                      /* the text so far does not end in a newline */
};

/* ---- Output */

static int print_json_event(const struct soq_event *e)
{
    json_t *text = soq__json_text(e->text, e->text_size);

    if (e->token < 0) /* text that was held back until it was clear that nothing follows */
        return soq__json_line(json_pack("{ss so}", "event", "text", "text", text));
    return soq__json_line(json_pack("{ss si so so}", "event", "token", "id", (int)e->token, "text", text, "logprob",
                                    soq__json_number((double)e->logprob)));
}

static int on_event(void *ctx, const struct soq_event *e)
{
    struct run *run = ctx;

    if (soq__interrupted())
        return 1;
    if (run->options->session)
        soq__buf_append(&run->answer, e->text, e->text_size);
    if (run->options->json)
        return print_json_event(e);
    if (!e->text_size)
        return 0;
    run->in_line = e->text[e->text_size - 1] != '\n';
    return soq__out_write(e->text, e->text_size);
}

static int finish(struct run *run, struct soq_model *model, const struct soq_result *result)
{
    const struct soq__exec *exec = &model->engine->exec;
    struct soq__profile profile = soq__profile_since(exec, NULL);
    bool profiled = run->options->profile;

    if (run->options->json)
        soq__json_line(json_pack("{ss ss so so* so*}", "event", "end", "reason", soq_reason_text(result->reason), "stats",
                                 soq__stats_json(result, model), "profile", profiled ? soq__profile_json(&profile, exec) : NULL,
                                 "kv", run->options->stats ? soq__kv_stats_json(&model->engine->kv) : NULL));
    else if (run->in_line)
        soq__out_write("\n", 1);
    if (!run->options->quiet && !soq__out_lost())
        soq__stats_print(result, model, stderr);
    if (run->options->stats && !run->options->json && !soq__out_lost())
        soq__kv_stats_print(&model->engine->kv, stderr);
    if (profiled && !run->options->json && !soq__out_lost())
        soq__profile_print(&profile, exec, stderr);
    return soq__interrupted() ? SOQ_EXIT_CANCELLED : SOQ_EXIT_OK;
}

static int fail(struct run *run, int rc, const struct soq_error *err)
{
    if (run->in_line)
        soq__out_write("\n", 1);
    if (run->options->json)
        soq__json_error(rc, err);
    return soq__cli_fail("run", rc, err);
}

/* ---- The request */

static int read_input(struct run *run, const struct soq__args *args, struct soq_error *err)
{
    const struct run_options *o = run->options;

    if (o->system && (o->raw || o->ids))
        return soq__fail(err, SOQ_EINVAL, "--system needs the chat template, which %s leaves out", o->raw ? "--raw" : "--ids");
    if (!o->ids)
        return soq__input_prompt(args, o->file, &run->prompt, err);
    if (args->n_words || o->file)
        return soq__fail(err, SOQ_EINVAL, "--ids and a prompt: give one of them");
    return soq__input_ids(o->ids, &run->ids, err);
}

/* Text and ids go on behind the tokens that the session has. */
static int continue_tokens(struct run *run, const struct soq_session *session, struct soq_error *err)
{
    const struct soq__sequence *seq = session->seq;
    struct soq__ids all = {0};
    int rc = 0;

    if (run->transcript.n)
        return soq__fail(err, SOQ_EINVAL, "--session: %s holds a conversation; leave %s out", run->options->session,
                         run->options->ids ? "--ids" : "--raw");
    for (uint32_t i = 0; !rc && i < seq->n_tokens; i++)
        rc = soq__ids_push(&all, seq->tokens[i], err);
    if (!rc && !run->options->ids)
        rc = soq__tokenizer_encode(session->model->model->tokenizer,
                                   &(struct soq__encode_args){.text = soq__buf_str(&run->prompt), .n = run->prompt.len}, &all,
                                   err);
    for (size_t i = 0; !rc && run->options->ids && i < run->ids.n; i++)
        rc = soq__ids_push(&all, run->ids.data[i], err);
    soq__ids_done(&run->ids);
    run->ids = all;
    return rc;
}

static int add_messages(struct run *run, const struct soq_session *session, struct soq_error *err)
{
    const struct run_options *o = run->options;
    int rc = 0;

    if (!run->transcript.n && soq_session_length((struct soq_session *)(uintptr_t)session))
        return soq__fail(err, SOQ_EINVAL, "--session: %s holds no conversation but a text; go on with --raw or --ids",
                         o->session);
    if (o->system && run->transcript.n)
        return soq__fail(err, SOQ_EINVAL, "--system: the conversation in %s has begun already", o->session);
    if (o->system)
        rc = soq__transcript_add(&run->transcript, "system", o->system, err);
    return rc ? rc : soq__transcript_add(&run->transcript, "user", soq__buf_str(&run->prompt), err);
}

/* What the request computes. */
static int set_prompt(struct run *run, const struct soq_session *session, struct soq_request *req, struct soq_error *err)
{
    const struct run_options *o = run->options;
    bool goes_on = session->seq->n_tokens > 0;
    int rc = 0;

    if (!o->ids && !o->raw) {
        if (!o->quiet)
            soq__cli_note_template("run", session->model);
        rc = add_messages(run, session, err);
        req->messages = run->transcript.messages;
        req->n_messages = run->transcript.n;
    } else {
        if (goes_on)
            rc = continue_tokens(run, session, err);
        if (goes_on || o->ids) {
            req->ids = run->ids.data;
            req->n_ids = run->ids.n;
        } else {
            req->prompt = soq__buf_str(&run->prompt);
        }
    }
    return rc;
}

static int generate(struct run *run, struct soq_model *model, struct soq_session *session, struct soq_result *result,
                    struct soq_error *err)
{
    const struct run_options *o = run->options;
    struct soq_request req = SOQ_REQUEST_INIT;
    struct soq_sampling sampling;
    int rc = soq__sampling_build(model, &o->sampling, &sampling, err);

    if (!rc)
        rc = set_prompt(run, session, &req, err);
    if (rc)
        return rc;
    req.sampling = &sampling;
    req.stop = o->stop.items;
    req.ignore_eog = o->ignore_eos;
    req.on_event = on_event;
    req.ctx = run;
    soq__interrupt_arm(soq__interrupt_session, session);
    rc = soq_generate(session, &req, result, err);
    soq__interrupt_disarm();
    if (!rc && run->transcript.n && o->session)
        rc = soq__transcript_add(&run->transcript, "assistant", soq__buf_str(&run->answer), err);
    return rc ? rc : soq__session_file_save(session, o->session, &run->transcript, err);
}

/* Returns the exit code. */
static int answer(struct run *run, const struct soq__args *args)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *runtime = NULL;
    struct soq_model *model = NULL;
    struct soq_session *session = NULL;
    struct soq_result result = SOQ_RESULT_INIT;
    int rc, status;

    soq__interrupt_catch();
    rc = soq__cli_runtime(args, &runtime, &err);
    if (!rc)
        rc = read_input(run, args, &err);
    if (!rc && run->options->profile)
        soq__cli_profile(runtime);
    if (!rc)
        rc = soq__cli_model(runtime, 0, &model, &err);
    if (!rc)
        rc = soq__session_file_open(model, run->options->session, &run->transcript, &session, &err);
    if (!rc)
        rc = generate(run, model, session, &result, &err);
    status = rc ? fail(run, rc, &err) : finish(run, model, &result);
    soq_session_free(session);
    soq_model_free(model);
    soq_runtime_free(runtime);
    return status;
}

int soq__cmd_run(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct run_options options = {.sampling = SOQ__SAMPLING_OPTIONS_INIT};
    struct run run = {.options = &options};
    struct soq__args args;
    int status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON)
        status = answer(&run, &args);
    soq__buf_done(&run.prompt);
    soq__ids_done(&run.ids);
    soq__transcript_done(&run.transcript);
    soq__buf_done(&run.answer);
    soq__args_done(&args);
    return soq__out_finish("run", status);
}
