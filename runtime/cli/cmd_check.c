/* `soquete check`: whether a plugin keeps the ABI. */
#include <string.h>

#include "base/nearest.h"
#include "check/check.h"
#include "check/report.h"
#include "check/tolerance.h"
#include "cli/options.h"
#include "cli/out.h"
#include "model/dtype.h"
#include "plugin/manifest.h"

struct check_options {
    const char *manifest, *only;
    struct soq__texts roles;
    double time_limit;
    bool json, list;
};

#define ROW(type, field, ...) SOQ__VALUE(type, struct check_options, field, __VA_ARGS__)

static const struct soq__opt opts[] = {
    ROW(SOQ__OPT_TEXTS, roles, "role", 0, "ROLE", "Only this role of the plugin; may be repeated."),
    ROW(SOQ__OPT_TEXT, only, "only", 0, "ID", "Only checks whose name begins so, and what they need."),
    ROW(SOQ__OPT_TEXT, manifest, "manifest", 0, "FILE", "The plugin's manifest; the default is the one beside it."),
    ROW(SOQ__OPT_NUMBER, time_limit, "time-limit", 0, "S", "Seconds that one check may take.", .min = 0.1, .max = 86400),
    SOQ__FLAG(struct check_options, list, "list", 0, "List the checks and the tolerances instead."),
    SOQ__FLAG(struct check_options, json, "json", 0, "One JSON object instead of lines."),
};

static const struct soq__usage usage = {
    .command = "check",
    .args = "PLUGIN.so",
    .about = "Checks a plugin against the ABI: the file, its descriptor, its life, its behaviour under failing\n"
             "services and with hosts of other versions, and the results of every role that it fills. Each check\n"
             "runs in a process of its own. Exit status: 0 if nothing failed, 1 if something did.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

/* ---- Arguments */

static int find_role(const char *name, uint32_t *roles, struct soq_error *err)
{
    const char *names[SOQ_ROLE_COMM];
    const char *near;

    for (uint32_t role = 1; role <= SOQ_ROLE_COMM; role++) {
        names[role - 1] = soq__role_name(role);
        if (strcmp(name, names[role - 1]) == 0) {
            *roles |= 1u << role;
            return 0;
        }
    }
    near = soq__nearest(name, names, SOQ_ROLE_COMM);
    return soq__fail(err, SOQ_EINVAL, "--role %s: no such role; did you mean \"%s\"?", name, near ? near : "backend");
}

static int take_roles(const struct check_options *o, uint32_t *roles, struct soq_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < o->roles.count && !rc; i++)
        rc = find_role(o->roles.items[i], roles, err);
    return rc;
}

/* ---- Output */

static void write_buffer(struct soq_buf *text)
{
    soq__out_write(soq__buf_str(text), text->len);
    soq__buf_done(text);
}

static void print_result(void *ctx, const struct soq__check_report *report, const struct soq__check_result *result)
{
    const struct check_options *o = ctx;
    struct soq_buf text = SOQ_BUF_INIT;

    if (o->json)
        return;
    soq__check_print_result(report, result, &text);
    write_buffer(&text);
}

static void list_tolerance(const struct soq__tolerance *t)
{
    static const char *const ops[] = {
#define OP(name, value, text) [value] = text,
        SOQ_OPS(OP)
#undef OP
    };
    const struct soq__dtype *type = t->dtype == SOQ__ANY_DTYPE || t->dtype == SOQ__FEW_BITS ? NULL : soq__dtype(t->dtype);

    soq__out_printf("%-11s %-8s  ", ops[t->op], type ? type->name : t->dtype == SOQ__FEW_BITS ? "few bits" : "any");
    if (t->relative > 0)
        soq__out_printf("%g of %s\n", t->relative, t->to);
    else
        soq__out_printf("%s\n", t->to);
}

static int list(void)
{
    const struct soq__check *check;

    for (size_t i = 0; (check = soq__check_at(i)); i++)
        soq__out_printf("%-20s  %s\n", check->id, check->what);
    soq__out_printf("\nTolerances of comparisons with f64:\n");
    for (size_t i = 0; i < soq__tolerance_count; i++)
        list_tolerance(&soq__tolerances[i]);
    return soq__out_finish("check", SOQ_EXIT_OK);
}

static int print_end(const struct check_options *o, const struct soq__check_report *report, const char *library)
{
    struct soq_buf text = SOQ_BUF_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    int rc = 0;

    if (o->json)
        rc = soq__check_print_json(report, library, &text, &err);
    else
        soq__check_print_sum(report, library, &text);
    write_buffer(&text);
    return rc ? soq__cli_fail("check", rc, &err) : SOQ_EXIT_OK;
}

static int run(const struct check_options *o, const char *library)
{
    struct soq__check_params params = {
        .library = library, .manifest = o->manifest, .only = o->only, .time_limit = o->time_limit};
    struct soq__check_report report = {.count = 0};
    struct soq_error err = SOQ_ERROR_INIT;
    bool bad;
    int rc = take_roles(o, &params.roles, &err);

    if (!rc)
        rc = soq__check_run(&params, print_result, (void *)(uintptr_t)o, &report, &err);
    if (rc)
        return soq__cli_fail("check", rc, &err);
    if (!report.count && o->only)
        soq__cli_say("check", "--only %s: no check that applies begins so; see soquete check --list", o->only);
    rc = print_end(o, &report, library);
    bad = report.verdicts[SOQ__FAIL] || report.verdicts[SOQ__CRASH] || report.verdicts[SOQ__HANG] || !report.count;
    soq__check_report_done(&report);
    return soq__out_finish("check", rc ? rc : bad ? SOQ_EXIT_FAILED : SOQ_EXIT_OK);
}

int soq__cmd_check(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct check_options o = {.time_limit = 60};
    struct soq__args args;
    int status = soq__args_init(&args, &usage, globals, argc, argv, &o);

    if (status == SOQ__GO_ON && o.list) {
        status = list();
    } else if (status == SOQ__GO_ON && args.n_words != 1) {
        soq__cli_say("check", "expected one plugin, PLUGIN.so; see soquete check --help");
        status = SOQ_EXIT_USAGE;
    } else if (status == SOQ__GO_ON) {
        status = run(&o, args.words[0]);
    }
    soq__args_done(&args);
    return status;
}
