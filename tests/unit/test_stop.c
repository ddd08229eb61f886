/* Stop strings in a stream of pieces: what is shown, what is held back, and that the cutting into pieces makes no difference.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/stop.h"

/* Pieces are separated by '|'. Returns what is shown, "!" behind it if a stop string was found; what is flushed stands in [].
 */
static const char *run(const char *const *strings, const char *pieces)
{
    static char shown[512];
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_buf out = SOQ_BUF_INIT, rest = SOQ_BUF_INIT;
    struct soq__stop stop;
    bool matched = false;

    cr_assert_eq(soq__stop_init(&stop, strings, &err), 0, "%s", err.text);
    for (const char *p = pieces; !matched; p++) {
        size_t n = strcspn(p, "|");

        cr_assert_eq(soq__stop_push(&stop, p, n, &out, &matched, &err), 0, "%s", err.text);
        p += n;
        if (!*p)
            break;
    }
    if (!matched)
        cr_assert_eq(soq__stop_flush(&stop, &rest, &err), 0, "%s", err.text);
    snprintf(shown, sizeof shown, "%s%s%s%s%s", soq__buf_str(&out), matched ? "!" : "", rest.len ? "[" : "",
             soq__buf_str(&rest), rest.len ? "]" : "");
    soq__buf_done(&out);
    soq__buf_done(&rest);
    soq__stop_done(&stop);
    return shown;
}

Test(stop, table)
{
    static const struct {
        const char *strings[4];
        const char *pieces, *shown;
    } cases[] = {
        {{NULL}, "all|of|it", "allofit"},
        {{"END"}, "no stop here", "no stop here"},
        {{"END"}, "text END more", "text !"},
        {{"END"}, "text E|N|D more", "text !"},
        {{"END"}, "text E|N|", "text [EN]"}, /* held back to the last, then it was text after all */
        {{"END"}, "E|ENOUGH", "EENOUGH"},    /* released as soon as it cannot become one */
        {{"END"}, "EEN|D", "E!"},            /* the held end shrinks to what can still begin one */
        {{"END"}, "END|never", "!"},
        {{"aab"}, "aaa|aab", "aaa!"},
        {{"abab"}, "aba|bab", "!"},
        {{"abc", "bcd"}, "xab|cd", "x!"},    /* overlapping: the first to be complete */
        {{"abcde", "bc"}, "xabc|de", "xa!"}, /* even where a longer one began earlier */
        {{"abcde", "bc"}, "xabcde", "xa!"},  /* and in one piece */
        {{"ab", "abcd"}, "xabcd", "x!"},     /* a prefix of the other is always first */
        {{"bc", "abc"}, "xabc", "x!"},       /* together: the longer one */
        {{"abc", "bc"}, "xab|c", "x!"},
        {{"\n\n", "User:"}, "a\nUser|:", "a\n!"},
        {{"\xc3\xa4"}, "a\xc3|\xa4z", "a!"}, /* in mid code point */
        {{"x", "x", "x"}, "aax", "aa!"},
        {{"END"}, "||E||ND|", "!"}, /* empty pieces */
    };
    int64_t live = soq__alloc_live();

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *shown = run(cases[i].strings, cases[i].pieces);

        cr_expect_str_eq(shown, cases[i].shown, "case %zu: \"%s\" shows \"%s\", expected \"%s\"", i, cases[i].pieces, shown,
                         cases[i].shown);
    }
    cr_expect_eq(soq__alloc_live(), live);
}

Test(stop, refusals)
{
    static const char *const bad[][3] = {{""}, {"fine", ""}, {"\xff"}, {"fine", "\xc3"}};
    int64_t live = soq__alloc_live();

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq__stop stop;

        cr_expect_eq(soq__stop_init(&stop, bad[i], &err), -SOQ_EINVAL);
        cr_expect(strstr(err.text, bad[i][1] ? "stop string 2" : "stop string 1"), "%s", err.text);
        soq__stop_done(&stop); /* harmless */
    }
    cr_expect_eq(soq__alloc_live(), live);
}

/* ---- Against brute force: the shortest beginning of the text that ends with a stop string */

static uint32_t state = 1;

static uint32_t roll(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

/* How much of text is shown; *matched_out: a stop string ends in it. */
static size_t brute(char strings[3][6], size_t n_strings, const char *text, size_t len, bool *matched_out)
{
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;

        for (size_t i = 0; i < n_strings; i++) {
            size_t n = strlen(strings[i]);

            if (n <= end && n > longest && memcmp(text + end - n, strings[i], n) == 0)
                longest = n;
        }
        if (longest) {
            *matched_out = true;
            return end - longest;
        }
    }
    *matched_out = false;
    return len;
}

static void random_text(char *out, size_t n, uint32_t letters)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (char)('a' + roll(letters));
    out[n] = '\0';
}

Test(stop, any_cut_of_any_text)
{
    for (uint32_t round = 0; round < 20000; round++) {
        char strings[3][6], text[32];
        const char *list[4] = {NULL};
        size_t n_strings = 1 + roll(3), len = roll(31), at = 0, want;
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq_buf out = SOQ_BUF_INIT;
        struct soq__stop stop;
        bool matched = false, want_match;

        for (size_t i = 0; i < n_strings; i++) {
            random_text(strings[i], 1 + roll(5), 2 + round % 2);
            list[i] = strings[i];
        }
        random_text(text, len, 2 + round % 2);
        want = brute(strings, n_strings, text, len, &want_match);
        cr_assert_eq(soq__stop_init(&stop, list, &err), 0, "%s", err.text);
        while (at < len && !matched) {
            size_t n = 1 + roll((uint32_t)(len - at));

            cr_assert_eq(soq__stop_push(&stop, text + at, n, &out, &matched, &err), 0, "%s", err.text);
            at += n;
            cr_assert_leq(out.len, want, "%s: \"%s\" has been shown, but %zu bytes are right", text, soq__buf_str(&out), want);
            if (!matched)
                cr_assert_geq(out.len + 4, at, "%s: \"%s\" of %zu bytes: too much is held back", text, soq__buf_str(&out), at);
        }
        if (!matched)
            cr_assert_eq(soq__stop_flush(&stop, &out, &err), 0, "%s", err.text);
        cr_assert_eq(matched, want_match, "%s: stop strings %s %s %s", text, list[0], list[1], list[2]);
        cr_assert(out.len == want && memcmp(soq__buf_str(&out), text, want) == 0,
                  "%s (%s, %s, %s): shows \"%s\", not %zu bytes", text, list[0], list[1], list[2], soq__buf_str(&out), want);
        soq__buf_done(&out);
        soq__stop_done(&stop);
    }
}
