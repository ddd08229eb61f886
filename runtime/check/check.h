/* The conformance kit: does a plugin keep the ABI? `soquete check` is its program.
 *
 * A check is one function that runs in a child process of its own with a time limit, so that a plugin that crashes or hangs
 * spoils one check and no other. The parent never maps the plugin. What each check asks for, and the tolerances of its
 * comparisons with f64, are described in docs/conformance.md. */
#ifndef SOQ_CHECK_CHECK_H
#define SOQ_CHECK_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "soquete/plugin.h"

struct soq__kit;

enum soq__verdict { SOQ__PASS, SOQ__FAIL, SOQ__CRASH, SOQ__HANG, SOQ__SKIP, SOQ__N_VERDICTS };

/* Roles that a check is for, beside those of enum soq_role. */
enum { SOQ__ROLE_NONE = 0 /* the plugin as a whole */, SOQ__ROLE_EACH = 31 /* once for each role that it fills */ };

struct soq__check {
    const char *id; /* "backend.matmul" */
    uint32_t role;
    const char *what; /* what holds when it passes, one line */
    void (*run)(struct soq__kit *kit);
    const char *needs; /* id of a check without which this one says nothing; NULL: none */
};

struct soq__check_params {
    const char *library;
    const char *manifest; /* NULL: the one beside the library that names it, if any */
    uint32_t roles;       /* bit 1 << enum soq_role; 0: all that the plugin fills */
    const char *only;     /* beginning of the ids to run; NULL: all. What those need runs too */
    double time_limit;    /* seconds, of each check */
};

struct soq__check_result {
    const struct soq__check *check;
    uint32_t role; /* 0 for the plugin as a whole */
    enum soq__verdict verdict;
    double seconds;
    char reason[SOQ_ERROR_TEXT_MAX]; /* "" for a pass */
};

/* What the plugin says about itself; empty where it does not load. */
struct soq__check_facts {
    char name[64], variant[64], version[64];
    uint32_t roles;   /* bit 1 << enum soq_role */
    uint32_t devices; /* nonzero: it drives devices, whose drivers may keep files */
};

struct soq__check_report {
    struct soq__check_facts facts;
    struct soq__check_result *results; /* owned */
    size_t count;
    size_t verdicts[SOQ__N_VERDICTS]; /* how many of each */
};

/* Runs all that apply. on_result is called after each, as it ends; may be NULL. Fails only where nothing can be checked: no
 * such file, no memory, no process. */
int soq__check_run(const struct soq__check_params *params,
                   void (*on_result)(void *ctx, const struct soq__check_report *report, const struct soq__check_result *result),
                   void *ctx, struct soq__check_report *report_out, struct soq_error *err);
void soq__check_report_done(struct soq__check_report *report);

/* "pass", "fail", "crash", "hang", "skip" */
const char *soq__verdict_text(enum soq__verdict verdict);
/* The i-th check of the table, in the order in which they run; NULL behind the last. */
const struct soq__check *soq__check_at(size_t i);

#endif
