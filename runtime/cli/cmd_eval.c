/* `soquete eval kv`: what policies, codecs and budgets cost in quality, beside what they save. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/eval/measure.h"
#include "cli/eval/plot.h"
#include "cli/eval/report.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/out.h"

#define TOKENS_MAX (1 << 20)

struct eval_options {
    struct soq__eval_lists lists;
    const char *tasks, *lengths, *depths, *text, *results, *format, *plots;
    int64_t items, scored, timed, reps, parallel, seed;
};

#define ROW(type, field, ...) SOQ__VALUE(type, struct eval_options, field, __VA_ARGS__)

static const struct soq__opt opts[] = {
    SOQ__MODEL_OPTION,
    ROW(SOQ__OPT_TEXT, lists.policies, "policy", 0, "LIST",
        "Policies, of which all combinations with the following are added."),
    ROW(SOQ__OPT_TEXT, lists.codecs, "codec", 0, "LIST", "Codecs; CODEC+CODEC: of keys and of values."),
    ROW(SOQ__OPT_TEXT, lists.budgets, "budget", 0, "LIST",
        "Entries that a KV head keeps, or below 1 a share of the prompt; not for full."),
    ROW(SOQ__OPT_TEXT, tasks, "tasks", 0, "LIST", "Of text, passkey, recall and speed; the default is all but speed."),
    ROW(SOQ__OPT_TEXT, lengths, "lengths", 0, "LIST", "Tokens of the prompts; the default is 512,1024,2048."),
    ROW(SOQ__OPT_TEXT, depths, "depths", 0, "LIST", "Where pass keys are, in per cent; the default is 0,25,50,75,100."),
    ROW(SOQ__OPT_INT, items, "items", 'n', "N", "Items of each length, of pass keys for each depth; the default is 8.",
        .min = 1, .max = 10000),
    ROW(SOQ__OPT_TEXT, text, "text", 0, "FILE",
        "The text of perplexity and KL divergence; the default is made of everyday words."),
    ROW(SOQ__OPT_INT, scored, "scored", 0, "N", "Tokens of a text that are scored behind each prompt; the default is 64.",
        .min = 4, .max = TOKENS_MAX),
    ROW(SOQ__OPT_INT, timed, "timed", 0, "N", "Tokens of a speed test; the default is 32.", .min = 1, .max = TOKENS_MAX),
    ROW(SOQ__OPT_INT, reps, "reps", 'r', "N", "Speed tests of each configuration and length; the default is 3.", .min = 1,
        .max = 1000),
    ROW(SOQ__OPT_INT, seed, "seed", 's', "N", "Of the generated texts; the default is 1.", .min = 0, .max = 1 << 30),
    ROW(SOQ__OPT_INT, parallel, "parallel", 0, "N", "Items at the same time, which changes no result; the default is 8.",
        .min = 1, .max = 256),
    ROW(SOQ__OPT_TEXT, results, "results", 0, "FILE",
        "Append each result to FILE, and take over what it already has: an interrupted run goes on."),
    ROW(SOQ__OPT_TEXT, format, "format", 0, "FORMAT", "table, md, csv or json; the default is table."),
    ROW(SOQ__OPT_TEXT, plots, "plots", 0, "DIR", "Draw heat.svg, pareto-kl.svg and pareto-passkey.svg there."),
    SOQ__THREADS_OPTION,
};

static const struct soq__usage usage = {
    .command = "eval",
    .args = "kv [CONFIG...]",
    .about =
        "Measures what configurations of the KV cache cost in quality, each beside the full cache in f32 over the same items:\n"
        "perplexity and KL divergence behind a prompt, pass keys found by length and depth, recall of several numbers, tokens\n"
        "per second, bytes. CONFIG is POLICY[:KEY=VALUE]...[/CODEC[:KEY=VALUE]...[+CODEC...]][@BUDGET], snapkv@0.25 or\n"
        "full/kivi+int8 for example.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

/* ---- The plan */

static int parse_tasks(const char *text, bool *tasks, struct soq_error *err)
{
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        int t = 0;

        while (t < SOQ__EVAL_TASKS && (strncmp(at, soq__eval_task_names[t], n) != 0 || soq__eval_task_names[t][n]))
            t++;
        if (t == SOQ__EVAL_TASKS)
            return soq__fail(err, SOQ_EINVAL, "--tasks %s: expected text, passkey, recall and speed, with commas between",
                             text);
        tasks[t] = true;
        at += n;
        if (!*at)
            return 0;
    }
}

static int parse_numbers(const char *option, const char *text, int64_t least, int64_t most, int64_t *out, size_t *n_out,
                         struct soq_error *err)
{
    *n_out = soq__parse_list(text, least, most, out, SOQ__EVAL_LIST_MAX);
    return *n_out ? 0
                  : soq__fail(err, SOQ_EINVAL, "--%s %s: expected numbers from %lld to %lld with commas between, at most %d",
                              option, text, (long long)least, (long long)most, SOQ__EVAL_LIST_MAX);
}

static int make_plan(const struct eval_options *o, struct soq__eval_plan *plan, struct soq_error *err)
{
    int rc;

    *plan = (struct soq__eval_plan){
        .n_items = (uint32_t)o->items,
        .n_scored = (uint32_t)o->scored,
        .n_timed = (uint32_t)o->timed,
        .n_reps = (uint32_t)o->reps,
        .parallel = (uint32_t)o->parallel,
        .seed = (uint64_t)o->seed,
        .text = o->text,
    };
    rc = parse_tasks(o->tasks, plan->tasks, err);
    if (!rc)
        rc = parse_numbers("lengths", o->lengths, 16, TOKENS_MAX, plan->lengths, &plan->n_lengths, err);
    return rc ? rc : parse_numbers("depths", o->depths, 0, 100, plan->depths, &plan->n_depths, err);
}

