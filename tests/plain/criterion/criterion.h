/* The part of Criterion's interface that the unit tests use, for a runner that forks and does nothing else.
 *
 * Criterion runs each test in a process that it starts and leaves with _exit: ThreadSanitizer and valgrind cannot follow it
 * there, and LeakSanitizer never gets to look. Builds with sanitizers therefore put this folder first on the include path and
 * link plain.c in Criterion's place. The tests are the same. */
#ifndef SOQ_TESTS_PLAIN_CRITERION_H
#define SOQ_TESTS_PLAIN_CRITERION_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plain_test {
    const char *suite, *name;
    void (*run)(void);
    /* The options of Test() that the runner knows. */
    const char *description;
    void (*init)(void);
    void (*fini)(void);
    double timeout; /* seconds; 0 = none */
    int signal;     /* the test has to end by it; 0 = has to return */
    int exit_code;  /* ... or with it */
    bool disabled;
    struct plain_test *next;
};

/* What holds for every test of a suite that does not say otherwise. */
struct plain_suite {
    const char *name;
    const char *description;
    void (*init)(void);
    void (*fini)(void);
    double timeout;
    bool disabled;
    struct plain_suite *next;
};

void plain_register_suite(struct plain_suite *suite);
void plain_register(struct plain_test *test);
/* Ends the test at once if `now`; the message is fmt with its arguments, after the place and the condition. */
void plain_fail(bool now, const char *file, int line, const char *condition, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void plain_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#define Test(suite_, name_, ...)                                                                                               \
    static void suite_##_##name_##_run(void);                                                                                  \
    static struct plain_test suite_##_##name_##_test = {                                                                       \
        .suite = #suite_, .name = #name_, .run = suite_##_##name_##_run, ##__VA_ARGS__};                                       \
    __attribute__((constructor)) static void suite_##_##name_##_register(void)                                                 \
    {                                                                                                                          \
        plain_register(&suite_##_##name_##_test);                                                                              \
    }                                                                                                                          \
    static void suite_##_##name_##_run(void)

#define TestSuite(suite_, ...)                                                                                                 \
    static struct plain_suite suite_##_suite = {.name = #suite_, ##__VA_ARGS__};                                               \
    __attribute__((constructor)) static void suite_##_suite_register(void)                                                     \
    {                                                                                                                          \
        plain_register_suite(&suite_##_suite);                                                                                 \
    }                                                                                                                          \
    struct plain_suite

#define PLAIN_CHECK(now, ok, text, ...)                                                                                        \
    do {                                                                                                                       \
        if (!(ok))                                                                                                             \
            plain_fail(now, __FILE__, __LINE__, text, " " __VA_ARGS__);                                                        \
    } while (0)
#define PLAIN_STR(a, op, b) (strcmp(a, b) op 0)

#define cr_skip_test(...) plain_skip(" " __VA_ARGS__)
#define cr_skip(...) plain_skip(" " __VA_ARGS__)
#define cr_fail(...) plain_fail(false, __FILE__, __LINE__, "fail", " " __VA_ARGS__)
#define cr_fatal(...) plain_fail(true, __FILE__, __LINE__, "fail", " " __VA_ARGS__)
#define cr_assert_fail(...) cr_fatal(__VA_ARGS__)
#define cr_expect_fail(...) cr_fail(__VA_ARGS__)
#define cr_log_info(...) ((void)0)

#define cr_assert(c, ...) PLAIN_CHECK(true, c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) PLAIN_CHECK(true, !(c), "not " #c, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) PLAIN_CHECK(true, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) PLAIN_CHECK(true, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) PLAIN_CHECK(true, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) PLAIN_CHECK(true, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) PLAIN_CHECK(true, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) PLAIN_CHECK(true, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(p, ...) PLAIN_CHECK(true, (p) == NULL, #p " is null", __VA_ARGS__)
#define cr_assert_not_null(p, ...) PLAIN_CHECK(true, (p) != NULL, #p " is not null", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) PLAIN_CHECK(true, PLAIN_STR(a, ==, b), #a " eq " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) PLAIN_CHECK(true, PLAIN_STR(a, !=, b), #a " ne " #b, __VA_ARGS__)
#define cr_assert_str_empty(s, ...) PLAIN_CHECK(true, *(s) == '\0', #s " is empty", __VA_ARGS__)
#define cr_assert_str_not_empty(s, ...) PLAIN_CHECK(true, *(s) != '\0', #s " is not empty", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...) PLAIN_CHECK(true, memcmp(a, b, n) == 0, #a " equals " #b, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, n, ...) PLAIN_CHECK(true, memcmp(a, b, n) != 0, #a " differs from " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...) PLAIN_CHECK(true, fabs((a) - (b)) <= (e), #a " ~ " #b, __VA_ARGS__)
#define cr_assert_float_neq(a, b, e, ...) PLAIN_CHECK(true, fabs((a) - (b)) > (e), #a " !~ " #b, __VA_ARGS__)

#define cr_expect(c, ...) PLAIN_CHECK(false, c, #c, __VA_ARGS__)
#define cr_expect_not(c, ...) PLAIN_CHECK(false, !(c), "not " #c, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) PLAIN_CHECK(false, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) PLAIN_CHECK(false, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) PLAIN_CHECK(false, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) PLAIN_CHECK(false, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) PLAIN_CHECK(false, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) PLAIN_CHECK(false, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_null(p, ...) PLAIN_CHECK(false, (p) == NULL, #p " is null", __VA_ARGS__)
#define cr_expect_not_null(p, ...) PLAIN_CHECK(false, (p) != NULL, #p " is not null", __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) PLAIN_CHECK(false, PLAIN_STR(a, ==, b), #a " eq " #b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...) PLAIN_CHECK(false, PLAIN_STR(a, !=, b), #a " ne " #b, __VA_ARGS__)
#define cr_expect_str_empty(s, ...) PLAIN_CHECK(false, *(s) == '\0', #s " is empty", __VA_ARGS__)
#define cr_expect_str_not_empty(s, ...) PLAIN_CHECK(false, *(s) != '\0', #s " is not empty", __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...) PLAIN_CHECK(false, memcmp(a, b, n) == 0, #a " equals " #b, __VA_ARGS__)
#define cr_expect_arr_neq(a, b, n, ...) PLAIN_CHECK(false, memcmp(a, b, n) != 0, #a " differs from " #b, __VA_ARGS__)
#define cr_expect_float_eq(a, b, e, ...) PLAIN_CHECK(false, fabs((a) - (b)) <= (e), #a " ~ " #b, __VA_ARGS__)
#define cr_expect_float_neq(a, b, e, ...) PLAIN_CHECK(false, fabs((a) - (b)) > (e), #a " !~ " #b, __VA_ARGS__)

#endif
