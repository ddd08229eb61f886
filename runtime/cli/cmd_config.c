/* `soquete config`: the effective settings and where each came from, as an INI file or as JSON. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "cli/cli.h"
#include "cli/out.h"
#include "cli/placement.h"
#include "config/settings.h"

#define ORIGIN_COLUMN 40

static const char usage[] = "Usage: soquete config [--json] [--config FILE] [--SECTION.KEY=VALUE ...]\n"
                            "       soquete config --placement [-m FILE] [--json] [--config FILE] [--SECTION.KEY=VALUE ...]\n"
                            "\n"
                            "Prints every setting that is in effect and where it came from: the command line, a line of\n"
                            "the configuration file, or the default. The output is a valid configuration file. Keys of\n"
                            "plugins appear where they are set; 'soquete plugins NAME' prints them with their defaults.\n"
                            "\n"
                            "With --placement it prints instead which backend runs which ops and holds which weights of a\n"
                            "model, as [backend] use, split and place have it.\n"
                            "\n"
                            "  --placement             who runs what, layers that are alike together\n"
                            "  -m, --model FILE        the model, a GGUF file, with --placement\n"
                            "  --json                  one JSON object instead: section, key, value, type, origin, help\n"
                            "  --config FILE           read FILE instead of the user's or the system's file\n"
                            "  --SECTION.KEY=VALUE     override a key\n"
                            "  --help                  this text\n";

/* The file and the overrides that main has seen. */
static int load(const struct soq__cli_globals *globals, struct soq__settings *settings, struct soq_error *err)
{
    char *path = NULL;
    int rc = soq__settings_locate(globals->config, &path, err);

    if (!rc && path)
        rc = soq__settings_load(settings, path, err);
    soq__free(path);
    for (size_t i = 0; i < globals->n_overrides && !rc; i++)
        rc = soq__settings_override(settings, globals->overrides[i], err);
    return rc;
}

/* Whether an INI file can hold the value: a flag may hold what a file would read as blanks to strip or as a comment. */
static bool fits_ini(const char *text)
{
    size_t n = strlen(text);
    bool fits = !n || (!strchr("; \t", text[0]) && !strchr(" \t", text[n - 1]));

    return fits && !strstr(text, " ;") && !strstr(text, "\t;");
}

/* Appends the text; a path from the root, so that the output means the same wherever it is saved. */
static void append_text(const struct soq__setting *set, const char *text, struct soq_buf *out)
{
    bool is_relative = set->known && set->spec.option.type == SOQ_OPT_PATH && text[0] && text[0] != '/';
    char dir[4096];

    if (is_relative && getcwd(dir, sizeof dir))
        soq__buf_printf(out, "%s/", dir);
    soq__buf_puts(out, text);
}

static void append_value(const struct soq__setting *set, struct soq_buf *out)
{
    if (!set->spec.list)
        append_text(set, set->value.text, out);
    for (size_t i = 0; i < set->value.count; i++) {
        soq__buf_puts(out, i ? ", " : "");
        append_text(set, set->value.items[i], out);
    }
}

static int print_ini(const struct soq__settings *settings)
{
    const char *file = soq__settings_file(settings), *section = NULL;
    const struct soq__setting *set;
    struct soq_buf value = SOQ_BUF_INIT;
    bool complete = true;

    printf("# Settings in effect; file: %s\n", file ? file : "none");
    for (size_t i = 0; (set = soq__settings_at(settings, i)); i++) {
        const char *text;
        int used;

        soq__buf_clear(&value);
        append_value(set, &value);
        complete = complete && soq__buf_ok(&value);
        text = soq__buf_str(&value);
        if (section != set->section)
            printf("\n[%s]\n", set->section);
        section = set->section;
        used = printf("%s%s =%s%s", fits_ini(text) ? "" : "# only on the command line: ", set->spec.option.key,
                      *text ? " " : "", text);
        printf("%*s ; %s%s\n", used < ORIGIN_COLUMN ? ORIGIN_COLUMN - used : 0, "", set->origin,
               set->known ? "" : " (checked once the plugin is loaded)");
    }
    soq__buf_done(&value);
    return complete ? 0 : -1;
}

