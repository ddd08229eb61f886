/* Which checks run, for which roles, and what is said of those that cannot. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "check/child.h"
#include "check/kit.h"
#include "check/table.h"

struct runner {
    const struct soq__check_params *params;
    void (*on_result)(void *ctx, const struct soq__check_report *report, const struct soq__check_result *result);
    void *ctx;
    struct soq__check_report *report;
    struct soq__kit kit;
    struct soq__sandbox sandbox;
    char library[PATH_MAX], manifest[PATH_MAX];
    char said[400], wrote[400]; /* of the first check that was not silent */
};

/* ---- Silence: not one check, but of all */

static void never_runs(struct soq__kit *kit)
{
    (void)kit;
}

enum { SILENCE_OUTPUT, SILENCE_FILES };
static const struct soq__check silence_checks[] = {
    [SILENCE_OUTPUT] = {"silence.output", SOQ__ROLE_NONE, "no check made it write to standard output or error", never_runs,
                        NULL},
    [SILENCE_FILES] = {"silence.files", SOQ__ROLE_NONE, "no check made it leave a file, but for caches in XDG_CACHE_HOME",
                       never_runs, NULL},
};
const struct soq__check_family soq__checks_silence = SOQ__FAMILY(silence_checks);

static void listen(struct runner *r, const struct soq__check *check, const struct soq_buf *output)
{
    const char *file = soq__sandbox_found(&r->sandbox), *text = soq__buf_str(output);
    size_t n = strcspn(text, "\n");

    if (output->len && !*r->said)
        snprintf(r->said, sizeof r->said, "%s: \"%.*s\"", check->id, n < 200 ? (int)n : 200, text);
    if (file && !*r->wrote)
        snprintf(r->wrote, sizeof r->wrote, "%s: %s", check->id, file);
}

/* ---- Results */

static const struct soq__check_result *find_result(const struct soq__check_report *report, const char *id, uint32_t role)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct soq__check_result *result = &report->results[i];

        if (strcmp(result->check->id, id) == 0 && (result->role == role || result->role == 0))
            return result;
    }
    return NULL;
}

static int add_result(struct runner *r, const struct soq__check_result *result, struct soq_error *err)
{
    struct soq__check_report *report = r->report;
    struct soq__check_result *results = soq__realloc_array(report->results, report->count + 1, sizeof *results);

    if (!results)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    report->results = results;
    report->results[report->count++] = *result;
    report->verdicts[result->verdict]++;
    report->facts = r->kit.shared->facts;
    if (r->on_result)
        r->on_result(r->ctx, report, result);
    return 0;
}

/* ---- One check */

static int run_for(struct runner *r, const struct soq__check *check, uint32_t role, struct soq_error *err)
{
    struct soq__check_result result = {.check = check, .role = role};
    const struct soq__check_result *needed = check->needs ? find_result(r->report, check->needs, role) : NULL;
    struct soq_buf output = SOQ_BUF_INIT;
    int rc = 0;

    if (find_result(r->report, check->id, role))
        return 0;
    if (needed && needed->verdict != SOQ__PASS) {
        result.verdict = SOQ__SKIP;
        if (needed->verdict == SOQ__SKIP)
            memcpy(result.reason, needed->reason, sizeof result.reason);
        else
            snprintf(result.reason, sizeof result.reason, "needs %s", check->needs);
    } else {
        r->kit.role_id = role;
        rc = soq__child_run(&r->kit, check->run, &r->sandbox, r->params->time_limit, &output, &result, err);
        listen(r, check, &output);
        soq__buf_done(&output);
    }
    return rc ? rc : add_result(r, &result, err);
}

static int run_check(struct runner *r, const struct soq__check *check, struct soq_error *err)
{
    const struct soq__check_facts *facts = &r->kit.shared->facts;
    int rc = 0;

    if (check->role == SOQ__ROLE_NONE)
        return run_for(r, check, 0, err);
    for (uint32_t role = 1; role <= SOQ_ROLE_COMM && !rc; role++) {
        bool meant = check->role == SOQ__ROLE_EACH || check->role == role;

        if (meant && facts->roles >> role & 1 && (!r->params->roles || r->params->roles >> role & 1))
            rc = run_for(r, check, role, err);
    }
    return rc;
}

/* ---- All */

static bool is_wanted(const struct runner *r, const struct soq__check *check)
{
    const struct soq__check *other;

    if (!r->params->only || strncmp(check->id, r->params->only, strlen(r->params->only)) == 0)
        return true;
    for (size_t i = 0; (other = soq__check_at(i)); i++) {
        if (other->needs && strcmp(other->needs, check->id) == 0 && is_wanted(r, other))
            return true;
    }
    return false;
}

static int conclude(struct runner *r, const struct soq__check *check, const char *offence, struct soq_error *err)
{
    struct soq__check_result result = {.check = check, .verdict = *offence ? SOQ__FAIL : SOQ__PASS};

    snprintf(result.reason, sizeof result.reason, "%s", offence);
    return is_wanted(r, check) ? add_result(r, &result, err) : 0;
}

static int run_all(struct runner *r, struct soq_error *err)
{
    const struct soq__check *check;
    int rc = 0;

    for (size_t i = 0; (check = soq__check_at(i)) && !rc; i++) {
        if (check->run != never_runs && is_wanted(r, check))
            rc = run_check(r, check, err);
    }
    if (!rc)
        rc = conclude(r, &silence_checks[SILENCE_OUTPUT], r->said, err);
    return rc ? rc : conclude(r, &silence_checks[SILENCE_FILES], r->wrote, err);
}

static int find_files(struct runner *r, struct soq_error *err)
{
    const struct soq__check_params *p = r->params;

    char cwd[PATH_MAX];

    /* Links are not followed: the manifest lies beside the link. */
    if (!soq__path_is_file(p->library) || !getcwd(cwd, sizeof cwd) ||
        snprintf(r->library, sizeof r->library, "%s%s%s", p->library[0] == '/' ? "" : cwd, p->library[0] == '/' ? "" : "/",
                 p->library) >= (int)sizeof r->library)
        return soq__fail(err, SOQ_ENOTFOUND, "no such file: %s", p->library);
    if (p->manifest && (!realpath(p->manifest, r->manifest) || !soq__path_is_file(r->manifest)))
        return soq__fail(err, SOQ_ENOTFOUND, "no such file: %s", p->manifest);
    r->kit.library = r->library;
    r->kit.manifest = p->manifest ? r->manifest : NULL;
    return 0;
}

int soq__check_run(const struct soq__check_params *params,
                   void (*on_result)(void *ctx, const struct soq__check_report *report, const struct soq__check_result *result),
                   void *ctx, struct soq__check_report *report_out, struct soq_error *err)
{
    struct soq__check_report report = {.count = 0};
    struct runner r = {.params = params, .on_result = on_result, .ctx = ctx, .report = &report};
    void *shared;
    int rc = find_files(&r, err);

    if (rc)
        return rc;
    shared = mmap(NULL, sizeof *r.kit.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    r.kit.shared = shared;
    rc = soq__sandbox_create(&r.sandbox, err);
    if (!rc) {
        rc = run_all(&r, err);
        soq__sandbox_remove(&r.sandbox);
    }
    munmap(shared, sizeof *r.kit.shared);
    if (rc)
        soq__check_report_done(&report);
    else
        *report_out = report;
    return rc;
}

void soq__check_report_done(struct soq__check_report *report)
{
    soq__free(report->results);
    *report = (struct soq__check_report){.count = 0};
}
