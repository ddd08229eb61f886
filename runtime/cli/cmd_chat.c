/* `soquete chat`: lines from the user, answers from the model, a few commands. */
#include <string.h>

#include "base/error.h"
#include "base/nearest.h"
#include "cli/interrupt.h"
#include "cli/line.h"
#include "cli/load.h"
#include "cli/options.h"
#include "cli/out.h"
#include "cli/sampling.h"
#include "cli/session_file.h"
#include "cli/stats.h"
#include "cli/term.h"
#include "cli/transcript.h"

struct chat_options {
    const char *system, *load, *session;
    bool no_history;
    struct soq__texts stop;
    struct soq__sampling_options sampling;
};

#define ROW(type, field, ...) SOQ__VALUE(type, struct chat_options, field, __VA_ARGS__)

static const struct soq__opt opts[] = {
    SOQ__MODEL_OPTION,
    ROW(SOQ__OPT_TEXT, system, "system", 0, "TEXT", "A system message in front of the conversation."),
    ROW(SOQ__OPT_TEXT, load, "load", 0, "FILE", "Go on with the conversation that /save wrote to FILE."),
    SOQ__SESSION_OPTION(struct chat_options),
    SOQ__SETTING("engine.max_tokens", "max-tokens", 'n', "N",
                 "The most tokens that an answer may have; -1: as many as the context holds."),
    SOQ__SAMPLING_ROWS(struct chat_options),
    ROW(SOQ__OPT_TEXTS, stop, "stop", 0, "TEXT", "End an answer before TEXT; may be repeated."),
    SOQ__CONTEXT_OPTION,
    SOQ__THREADS_OPTION,
    SOQ__FLAG(struct chat_options, no_history, "no-history", 0, "Neither read nor write the file of typed lines."),
};

