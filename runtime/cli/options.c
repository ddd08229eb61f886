/* Parsing over getopt_long, and --help. */
#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/nearest.h"
#include "cli/out.h"
#include "config/schema.h"

#define OPTS_MAX 48
#define HELP_COLUMN 28
#define HELP_WIDTH 100
enum { HELP = 256 }; /* values of getopt_long: HELP, HELP + 1 + index of the option */

/* ---- Help */

void soq__print_option(const char *left, const char *text)
{
    int column = printf("  %s", left);

    if (column >= HELP_COLUMN - 1) {
        putchar('\n');
        column = 0;
    }
    while (*text) {
        size_t word = strcspn(text, " ");

        if (column > HELP_COLUMN && column + 1 + (int)word > HELP_WIDTH) {
            putchar('\n');
            column = 0;
        }
        if (column < HELP_COLUMN)
            column += printf("%*s", HELP_COLUMN - column, "");
        else
            column += printf(" ");
        column += printf("%.*s", (int)word, text);
        text += word;
        text += strspn(text, " ");
    }
    putchar('\n');
}

/* The default of "section.key" where it is one of the core's; NULL where it is not, or is empty. */
static const char *default_of(const char *setting)
{
    for (size_t i = 0; setting && i < soq__core_key_count; i++) {
        const struct soq__core_key *k = &soq__core_keys[i];
        size_t n = strlen(k->section);

        if (strncmp(setting, k->section, n) == 0 && setting[n] == '.' && strcmp(setting + n + 1, k->spec.option.key) == 0)
            return *k->spec.option.default_value ? k->spec.option.default_value : NULL;
    }
    return NULL;
}

static void print_opt(const struct soq__opt *o)
{
    const char *normal = default_of(o->setting);
    char left[80], letter[8] = "    ";
    struct soq_buf text = SOQ_BUF_INIT;

    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    soq__buf_puts(&text, o->help);
    if (normal)
        soq__buf_printf(&text, " The default is %s.", normal);
    soq__print_option(left, soq__buf_ok(&text) ? soq__buf_str(&text) : o->help);
    soq__buf_done(&text);
}

static void print_help(const struct soq__usage *u)
{
    printf("Usage: soquete %s [OPTION]...%s%s\n\n%s\n\n", u->command, *u->args ? " " : "", u->args, u->about);
    for (size_t i = 0; i < u->n_opts; i++)
        print_opt(&u->opts[i]);
    soq__print_option("    --help", "This text.");
    printf("\nEvery command also takes --config FILE, --plugin-dir DIR and --SECTION.KEY=VALUE; see soquete --help.\n");
}

/* ---- Values */

bool soq__parse_int(const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < min || value > max)
        return false;
    *out = value;
    return true;
}

size_t soq__parse_list(const char *text, int64_t least, int64_t most, int64_t *out, size_t max)
{
    size_t count = 0;

    while (count < max) {
        size_t n = strcspn(text, ",");
        char word[32];

        if (n >= sizeof word)
            return 0;
        memcpy(word, text, n);
        word[n] = '\0';
        if (!soq__parse_int(word, least, most, &out[count++]))
            return 0;
        text += n;
        if (!*text++)
            return count;
    }
    return 0;
}

static bool parse_number(const char *text, double min, double max, double *out)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !isfinite(value) || value < min || value > max)
        return false;
    *out = value;
    return true;
}

static int add_override(struct soq__args *args, const char *setting, const char *value)
{
    size_t n = args->globals.n_overrides;
    const char **all = (const char **)(uintptr_t)args->globals.overrides;
    struct soq_buf text = SOQ_BUF_INIT;

    soq__buf_printf(&text, "%s=%s", setting, value);
    args->owned[args->n_owned] = soq__buf_steal(&text);
    if (!args->owned[args->n_owned])
        return -1;
    all[n] = args->owned[args->n_owned++];
    args->globals.n_overrides = n + 1;
    return 0;
}

static int take(struct soq__args *args, const struct soq__opt *o, const char *text, char *values)
{
    void *field = values + o->offset;
    struct soq__texts *texts = field;
    bool ok = true;

    switch (o->type) {
    case SOQ__OPT_FLAG:
        *(bool *)field = true;
        break;
    case SOQ__OPT_TEXT:
        *(const char **)field = text;
        break;
    case SOQ__OPT_TEXTS:
        ok = texts->count < SOQ__TEXTS_MAX;
        if (ok)
            texts->items[texts->count++] = text;
        break;
    case SOQ__OPT_INT:
        ok = soq__parse_int(text, (int64_t)o->min, (int64_t)o->max, field);
        break;
    case SOQ__OPT_NUMBER:
        ok = parse_number(text, o->min, o->max, field);
        break;
    case SOQ__OPT_SETTING:
        if (!add_override(args, o->setting, text))
            break;
        soq__cli_say(args->command, "out of memory");
        return SOQ_EXIT_FAILED;
    }
    if (ok)
        return SOQ__GO_ON;
    if (o->type == SOQ__OPT_TEXTS)
        soq__cli_say(args->command, "--%s: more than %d times", o->name, SOQ__TEXTS_MAX);
    else
        soq__cli_say(args->command, "--%s %s: expected %s from %.16g to %.16g", o->name, text,
                     o->type == SOQ__OPT_INT ? "an integer" : "a number", o->min, o->max);
    return SOQ_EXIT_USAGE;
}

