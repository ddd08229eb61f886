/* Literals: escapes of strings, decimal numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_ast.h"
#include "text/jinja_string.h"

#define NUMBER_MAX 400 /* characters */

static size_t count_digits(const char *p, size_t n, size_t at)
{
    size_t end = at;

    while (end < n && p[end] >= '0' && p[end] <= '9')
        end++;
    return end - at;
}

/* "12.5e3" is read as "125e2", so that the locale's decimal point plays no part. */
bool soq__jparse_double(const char *p, size_t n, double *out)
{
    char text[NUMBER_MAX + 40];
    size_t sign = n > 0 && (p[0] == '-' || p[0] == '+'), whole, fraction = 0, at;
    long exponent = 0;

    if (n > NUMBER_MAX)
        return false;
    whole = count_digits(p, n, sign);
    at = sign + whole;
    memcpy(text, p, at);
    if (at < n && p[at] == '.') {
        fraction = count_digits(p, n, at + 1);
        memcpy(text + at, p + at + 1, fraction);
        at += 1 + fraction;
    }
    if (whole + fraction == 0)
        return false;
    if (at < n && (p[at] == 'e' || p[at] == 'E')) {
        size_t minus = at + 1 < n && (p[at + 1] == '-' || p[at + 1] == '+'), digits = count_digits(p, n, at + 1 + minus);

        if (digits == 0)
            return false;
        for (size_t i = at + 1 + minus; i < at + 1 + minus + digits && exponent < 100000; i++)
            exponent = exponent * 10 + (p[i] - '0');
        exponent = p[at + 1] == '-' ? -exponent : exponent;
        at += 1 + minus + digits;
    }
    snprintf(text + sign + whole + fraction, 40, "e%ld", exponent - (long)fraction);
    *out = strtod(text, NULL);
    return at == n;
}

static int fail(struct jmem *m, uint32_t line, const char *what)
{
    return soq__jfail(m, SOQ_EINVAL, "template line %u: %s", line, what);
}

/* Reads up to max digits of the base; returns how many. */
static size_t read_digits(const char *p, size_t n, size_t max, unsigned base, uint32_t *cp_out)
{
    uint32_t cp = 0;
    size_t i;

    for (i = 0; i < n && i < max; i++) {
        char c = p[i];
        unsigned digit = c >= '0' && c <= '9'                     ? (unsigned)(c - '0')
                         : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (unsigned)((c | 0x20) - 'a') + 10
                                                                  : 99;

        if (digit >= base)
            break;
        cp = cp * base + digit;
    }
    *cp_out = cp;
    return i;
}

/* \xhh, \uhhhh, \Uhhhhhhhh or \ooo at p[0], which is the character behind the backslash. Returns the bytes used. */
static size_t numeric_escape(const char *p, size_t n, uint32_t *cp_out)
{
    size_t want = p[0] == 'x' ? 2 : p[0] == 'u' ? 4 : 8;

    if (p[0] >= '0' && p[0] <= '7')
        return read_digits(p, n, 3, 8, cp_out);
    if (read_digits(p + 1, n - 1, want, 16, cp_out) < want || *cp_out > 0x10FFFF || (*cp_out >= 0xD800 && *cp_out < 0xE000))
        return 0;
    return want + 1;
}

/* A backslash before a non-ASCII character: Python turns the character into an escape first, which the backslash then undoes.
 */
static size_t undone_escape(struct jbuild *b, const char *p, size_t n)
{
    uint32_t cp = 0;
    size_t size = soq__utf8_decode(p, n, &cp);

    if (size == 0)
        soq__jb_add(b, p, 1, false);
    else if (cp <= 0xFF)
        soq__jb_printf(b, "\\x%02x", cp);
    else
        soq__jb_printf(b, cp <= 0xFFFF ? "\\u%04x" : "\\U%08x", cp);
    return size ? size : 1;
}

/* Decodes the escape whose backslash stands before p[0]; returns the bytes used, 0 after a failure. */
static size_t unescape_one(struct jbuild *b, uint32_t line, const char *p, size_t n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = p[0] ? strchr(from, p[0]) : NULL;
    uint32_t cp;
    size_t used;

    if (simple) {
        soq__jb_add(b, &to[simple - from], 1, false);
        return 1;
    }
    if (p[0] == '\n')
        return 1;
    if (p[0] == 'N') {
        fail(b->m, line, "\\N{...} escapes are not supported; use \\u or the character itself");
        return 0;
    }
    if ((p[0] & 0x80) != 0)
        return undone_escape(b, p, n);
    if (p[0] == '\0' || !strchr("xuU01234567", p[0])) {
        soq__jb_add(b, "\\", 1, false);
        soq__jb_add(b, p, 1, false);
        return 1;
    }
    used = numeric_escape(p, n, &cp);
    if (used == 0)
        fail(b->m, line, "malformed \\x, \\u or \\U escape in a string");
    else
        soq__jb_cp(b, cp, false);
    return used;
}

int soq__jinja_unescape(struct jmem *m, uint32_t line, const char *p, size_t n, struct jstr *out)
{
    struct jbuild b = {.m = m};
    const struct jstr *s;

    if (!n || !memchr(p, '\\', n)) {
        *out = (struct jstr){.p = p, .n = n};
        return 0;
    }
    for (size_t i = 0; i < n && !m->rc;) {
        const char *slash = memchr(p + i, '\\', n - i);
        size_t plain = slash ? (size_t)(slash - p) - i : n - i;

        soq__jb_add(&b, p + i, plain, false);
        i += plain;
        if (i + 1 >= n)
            break;
        i += 1 + unescape_one(&b, line, p + i + 1, n - i - 1);
    }
    s = soq__jb_done(&b);
    if (s)
        *out = *s;
    return m->rc;
}
