/* The subcommands of `soquete`, and what main has parsed before it calls one.
 *
 * A command gets argv[0] = its own name and whatever followed it that was no global option; it returns the exit code. */
#ifndef SOQ_CLI_CLI_H
#define SOQ_CLI_CLI_H

#include <stddef.h>

#include "base/error.h"

/* Exit codes, for scripts. */
enum {
    SOQ_EXIT_OK = 0,
    SOQ_EXIT_FAILED = 1, /* the work failed: no such file, not enough memory, no device */
    SOQ_EXIT_USAGE = 2,  /* a wrong command line or configuration */
    SOQ_EXIT_CANCELLED = 130,
};

/* Options that every command takes, before or after its name: --config FILE, --plugin-dir DIR, --section.key=value. Owned by
 * main. */
struct soq__cli_globals {
    const char *config;             /* NULL: the usual places */
    const char *const *plugin_dirs; /* in order; NULL-terminated */
    size_t n_plugin_dirs;
    const char *const *overrides; /* "section.key=value", in order; NULL-terminated */
    size_t n_overrides;
};

int soq__cmd_run(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_chat(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_plugins(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_check(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_config(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_inspect(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_kvcalc(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_trace(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_new(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_tokenize(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_logits(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_bench(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_eval(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_perplexity(const struct soq__cli_globals *globals, int argc, char **argv);
int soq__cmd_calibrate(const struct soq__cli_globals *globals, int argc, char **argv);

#endif
