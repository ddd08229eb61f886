/* The plain runner: every test in a child that leaves through exit(), so that leak checks and reports at exit happen; the
 * result on standard output as TAP. See criterion/criterion.h for why it exists. */
#include <criterion/criterion.h>

#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_FAILED = 97, EXIT_SKIPPED = 98, SLOWDOWN = 20 /* of sanitizers and valgrind */ };

static struct plain_test *first, **last = &first;
static struct plain_suite *suites;
static int count;
static bool failed; /* in the child */

void plain_register(struct plain_test *test)
{
    *last = test;
    last = &test->next;
    count++;
}

void plain_register_suite(struct plain_suite *suite)
{
    suite->next = suites;
    suites = suite;
}

/* Gives the test what its suite says. */
static void inherit(struct plain_test *test)
{
    for (const struct plain_suite *s = suites; s; s = s->next)
        if (strcmp(s->name, test->suite) == 0) {
            test->init = test->init ? test->init : s->init;
            test->fini = test->fini ? test->fini : s->fini;
            test->timeout = test->timeout > 0 ? test->timeout : s->timeout;
            test->disabled = test->disabled || s->disabled;
        }
}

void plain_fail(bool now, const char *file, int line, const char *condition, const char *fmt, ...)
{
    va_list args;

    printf("# %s:%d: %s:", file, line, condition);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    failed = true;
    if (now)
        exit(EXIT_FAILED);
}

void plain_skip(const char *fmt, ...)
{
    va_list args;

    printf("# skipped:");
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    exit(EXIT_SKIPPED);
}

static void run_child(const struct plain_test *test)
{
    if (test->timeout > 0)
        alarm((unsigned)test->timeout * SLOWDOWN + 1);
    if (test->init)
        test->init();
    test->run();
    if (test->fini)
        test->fini();
    exit(failed ? EXIT_FAILED : 0);
}

static bool run(const struct plain_test *test, int number)
{
    int status = 0;
    bool ok;

    fflush(NULL);
    pid_t pid = test->disabled ? -1 : fork();
    if (pid == 0)
        run_child(test);
    if (pid > 0)
        waitpid(pid, &status, 0);

    if (test->signal)
        ok = WIFSIGNALED(status) && WTERMSIG(status) == test->signal;
    else
        ok = WIFEXITED(status) && WEXITSTATUS(status) == test->exit_code;
    bool skipped = test->disabled || (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED);
    ok = skipped || (ok && pid > 0);
    printf("%s %d - %s::%s%s\n", ok ? "ok" : "not ok", number, test->suite, test->name, skipped ? " # SKIP" : "");
    if (!ok && WIFSIGNALED(status))
        printf("# ended by signal %d, %s\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (!ok && WEXITSTATUS(status) != EXIT_FAILED)
        printf("# ended with exit status %d\n", WEXITSTATUS(status));
    return ok;
}

int main(void)
{
    int number = 0, bad = 0;

    printf("1..%d\n", count);
    for (struct plain_test *test = first; test; test = test->next) {
        inherit(test);
        if (!run(test, ++number))
            bad++;
    }
    return bad ? 1 : 0;
}
