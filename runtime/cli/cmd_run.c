/* `soquete run`: one prompt, one answer, streamed. */
#include <string.h>

#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/json_out.h"
#include "cli/load.h"
#include "cli/out.h"
#include "cli/profile.h"
#include "cli/sampling.h"
#include "cli/stats.h"

struct run_options {
    const char *file, *ids, *system;
    bool raw, json, ignore_eos, quiet, profile;
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
    SOQ__SETTING("engine.max_tokens", "max-tokens", 'n', "N",
                 "The most tokens that the answer may have; -1: as many as the context holds."),
    SOQ__SAMPLING_ROWS(struct run_options),
    ROW(SOQ__OPT_TEXTS, stop, "stop", 0, "TEXT", "End the answer before TEXT; may be repeated."),
    SOQ__FLAG(struct run_options, ignore_eos, "ignore-eos", 0, "Go on where the model would end the answer."),
    SOQ__CONTEXT_OPTION,
    SOQ__THREADS_OPTION,
    SOQ__FLAG(struct run_options, json, "json", 0, "One JSON object a line instead of text: token, text, end or error."),
    SOQ__FLAG(struct run_options, profile, "profile", 0, "Where the time went, backend by backend, behind the summary."),
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
    bool in_line; /* the text so far does not end in a newline */
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
    if (run->options->json)
        return print_json_event(e);
    if (!e->text_size)
        return 0;
    run->in_line = e->text[e->text_size - 1] != '\n';
    return soq__out_write(e->text, e->text_size);
}

static int finish(struct run *run, const struct soq_model *model, const struct soq_result *result)
{
    const struct soq__exec *exec = &model->engine->exec;
    struct soq__profile profile = soq__profile_since(exec, NULL);
    bool profiled = run->options->profile;

    if (run->options->json)
        soq__json_line(json_pack("{ss ss so so*}", "event", "end", "reason", soq_reason_text(result->reason), "stats",
                                 soq__stats_json(result), "profile", profiled ? soq__profile_json(&profile, exec) : NULL));
    else if (run->in_line)
        soq__out_write("\n", 1);
    if (!run->options->quiet && !soq__out_lost())
        soq__stats_print(result, stderr);
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

static int generate(struct run *run, struct soq_model *model, struct soq_session *session, struct soq_result *result,
                    struct soq_error *err)
{
    const struct run_options *o = run->options;
    const char *text = soq__buf_str(&run->prompt);
    const struct soq_message messages[] = {{"system", o->system}, {"user", text}};
    struct soq_request req = SOQ_REQUEST_INIT;
    struct soq_sampling sampling;
    int rc = soq__sampling_build(model, &o->sampling, &sampling, err);

    if (rc)
        return rc;
    if (o->ids) {
        req.ids = run->ids.data;
        req.n_ids = run->ids.n;
    } else if (o->raw) {
        req.prompt = text;
    } else {
        if (!o->quiet)
            soq__cli_note_template("run", model);
        req.messages = messages + !o->system;
        req.n_messages = 1 + !!o->system;
    }
    req.sampling = &sampling;
    req.stop = o->stop.items;
    req.ignore_eog = o->ignore_eos;
    req.on_event = on_event;
    req.ctx = run;
    soq__interrupt_arm(soq__interrupt_session, session);
    rc = soq_generate(session, &req, result, err);
    soq__interrupt_disarm();
    return rc;
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
    if (!rc)
        rc = soq__cli_model(runtime, 0, &model, &err);
    if (!rc)
        rc = soq_session_create(model, &session, &err);
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
    soq__args_done(&args);
    return soq__out_finish("run", status);
}
