/* Command lines: each command has a table of its options, from which they are parsed and --help is printed.
 *
 * An option either goes to a field of the command's own struct or, where it has the name of a setting, overrides that key of
 * the configuration; values are checked here in the first case and by the settings in the second. */
#ifndef SOQ_CLI_OPTIONS_H
#define SOQ_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/cli.h"

enum soq__opt_type {
    SOQ__OPT_FLAG,    /* bool: becomes true */
    SOQ__OPT_TEXT,    /* const char * */
    SOQ__OPT_TEXTS,   /* struct soq__texts: may be repeated */
    SOQ__OPT_INT,     /* int64_t, from min to max */
    SOQ__OPT_NUMBER,  /* double, from min to max */
    SOQ__OPT_SETTING, /* the key `setting`, "section.key" */
};

#define SOQ__TEXTS_MAX 64

/* NULL-terminated. */
struct soq__texts {
    const char *items[SOQ__TEXTS_MAX + 1];
    size_t count;
};

struct soq__opt {
    const char *name; /* long, without dashes */
    char letter;      /* '\0': none */
    enum soq__opt_type type;
    const char *arg;     /* "FILE"; NULL for flags */
    const char *help;    /* one sentence */
    const char *setting; /* SOQ__OPT_SETTING */
    size_t offset;       /* the field, otherwise */
    double min, max;
};

#define SOQ__FLAG(struct_, field_, name_, letter_, help_)                                                                      \
    {                                                                                                                          \
        .name = name_, .letter = letter_, .type = SOQ__OPT_FLAG, .help = help_, .offset = offsetof(struct_, field_)            \
    }
#define SOQ__VALUE(type_, struct_, field_, name_, letter_, arg_, help_, ...)                                                   \
    {                                                                                                                          \
        .name = name_, .letter = letter_, .type = type_, .arg = arg_, .help = help_, .offset = offsetof(struct_, field_),      \
        __VA_ARGS__                                                                                                            \
    }
#define SOQ__SETTING(setting_, name_, letter_, arg_, help_)                                                                    \
    {                                                                                                                          \
        .name = name_, .letter = letter_, .type = SOQ__OPT_SETTING, .arg = arg_, .help = help_, .setting = setting_            \
    }

/* What every command with a model has. */
#define SOQ__MODEL_OPTION SOQ__SETTING("model.path", "model", 'm', "FILE", "The model, a GGUF file.")
#define SOQ__CONTEXT_OPTION                                                                                                    \
    SOQ__SETTING("model.context", "context", 'c', "N", "Tokens that a sequence may hold, prompt and answer together.")
#define SOQ__THREADS_OPTION                                                                                                    \
    SOQ__SETTING("backend.cpu.threads", "threads", 't', "N", "Threads of the CPU backend; 0: as many as there are CPUs.")

struct soq__usage {
    const char *command; /* "run" */
    const char *args;    /* "[PROMPT...]", or "" */
    const char *about;   /* a paragraph */
    const struct soq__opt *opts;
    size_t n_opts;
};

/* A parsed command line. */
struct soq__args {
    const char *command;
    struct soq__cli_globals globals; /* main's, with the options that set keys behind the overrides */
    char **words;                    /* [n_words] what was no option, NULL-terminated */
    int n_words;
    char **owned; /* the overrides that were made here */
    size_t n_owned;
};

enum { SOQ__GO_ON = -1 };

/* Fills *values, which holds the defaults, and args. Returns SOQ__GO_ON, or the exit code when the command ends here: after
 * --help, or with a message about what is wrong. args needs done() in any case. */
int soq__args_init(struct soq__args *args, const struct soq__usage *usage, const struct soq__cli_globals *globals, int argc,
                   char **argv, void *values);
void soq__args_done(struct soq__args *args);

/* Appends "  -m, --model FILE    text", the text wrapped, to standard output. */
void soq__print_option(const char *left, const char *text);

/* The whole text as a number within the limits. */
bool soq__parse_int(const char *text, int64_t min, int64_t max, int64_t *out);
/* "0,512,2048": at most `max` numbers of at least `least`; how many, 0 where the text is no such list. */
size_t soq__parse_list(const char *text, int64_t least, int64_t most, int64_t *out, size_t max);

#endif