static json_t *json_text(const struct soq__setting *set, const char *text)
{
    struct soq_buf out = SOQ_BUF_INIT;
    json_t *json;

    append_text(set, text, &out);
    json = soq__buf_ok(&out) ? json_string(soq__buf_str(&out)) : NULL;
    soq__buf_done(&out);
    return json;
}

static json_t *json_list(const struct soq__setting *set)
{
    json_t *list = json_array();

    for (size_t i = 0; i < set->value.count; i++) {
        if (json_array_append_new(list, json_text(set, set->value.items[i]))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *json_value(const struct soq__setting *set)
{
    switch ((enum soq_option_type)set->spec.option.type) {
    case SOQ_OPT_INT:
        return json_integer(set->value.as.integer);
    case SOQ_OPT_SIZE:
        return json_integer((json_int_t)set->value.as.size);
    case SOQ_OPT_FLOAT:
        return json_real(set->value.as.real);
    case SOQ_OPT_BOOL:
        return json_boolean(set->value.as.flag);
    case SOQ_OPT_STRING:
    case SOQ_OPT_PATH:
    case SOQ_OPT_ENUM:
        break;
    }
    return set->spec.list ? json_list(set) : json_text(set, set->value.text);
}

static json_t *json_setting(const struct soq__setting *set)
{
    struct soq_buf type = SOQ_BUF_INIT;
    json_t *json;

    soq__option_describe(&set->spec.option, &type);
    json = json_pack("{so ss ss* ss*}", "value", json_value(set), "origin", set->origin, "type",
                     set->known ? soq__buf_str(&type) : NULL, "help", set->spec.option.help);
    soq__buf_done(&type);
    return json;
}

/* {"file": PATH or null, "settings": {SECTION: {KEY: {"value", "origin", "type", "help"}}}} on one line. */
static int print_json(const struct soq__settings *settings)
{
    json_t *all = json_object(), *root;
    const struct soq__setting *set;
    int rc = 0;

    for (size_t i = 0; (set = soq__settings_at(settings, i)) && !rc; i++) {
        json_t *section = json_object_get(all, set->section);

        if (!section && !json_object_set_new(all, set->section, json_object()))
            section = json_object_get(all, set->section);
        rc = json_object_set_new(section, set->spec.option.key, json_setting(set));
    }
    root = json_pack("{ss? so}", "file", soq__settings_file(settings), "settings", all);
    if (!rc)
        rc = json_dumpf(root, stdout, JSON_REAL_PRECISION(17));
    json_decref(root);
    if (!rc)
        putchar('\n');
    return rc;
}

static int print(const struct soq__settings *settings, bool json)
{
    int failed = json ? print_json(settings) : print_ini(settings);

    if (failed && !ferror(stdout)) {
        soq__cli_say("config", "out of memory");
        return SOQ_EXIT_FAILED;
    }
    return soq__out_finish("config", SOQ_EXIT_OK);
}

struct args {
    bool json, placement;
    const char *model;
};

static bool parse_args(int argc, char **argv, struct args *args)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            args->json = true;
        } else if (strcmp(argv[i], "--placement") == 0) {
            args->placement = true;
        } else if ((strcmp(argv[i], "-m") == 0 || strcmp(argv[i], "--model") == 0) && i + 1 < argc) {
            args->model = argv[++i];
        } else {
            fprintf(stderr, "soquete config: %s: unknown argument; see soquete config --help\n", argv[i]);
            return false;
        }
    }
    if (args->model && !args->placement)
        fputs("soquete config: a model is only looked at with --placement\n", stderr);
    return args->placement || !args->model;
}

int soq__cmd_config(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__settings *settings = NULL;
    struct args args = {.json = false};
    int status;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            soq__out_printf("%s", usage);
            return soq__out_finish("config", SOQ_EXIT_OK);
        }
    }
    if (!parse_args(argc, argv, &args))
        return SOQ_EXIT_USAGE;
    if (args.placement)
        return soq__print_placement(globals, args.model, args.json);
    if (soq__settings_create(&settings, &err) || load(globals, settings, &err)) {
        fprintf(stderr, "soquete config: %s\n", err.text);
        status = err.code == -SOQ_ENOMEM ? SOQ_EXIT_FAILED : SOQ_EXIT_USAGE;
    } else {
        status = print(settings, args.json);
    }
    soq__settings_free(settings);
    return status;
}