/* ---- Output */

static int write_file(const char *dir, const char *name, const struct soq_buf *text, struct soq_error *err)
{
    struct soq_buf path = SOQ_BUF_INIT;
    FILE *file = NULL;
    int rc = 0;

    soq__buf_printf(&path, "%s/%s", dir, name);
    if (!soq__buf_ok(text) || !soq__buf_ok(&path))
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (!rc && !(file = fopen(soq__buf_str(&path), "we")))
        rc = soq__fail(err, SOQ_EIO, "%s: %s", soq__buf_str(&path), strerror(errno));
    if (file) {
        fwrite(soq__buf_str(text), 1, text->len, file);
        if (ferror(file) | fclose(file))
            rc = soq__fail(err, SOQ_EIO, "%s: %s", soq__buf_str(&path), strerror(errno));
    }
    soq__buf_done(&path);
    return rc;
}

static int draw(const struct soq__eval_summary *summary, const char *dir, struct soq_error *err)
{
    const bool *tasks = summary->eval->plan->tasks;
    struct soq_buf text = SOQ_BUF_INIT;
    int rc = 0;

    if (mkdir(dir, 0777) && errno != EEXIST)
        return soq__fail(err, SOQ_EIO, "%s: %s", dir, strerror(errno));
    if (tasks[SOQ__EVAL_PASSKEY]) {
        soq__eval_plot_heat(summary, &text);
        rc = write_file(dir, "heat.svg", &text, err);
        soq__buf_clear(&text);
        soq__eval_plot_pareto(summary, SOQ__EVAL_BY_PASSKEY, &text);
        rc = rc ? rc : write_file(dir, "pareto-passkey.svg", &text, err);
        soq__buf_clear(&text);
    }
    if (!rc && tasks[SOQ__EVAL_TEXT]) {
        soq__eval_plot_pareto(summary, SOQ__EVAL_BY_KL, &text);
        rc = write_file(dir, "pareto-kl.svg", &text, err);
    }
    soq__buf_done(&text);
    return rc;
}

static int report(const struct soq__eval *eval, const struct eval_options *o, enum soq__eval_format format,
                  struct soq_error *err)
{
    struct soq__eval_summary summary;
    struct soq_buf text = SOQ_BUF_INIT;
    int rc = soq__eval_summary_init(&summary, eval, err);

    if (!rc)
        soq__eval_report(&summary, format, &text);
    if (!rc && !soq__buf_ok(&text))
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (!rc)
        soq__out_write(soq__buf_str(&text), text.len);
    if (!rc && o->plots)
        rc = draw(&summary, o->plots, err);
    soq__buf_done(&text);
    soq__eval_summary_done(&summary);
    return rc;
}

/* ---- The command */

/* What was measured before an interruption is reported, too. */
static int evaluate(struct soq__eval *eval, const struct eval_options *o, enum soq__eval_format format, struct soq_error *err)
{
    struct soq_error later = SOQ_ERROR_INIT;
    int rc = soq__eval_measure(eval, err), after;

    if ((rc && rc != -SOQ_ECANCELLED) || !eval->records->n)
        return rc;
    if (rc)
        soq__cli_say("eval kv", o->results ? "interrupted; the same command goes on from %s" : "interrupted", o->results);
    after = report(eval, o, format, &later);
    if (!rc && after)
        *err = later;
    return rc ? rc : after;
}

static int eval_kv(const struct soq__args *args, const struct eval_options *o, struct soq_error *err)
{
    struct soq__eval_configs configs = {.n = 0};
    struct soq__eval_records records = {.n = 0};
    struct soq__eval_plan plan;
    struct soq__eval eval = {.plan = &plan, .args = args, .configs = &configs, .records = &records};
    enum soq__eval_format format = SOQ__EVAL_TABLE;
    int rc = make_plan(o, &plan, err);

    if (!rc && !soq__eval_format_parse(o->format, &format))
        rc = soq__fail(err, SOQ_EINVAL, "--format %s: expected table, md, csv or json", o->format);
    if (!rc)
        rc = soq__eval_configs_init(&configs, &o->lists, args->words + 1, (uint32_t)args->n_words - 1, err);
    if (!rc && configs.n == 1)
        rc = soq__fail(err, SOQ_EINVAL,
                       "nothing to compare: name configurations, snapkv@0.25 or full/f16 for example, or --policy and "
                       "--codec");
    if (!rc)
        rc = soq__eval_records_open(&records, o->results, err);
    if (!rc)
        rc = evaluate(&eval, o, format, err);
    soq__eval_records_done(&records);
    soq__eval_configs_done(&configs);
    return rc;
}

int soq__cmd_eval(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct eval_options options = {
        .tasks = "text,passkey,recall",
        .lengths = "512,1024,2048",
        .depths = "0,25,50,75,100",
        .format = "table",
        .items = 8,
        .scored = 64,
        .timed = 32,
        .reps = 3,
        .parallel = 8,
        .seed = 1,
    };
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON && (!args.n_words || strcmp(args.words[0], "kv") != 0)) {
        soq__cli_say("eval", "%s: expected kv; see --help", args.n_words ? args.words[0] : "nothing named");
        status = SOQ_EXIT_USAGE;
    }
    if (status == SOQ__GO_ON) {
        soq__interrupt_catch();
        rc = eval_kv(&args, &options, &err);
        status = rc ? soq__cli_fail("eval kv", rc, &err) : SOQ_EXIT_OK;
    }
    soq__args_done(&args);
    return soq__out_finish("eval kv", status);
}