static const struct soq__usage usage = {
    .command = "chat",
    .args = "",
    .about =
        "A conversation: every line is a message, Ctrl-C stops an answer, Ctrl-D leaves. Lines that begin with a slash are\n"
        "commands, see /help; two slashes stand for one. Where standard input is no terminal each line is answered in\n"
        "turn, and standard output has the answers only.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

struct chat {
    const struct chat_options *options;
    struct soq_model *model;
    struct soq_session *session;
    struct soq__line *line;
    struct soq__transcript transcript;
    struct soq_sampling sampling;
    struct soq_buf answer;                                          /* in hand */
    struct soq_result last;                                         /* of the last answer; prompt_tokens 0: there was none */
    uint64_t prompt_tokens, cached_tokens, generated_tokens, turns; /* of all answers */
    bool leaving;
};

/* ---- A turn */

static int on_event(void *ctx, const struct soq_event *e)
{
    struct chat *chat = ctx;

    if (soq__interrupted())
        return 1;
    soq__buf_append(&chat->answer, e->text, e->text_size);
    return e->text_size ? soq__out_write(e->text, e->text_size) : 0;
}

static int generate(struct chat *chat, struct soq_error *err)
{
    struct soq_request req = SOQ_REQUEST_INIT;
    int rc;

    req.messages = chat->transcript.messages;
    req.n_messages = chat->transcript.n;
    req.sampling = &chat->sampling;
    req.stop = chat->options->stop.items;
    req.on_event = on_event;
    req.ctx = chat;
    soq__buf_clear(&chat->answer);
    chat->last = (struct soq_result)SOQ_RESULT_INIT;
    soq__interrupt_arm(soq__interrupt_session, chat->session);
    rc = soq_generate(chat->session, &req, &chat->last, err);
    soq__interrupt_disarm();
    soq__interrupt_clear(); /* the answer took it */
    if (!rc && !soq__buf_ok(&chat->answer))
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory for the answer");
    return rc;
}

/* Asks and keeps both messages, the answer as far as it came; after a failure neither. */
static int take_turn(struct chat *chat, const char *text, struct soq_error *err)
{
    uint32_t before = chat->transcript.n;
    int rc = soq__transcript_add(&chat->transcript, "user", text, err);

    if (!rc)
        rc = generate(chat, err);
    if (chat->answer.len && chat->answer.data[chat->answer.len - 1] != '\n')
        soq__out_write("\n", 1);
    if (!rc)
        rc = soq__transcript_add(&chat->transcript, "assistant", soq__buf_str(&chat->answer), err);
    if (rc) {
        soq__transcript_cut(&chat->transcript, before);
        return rc;
    }
    chat->turns++;
    chat->prompt_tokens += chat->last.prompt_tokens;
    chat->cached_tokens += chat->last.cached_tokens;
    chat->generated_tokens += chat->last.generated_tokens;
    if (chat->last.reason == SOQ_REASON_LENGTH)
        soq__cli_say("chat", "the answer was cut off at %u tokens", chat->last.generated_tokens);
    return 0;
}

/* ---- Commands: what they say goes to standard error */

typedef void chat_command(struct chat *chat, const char *arg);

static void say_help(struct chat *chat, const char *arg);

static void reset(struct chat *chat, const char *arg)
{
    struct soq_error err = SOQ_ERROR_INIT;

    (void)arg;
    soq__transcript_cut(&chat->transcript, soq__transcript_preamble(&chat->transcript));
    if (soq_session_rollback(chat->session, 0, &err))
        soq__cli_say("chat", "%s", err.text);
    else
        fputs("a new conversation\n", stderr);
}

static void save(struct chat *chat, const char *arg)
{
    struct soq_error err = SOQ_ERROR_INIT;

    if (!*arg)
        soq__cli_say("chat", "/save: expected the name of a file");
    else if (soq__transcript_save(&chat->transcript, arg, &err))
        soq__cli_say("chat", "%s", err.text);
    else
        fprintf(stderr, "%u messages saved to %s\n", chat->transcript.n, arg);
}

static void say_stats(struct chat *chat, const char *arg)
{
    (void)arg;
    if (chat->last.prompt_tokens)
        soq__stats_print(&chat->last, chat->model, stderr);
    fprintf(stderr, "in all     %llu answers, %llu prompt tokens of which %llu cached, %llu generated\n",
            (unsigned long long)chat->turns, (unsigned long long)chat->prompt_tokens, (unsigned long long)chat->cached_tokens,
            (unsigned long long)chat->generated_tokens);
    fprintf(stderr, "context    %u of %u tokens\n", soq_session_length(chat->session), chat->model->engine->context);
}

static void leave(struct chat *chat, const char *arg)
{
    (void)arg;
    chat->leaving = true;
}

static const struct {
    const char *name, *arg, *help;
    chat_command *run;
} commands[] = {
    {"/help", "", "this list", say_help},
    {"/reset", "", "forget the conversation", reset},
    {"/save", " FILE", "write the conversation as JSON messages", save},
    {"/stats", "", "speed and memory of the last answer", say_stats},
    {"/quit", "", "leave, as Ctrl-D does", leave},
    {"/exit", "", "the same", leave},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void say_help(struct chat *chat, const char *arg)
{
    (void)chat;
    (void)arg;
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "  %s%-*s %s\n", commands[i].name, (int)(14 - strlen(commands[i].name)), commands[i].arg,
                commands[i].help);
    fputs("  Ctrl-C         stops the answer\n  Ctrl-D         leaves\n", stderr);
}

static void run_command(struct chat *chat, const char *text)
{
    size_t n = strcspn(text, " \t");
    const char *names[N_COMMANDS], *near;
    char word[32];

    snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), text);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(word, names[i]) != 0)
            continue;
        commands[i].run(chat, text + n + strspn(text + n, " \t"));
        return;
    }
    near = soq__nearest(word, names, N_COMMANDS);
    soq__cli_say("chat", "%s: unknown command; %s%s", word, near ? "did you mean " : "see /help", near ? near : "");
}

/* ---- The loop */

