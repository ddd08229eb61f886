#include "check/report.h"

#include <jansson.h>
#include <string.h>

#include "plugin/manifest.h"

static const char *role_text(uint32_t role)
{
    const char *name = role ? soq__role_name(role) : NULL;

    return name ? name : "";
}

/* ---- For people */

static bool several_roles(const struct soq__check_report *report)
{
    return report->facts.roles & (report->facts.roles - 1);
}

void soq__check_print_result(const struct soq__check_report *report, const struct soq__check_result *result,
                             struct soq_buf *out)
{
    static const char *const marks[SOQ__N_VERDICTS] = {
        [SOQ__PASS] = "pass ", [SOQ__FAIL] = "FAIL ", [SOQ__CRASH] = "CRASH", [SOQ__HANG] = "HANG ", [SOQ__SKIP] = "skip ",
    };
    const char *role = several_roles(report) ? role_text(result->role) : "";

    soq__buf_printf(out, "%s  %-20s  %s%s%s\n", marks[result->verdict], result->check->id, result->check->what,
                    *role ? ": " : "", role);
    if (*result->reason)
        soq__buf_printf(out, "       %s%s\n", result->verdict == SOQ__SKIP ? "skipped: " : "", result->reason);
}

void soq__check_print_sum(const struct soq__check_report *report, const char *library, struct soq_buf *out)
{
    const struct soq__check_facts *f = &report->facts;
    const size_t *n = report->verdicts;

    soq__buf_printf(out, "%s%s%s%s%s: %zu passed, %zu failed, %zu crashed, %zu hung, %zu skipped\n",
                    *f->name ? f->name : library, *f->variant ? "/" : "", f->variant, *f->version ? " " : "", f->version,
                    n[SOQ__PASS], n[SOQ__FAIL], n[SOQ__CRASH], n[SOQ__HANG], n[SOQ__SKIP]);
}

/* ---- For programs */

/* What a plugin says may be no UTF-8. */
static json_t *text(const char *s)
{
    json_t *json = json_string(s);

    return json ? json : json_string("?");
}

static json_t *json_result(const struct soq__check_result *r)
{
    return json_pack("{ss so ss ss so sf}", "id", r->check->id, "role", r->role ? json_string(role_text(r->role)) : json_null(),
                     "what", r->check->what, "result", soq__verdict_text(r->verdict), "reason", text(r->reason), "seconds",
                     r->seconds);
}

static json_t *json_counts(const struct soq__check_report *report)
{
    json_t *counts = json_object();

    for (int v = 0; v < SOQ__N_VERDICTS; v++)
        json_object_set_new(counts, soq__verdict_text((enum soq__verdict)v), json_integer((json_int_t)report->verdicts[v]));
    return counts;
}

static json_t *json_roles(uint32_t roles)
{
    json_t *list = json_array();

    for (uint32_t role = 1; role <= SOQ_ROLE_COMM; role++) {
        if (roles >> role & 1)
            json_array_append_new(list, json_string(role_text(role)));
    }
    return list;
}

int soq__check_print_json(const struct soq__check_report *report, const char *library, struct soq_buf *out,
                          struct soq_error *err)
{
    const struct soq__check_facts *f = &report->facts;
    json_t *checks = json_array(), *all;
    char *dump;

    for (size_t i = 0; i < report->count; i++)
        json_array_append_new(checks, json_result(&report->results[i]));
    all =
        json_pack("{so so so so so so so}", "library", text(library), "name", text(f->name), "variant", text(f->variant),
                  "version", text(f->version), "roles", json_roles(f->roles), "counts", json_counts(report), "checks", checks);
    dump = all ? json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(all);
    if (!dump)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    soq__buf_printf(out, "%s\n", dump);
    free(dump);
    return soq__buf_ok(out) ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory");
}
