/* `soquete`: finds the command, takes the options that all commands share, and hands over. */
#include <locale.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/nearest.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/out.h"
#include "config/settings.h"
#include "soquete/soquete.h"

typedef int command_fn(const struct soq__cli_globals *globals, int argc, char **argv);

static const struct {
    const char *name;
    command_fn *run;
    const char *summary;
} commands[] = {
    {"run", soq__cmd_run, "answer one prompt"},
    {"chat", soq__cmd_chat, "talk with a model"},
    {"plugins", soq__cmd_plugins, "list plugins, and why each is used or not"},
    {"check", soq__cmd_check, "check a plugin against the ABI"},
    {"new", soq__cmd_new, "begin a plugin of your own"},
    {"config", soq__cmd_config, "print the settings in effect and where they come from"},
    {"inspect", soq__cmd_inspect, "show what is in a model file"},
    {"kvcalc", soq__cmd_kvcalc, "compute the memory that a KV cache takes"},
    {"trace", soq__cmd_trace, "show what a KV policy kept"},
    {"tokenize", soq__cmd_tokenize, "turn text into token ids, or back"},
    {"logits", soq__cmd_logits, "write a model's logits to a NumPy file"},
    {"bench", soq__cmd_bench, "measure speed"},
    {"perplexity", soq__cmd_perplexity, "measure how well a model predicts a text"},
    {"eval", soq__cmd_eval, "measure what a KV cache costs in quality"},
    {"calibrate", soq__cmd_calibrate, "fit a KV codec to a model"},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* ---- Help */

static int print_help(void)
{
    puts("Usage: soquete [GLOBAL OPTION]... COMMAND [OPTION]... [ARGUMENT]...\n"
         "\n"
         "Runs large language models.\n"
         "\n"
         "Commands:");
    for (size_t i = 0; i < N_COMMANDS; i++)
        soq__print_option(commands[i].name, commands[i].summary);
    soq__print_option("help [COMMAND]", "this text, or the command's");
    puts("\nGlobal options, before or after the command:");
    soq__print_option("--config FILE", "Read this configuration instead of the user's or the system's.");
    soq__print_option("--plugin-dir DIR", "Search DIR for plugins first; may be repeated.");
    soq__print_option("--SECTION.KEY=VALUE", "Override a key of the configuration, --kv.policy=window for example.");
    soq__print_option("--version", "Print the version.");
    soq__print_option("--help", "This text, or after a command the command's.");
    puts("\nExit codes: 0 success, 1 failure, 2 wrong command line or configuration, 130 interrupted.");
    return soq__out_finish("", SOQ_EXIT_OK);
}

/* ---- Global options */

/* The value of --name VALUE or --name=VALUE at argv[*i], which moves on; NULL where it is another argument or lacks a value. */
static const char *value_of(const char *name, int argc, char **argv, int *i)
{
    size_t n = strlen(name);
    const char *arg = argv[*i];

    if (strncmp(arg, name, n) != 0)
        return NULL;
    if (arg[n] == '=')
        return arg + n + 1;
    return !arg[n] && *i + 1 < argc ? argv[++*i] : NULL;
}

/* Takes the global options out of argv[1..argc), up to a "--"; returns the new argc. */
static int take_globals(struct soq__cli_globals *globals, const char **dirs, const char **overrides, int argc, char **argv)
{
    int kept = 1, i = 1;

    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *value;

        if ((value = value_of("--config", argc, argv, &i)))
            globals->config = value;
        else if ((value = value_of("--plugin-dir", argc, argv, &i)))
            dirs[globals->n_plugin_dirs++] = value;
        else if (soq__settings_is_flag(argv[i]))
            overrides[globals->n_overrides++] = argv[i];
        else
            argv[kept++] = argv[i];
    }
    while (i < argc)
        argv[kept++] = argv[i++];
    argv[kept] = NULL;
    return kept;
}

/* ---- Commands */

/* --version behind a command, before a "--". */
static bool wants_version(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--version") == 0)
            return true;
    return false;
}

static command_fn *find_command(const char *name)
{
    const char *names[N_COMMANDS + 1] = {"help"}, *near;

    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run;
        names[i + 1] = commands[i].name;
    }
    near = soq__nearest(name, names, N_COMMANDS + 1);
    if (near)
        soq__cli_say("", "%s: unknown command; did you mean '%s'?", name, near);
    else
        soq__cli_say("", "%s: unknown command; see soquete --help", name);
    return NULL;
}

static int dispatch(const struct soq__cli_globals *globals, int argc, char **argv)
{
    bool help = argc > 1 && strcmp(argv[1], "help") == 0;
    command_fn *run;

    if (argc < 2) {
        soq__cli_say("", "no command; see soquete --help");
        return SOQ_EXIT_USAGE;
    }
    if (wants_version(argc, argv)) {
        soq__out_printf("soquete %s\n", soq_version());
        return soq__out_finish("", SOQ_EXIT_OK);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (help && argc == 2))
        return print_help();
    if (argv[1][0] == '-') {
        bool global = strcmp(argv[1], "--config") == 0 || strcmp(argv[1], "--plugin-dir") == 0;

        soq__cli_say("", "%s: %s; see soquete --help", argv[1], global ? "expected a value" : "unknown option");
        return SOQ_EXIT_USAGE;
    }
    run = find_command(argv[help ? 2 : 1]);
    if (!run)
        return SOQ_EXIT_USAGE;
    if (help)
        return run(globals, 2, (char *[]){argv[2], (char[]){"--help"}, NULL});
    return run(globals, argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    const char **dirs = soq__alloc_zero((size_t)argc + 1, sizeof *dirs);
    const char **overrides = soq__alloc_zero((size_t)argc + 1, sizeof *overrides);
    struct soq__cli_globals globals = {.plugin_dirs = dirs, .overrides = overrides};
    int status = SOQ_EXIT_FAILED;

    setlocale(LC_CTYPE, "");  /* for line editing; numbers stay as they are */
    signal(SIGPIPE, SIG_IGN); /* a reader that goes away is a failed write */
    if (dirs && overrides)
        status = dispatch(&globals, take_globals(&globals, dirs, overrides, argc, argv), argv);
    else
        soq__cli_say("", "out of memory");
    soq__free(dirs);
    soq__free(overrides);
    return status;
}