/* A line of the user; returns a negative code when the program should end with it. */
static int take_line(struct chat *chat, const char *text, struct soq_error *err)
{
    int rc;

    if (!text[strspn(text, " \t")])
        return 0;
    if (text[0] == '/' && text[1] != '/') {
        run_command(chat, text);
        return 0;
    }
    rc = take_turn(chat, text + (text[0] == '/'), err);
    if (rc && soq__line_is_edited(chat->line)) {
        soq__cli_say("chat", "%s", err->text);
        *err = (struct soq_error)SOQ_ERROR_INIT;
        return 0;
    }
    return rc;
}

static int converse(struct chat *chat, struct soq_error *err)
{
    struct soq_buf text = SOQ_BUF_INIT;
    enum soq__line_event event;
    int rc;

    do {
        rc = soq__line_read(chat->line, &text, &event, err);
        if (!rc && event == SOQ__LINE_TEXT)
            rc = take_line(chat, soq__buf_str(&text), err);
        else if (!rc && event == SOQ__LINE_INTERRUPT && !soq__line_is_edited(chat->line))
            rc = soq__fail(err, SOQ_ECANCELLED, "interrupted");
    } while (!rc && event != SOQ__LINE_END && !chat->leaving && !soq__out_lost());
    soq__buf_done(&text);
    return rc;
}

/* The conversation so far: of the session's file or of the other one. */
static int begin(struct chat *chat, struct soq_error *err)
{
    const struct chat_options *o = chat->options;
    int rc = soq__session_file_open(chat->model, o->session, &chat->transcript, &chat->session, err);

    if (!rc && !chat->transcript.n && soq_session_length(chat->session))
        rc = soq__fail(err, SOQ_EINVAL, "--session: %s holds no conversation but a text; go on with soquete run --raw",
                       o->session);
    if (!rc && o->load && chat->transcript.n)
        rc = soq__fail(err, SOQ_EINVAL, "--load: the conversation in %s has begun already", o->session);
    else if (!rc && o->load)
        rc = soq__transcript_load(&chat->transcript, o->load, err);
    if (!rc && o->system && chat->transcript.n)
        rc = soq__fail(err, SOQ_EINVAL, "--system: the conversation in %s has begun already", o->load ? o->load : o->session);
    else if (!rc && o->system)
        rc = soq__transcript_add(&chat->transcript, "system", o->system, err);
    return rc;
}

static void greet(const struct chat *chat)
{
    soq__cli_note_template("chat", chat->model);
    if (!soq__line_is_edited(chat->line))
        return;
    fprintf(stderr, "%s%s, context %u; /help lists commands, Ctrl-D leaves%s\n", soq__term_dim(stderr),
            soq__base_name(soq__gguf_path(chat->model->model->gguf)), chat->model->engine->context, soq__term_reset(stderr));
    if (chat->transcript.n)
        fprintf(stderr, "%u messages loaded\n", chat->transcript.n);
}

static int talk(struct chat *chat, const struct soq__args *args, struct soq_error *err)
{
    struct soq_runtime *runtime = NULL;
    int rc;

    soq__interrupt_catch();
    rc = soq__cli_runtime(args, &runtime, err);
    if (!rc)
        rc = soq__cli_model(runtime, 0, &chat->model, err);
    if (!rc)
        rc = begin(chat, err);
    if (!rc)
        rc = soq__sampling_build(chat->model, &chat->options->sampling, &chat->sampling, err);
    if (!rc)
        rc = soq__line_create(!chat->options->no_history, &chat->line, err);
    if (!rc) {
        greet(chat);
        rc = converse(chat, err);
    }
    if (!rc)
        rc = soq__session_file_save(chat->session, chat->options->session, &chat->transcript, err);
    soq__line_free(chat->line);
    soq_session_free(chat->session);
    soq_model_free(chat->model);
    soq_runtime_free(runtime);
    return rc;
}

int soq__cmd_chat(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct chat_options options = {.sampling = SOQ__SAMPLING_OPTIONS_INIT};
    struct chat chat = {.options = &options};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON) {
        rc = talk(&chat, &args, &err);
        status = rc ? soq__cli_fail("chat", rc, &err) : SOQ_EXIT_OK;
    }
    soq__buf_done(&chat.answer);
    soq__transcript_done(&chat.transcript);
    soq__args_done(&args);
    return soq__out_finish("chat", status);
}