/* ---- Parsing */

/* What getopt_long refused: `given` is the argument it stopped at, letter the short option. */
static int refuse(const struct soq__usage *u, const char *given, int letter, bool missing)
{
    const char *names[OPTS_MAX], *near = NULL;
    char word[64];

    if (missing) {
        soq__cli_say(u->command, "%s: expected a value", given);
    } else if (strncmp(given, "--", 2) == 0) {
        for (size_t i = 0; i < u->n_opts; i++)
            names[i] = u->opts[i].name;
        snprintf(word, sizeof word, "%.*s", (int)strcspn(given + 2, "="), given + 2);
        near = soq__nearest(word, names, u->n_opts);
        soq__cli_say(u->command, "%s: unknown, ambiguous or wrongly used option; %s%s%s", given, near ? "did you mean --" : "",
                     near ? near : "see --help", near ? "?" : "");
    } else {
        soq__cli_say(u->command, "-%c: unknown option; see --help", letter);
    }
    return SOQ_EXIT_USAGE;
}

static void fill_tables(const struct soq__usage *u, struct option *longs, char *shorts)
{
    *shorts++ = ':'; /* a missing value is told apart */
    for (size_t i = 0; i < u->n_opts; i++) {
        const struct soq__opt *o = &u->opts[i];

        longs[i] =
            (struct option){.name = o->name, .has_arg = o->arg ? required_argument : no_argument, .val = HELP + 1 + (int)i};
        if (!o->letter)
            continue;
        *shorts++ = o->letter;
        if (o->arg)
            *shorts++ = ':';
    }
    longs[u->n_opts] = (struct option){.name = "help", .val = HELP};
    longs[u->n_opts + 1] = (struct option){0};
    *shorts = '\0';
}

static const struct soq__opt *find(const struct soq__usage *u, int value)
{
    if (value > HELP)
        return &u->opts[value - HELP - 1];
    for (size_t i = 0; i < u->n_opts; i++)
        if (u->opts[i].letter == value)
            return &u->opts[i];
    return NULL;
}

static int parse(struct soq__args *args, const struct soq__usage *u, int argc, char **argv, void *values)
{
    struct option longs[OPTS_MAX + 2];
    char shorts[2 * OPTS_MAX + 2];
    int value, status;

    fill_tables(u, longs, shorts);
    opterr = 0;
    optind = 0; /* begin anew, after main's use */
    while ((value = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        if (value == HELP) {
            print_help(u);
            return SOQ_EXIT_OK;
        }
        if (value == '?' || value == ':')
            return refuse(u, argv[optind - 1], optopt, value == ':');
        status = take(args, find(u, value), optarg, values);
        if (status != SOQ__GO_ON)
            return status;
    }
    args->words = argv + optind;
    args->n_words = argc - optind;
    if (*u->args || !args->n_words)
        return SOQ__GO_ON;
    soq__cli_say(u->command, "%s: unexpected argument; see --help", args->words[0]);
    return SOQ_EXIT_USAGE;
}

int soq__args_init(struct soq__args *args, const struct soq__usage *usage, const struct soq__cli_globals *globals, int argc,
                   char **argv, void *values)
{
    const char **overrides = soq__alloc_zero(globals->n_overrides + (size_t)argc + 1, sizeof *overrides);
    char **owned = soq__alloc_zero((size_t)argc + 1, sizeof *owned);

    *args = (struct soq__args){.command = usage->command, .globals = *globals, .owned = owned};
    args->globals.overrides = overrides;
    if (!overrides || !owned) {
        soq__cli_say(usage->command, "out of memory");
        return SOQ_EXIT_FAILED;
    }
    if (globals->n_overrides)
        memcpy(overrides, globals->overrides, globals->n_overrides * sizeof *overrides);
    return parse(args, usage, argc, argv, values);
}

void soq__args_done(struct soq__args *args)
{
    for (size_t i = 0; i < args->n_owned; i++)
        soq__free(args->owned[i]);
    soq__free(args->owned);
    soq__free((void *)(uintptr_t)args->globals.overrides);
}
