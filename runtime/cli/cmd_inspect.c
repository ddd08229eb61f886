/* `soquete inspect FILE`: what a GGUF file holds, and what is wrong with it. Needs no plugin and no configuration. */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>

#include "cli/cli.h"
#include "cli/inspect.h"
#include "cli/out.h"

static const char usage[] =
    "Usage: soquete inspect [--meta] [--tensors] [--all] [--json] FILE\n"
    "\n"
    "Shows the metadata and the tensors of a GGUF file, totals by tensor type, and problems: types that\n"
    "cannot be computed with, metadata that contradicts itself. Exit code 0: no problems; 1: problems, or\n"
    "the file cannot be read; 2: wrong usage.\n"
    "\n"
    "  --meta      only the metadata\n"
    "  --tensors   only the tensors\n"
    "  --all       long arrays and texts in full\n"
    "  --json      one JSON object instead\n"
    "  --help      this text\n";

struct arguments {
    struct soq__inspect show;
    bool json;
    bool help;
    const char *file;
};

/* 0, or -1 after a message. */
static int parse(int argc, char **argv, struct arguments *args)
{
    static const struct option options[] = {
        {"meta", no_argument, NULL, 'm'}, {"tensors", no_argument, NULL, 't'}, {"all", no_argument, NULL, 'a'},
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'},    {0},
    };
    int c;

    optind = 0; /* main may have parsed options before */
    opterr = 0;
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        args->show.meta |= c == 'm';
        args->show.tensors |= c == 't';
        args->show.whole |= c == 'a';
        args->json |= c == 'j';
        args->help |= c == 'h';
        if (c == '?') {
            fprintf(stderr, "soquete inspect: %s: unknown option; see soquete inspect --help\n", argv[optind - 1]);
            return -1;
        }
    }
    if (!args->help && argc - optind != 1) {
        fprintf(stderr, "soquete inspect: %s; see soquete inspect --help\n",
                argc > optind ? "more than one file" : "no file given");
        return -1;
    }
    args->file = argv[optind];
    if (!args->show.meta && !args->show.tensors)
        args->show.meta = args->show.tensors = true;
    return 0;
}

/* A script reads why from the same place where it would have read the rest. */
static void print_error(const struct arguments *args, const struct soq_error *err)
{
    json_t *root = args->json ? json_pack("{ss ss}", "file", args->file, "error", err->text) : NULL;

    if (root && json_dumpf(root, stdout, 0) == 0)
        putchar('\n');
    json_decref(root);
    fprintf(stderr, "soquete inspect: %s\n", err->text);
}

static int print(const struct soq__gguf *g, const struct arguments *args)
{
    struct soq_buf out = SOQ_BUF_INIT;
    size_t problems = args->json ? soq__inspect_json(g, &args->show, &out) : soq__inspect_text(g, &args->show, &out);
    int status = problems == 0 ? SOQ_EXIT_OK : SOQ_EXIT_FAILED;

    if (soq__buf_ok(&out)) {
        soq__out_write(out.data, out.len);
    } else {
        soq__cli_say("inspect", "%s: out of memory", args->file);
        status = SOQ_EXIT_FAILED;
    }
    soq__buf_done(&out);
    return soq__out_finish("inspect", status);
}

int soq__cmd_inspect(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct arguments args = {0};
    struct soq__gguf *g;
    int status;

    (void)globals;
    if (parse(argc, argv, &args))
        return SOQ_EXIT_USAGE;
    if (args.help) {
        soq__out_printf("%s", usage);
        return soq__out_finish("inspect", SOQ_EXIT_OK);
    }
    if (soq__gguf_open(args.file, &g, &err)) {
        print_error(&args, &err);
        return SOQ_EXIT_FAILED;
    }
    status = print(g, &args);
    soq__gguf_close(g);
    return status;
}
