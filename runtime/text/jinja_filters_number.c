/* Filters that make numbers: int, float, abs, round, with Python's parsing and rounding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "text/jinja_run.h"
#include "text/jinja_unicode.h"

#define NUMBER_MAX 400 /* characters of a number in a string */

/* The number's characters without white space around and underscores between digits; -1 if it cannot be one. */
static int clean(struct jrun *r, const struct jstr *s, char out[NUMBER_MAX + 1])
{
    struct jvalue stripped;
    int n = 0;

    if (soq__jtext_strip(r, s, (struct jvalue){.kind = J_OMITTED}, true, true, &stripped) || stripped.s->n == 0 ||
        stripped.s->n > NUMBER_MAX)
        return -1;
    for (size_t i = 0; i < stripped.s->n; i++) {
        char c = stripped.s->p[i];
        bool between = c == '_' && i > 0 && i + 1 < stripped.s->n && stripped.s->p[i - 1] != '_';

        if (c == '\0' || (c == '_' && !between))
            return -1;
        if (c != '_')
            out[n++] = c;
    }
    out[n] = '\0';
    return n;
}

/* float(s); false if s is no number. */
static bool text_to_float(struct jrun *r, const struct jstr *s, double *out)
{
    static const struct {
        const char *name;
        double value;
    } words[] = {{"inf", INFINITY}, {"infinity", INFINITY}, {"nan", NAN}};
    char text[NUMBER_MAX + 1];
    int n = clean(r, s, text);
    const char *word = n > 0 && (text[0] == '-' || text[0] == '+') ? text + 1 : text;

    if (n < 0)
        return false;
    for (size_t i = 0; i < JTABLE_COUNT(words); i++) {
        if (strcasecmp(word, words[i].name) == 0) {
            *out = text[0] == '-' ? -words[i].value : words[i].value;
            return true;
        }
    }
    return soq__jparse_double(text, (size_t)n, out);
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

/* Skips "0x", "0o" or "0b" where the base allows it; base 0 takes the prefix's. */
static const char *skip_prefix(const char *p, int64_t *base)
{
    static const struct {
        char letter;
        int64_t base;
    } prefixes[] = {{'x', 16}, {'o', 8}, {'b', 2}};

    for (size_t i = 0; p[0] == '0' && i < JTABLE_COUNT(prefixes); i++) {
        if ((p[1] | 0x20) == prefixes[i].letter && (*base == 0 || *base == prefixes[i].base)) {
            *base = prefixes[i].base;
            return p + 2;
        }
    }
    return p;
}

enum parsed { PARSED, NOT_A_NUMBER, TOO_LARGE };

/* int(s, base) */
static enum parsed text_to_int(struct jrun *r, const struct jstr *s, int64_t base, int64_t *out)
{
    char text[NUMBER_MAX + 1];
    int n = clean(r, s, text);
    bool negative = n > 0 && text[0] == '-', prefixed;
    const char *p = n > 0 && (negative || text[0] == '+') ? text + 1 : text, *digits;
    int64_t value = 0;

    if (n <= 0)
        return NOT_A_NUMBER;
    digits = skip_prefix(p, &base);
    prefixed = digits != p;
    if (base == 0 && digits[0] == '0' && strspn(digits, "0") != strlen(digits))
        return NOT_A_NUMBER;
    base = base ? base : 10;
    if (!*digits || (prefixed && digit_of(*digits) >= base))
        return NOT_A_NUMBER;
    for (p = digits; *p; p++)
        if (digit_of(*p) >= base)
            return NOT_A_NUMBER;
    for (p = digits; *p; p++)
        if (__builtin_mul_overflow(value, base, &value) || __builtin_sub_overflow(value, (int64_t)digit_of(*p), &value))
            return TOO_LARGE;
    if (!negative && value == INT64_MIN)
        return TOO_LARGE;
    *out = negative ? value : -value;
    return PARSED;
}

static int too_large(struct jrun *r)
{
    return soq__jfail(&r->mem, SOQ_ELIMIT, "this number is beyond 64 bits");
}

static int float_to_int(struct jrun *r, double f, struct jvalue *out)
{
    if (!(f > -9223372036854775808.0 && f < 9223372036854775808.0))
        return too_large(r);
    *out = jv_int((int64_t)f);
    return 0;
}

static int to_int(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    int64_t base = c->arg[1].kind == J_OMITTED ? 10 : jv_is_integral(c->arg[1]) ? jv_integer(c->arg[1]) : -1, value = 0;
    double f;

    *out = c->arg[0].kind == J_OMITTED ? jv_int(0) : c->arg[0];
    if (jv_is_integral(c->self)) {
        *out = jv_int(jv_integer(c->self));
        return 0;
    }
    if (c->self.kind == J_FLOAT)
        return isnan(c->self.f) ? 0 : float_to_int(r, c->self.f, out);
    if (c->self.kind == J_UNDEFINED)
        return soq__jfail_type(r, c->self, "made an integer");
    if (c->self.kind != J_STRING)
        return 0;
    if (base == 0 || (base >= 2 && base <= 36)) {
        switch (text_to_int(r, c->self.s, base, &value)) {
        case PARSED:
            *out = jv_int(value);
            return r->mem.rc;
        case TOO_LARGE:
            return too_large(r);
        default:
            break;
        }
    }
    return text_to_float(r, c->self.s, &f) && !isnan(f) ? float_to_int(r, f, out) : r->mem.rc;
}

static int to_float(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    double f;

    *out = c->arg[0].kind == J_OMITTED ? jv_float(0) : c->arg[0];
    if (c->self.kind == J_UNDEFINED)
        return soq__jfail_type(r, c->self, "made a float");
    if (jv_is_number(c->self))
        *out = jv_float(jv_double(c->self));
    else if (c->self.kind == J_STRING && text_to_float(r, c->self.s, &f))
        *out = jv_float(f);
    return r->mem.rc;
}

static int absolute(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    if (c->self.kind == J_FLOAT) {
        *out = jv_float(fabs(c->self.f));
        return 0;
    }
    if (!jv_is_integral(c->self))
        return soq__jfail_type(r, c->self, "given to abs");
    return soq__jnegate(r, c->self, jv_integer(c->self) < 0, out);
}

/* ---- round ---- */

/* Python rounds the exact decimal expansion, half to even: what printf does. */
static double round_float(double f, int64_t digits)
{
    char text[700];
    int64_t significant;

    if (!isfinite(f) || digits > 330)
        return f;
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        return strtod(text, NULL);
    }
    snprintf(text, sizeof text, "%.25e", f);
    significant = strtol(strchr(text, 'e') + 1, NULL, 10) + 1 + digits; /* before the place that is rounded to */
    if (significant < 0 || f == 0)
        return copysign(0.0, f);
    if (significant == 0)
        return copysign(fabs(f) > 5 * pow(10, (double)(-digits - 1)) ? pow(10, (double)-digits) : 0.0, f);
    snprintf(text, sizeof text, "%.*e", (int)significant - 1, f);
    return strtod(text, NULL);
}

/* round(i, -digits): to a multiple of a power of ten, half to even. */
static int round_int(struct jrun *r, int64_t i, int64_t digits, struct jvalue *out)
{
    int64_t scale = 1, rest, half;

    *out = jv_int(i);
    if (digits >= 0)
        return 0;
    for (; digits < 0; digits++) {
        if (__builtin_mul_overflow(scale, 10, &scale)) {
            *out = jv_int(0);
            return 0;
        }
    }
    rest = i % scale;
    half = scale / 2;
    i -= rest;
    if ((rest > half || (rest == half && (i / scale) % 2 != 0)) && __builtin_add_overflow(i, scale, &i))
        return too_large(r);
    if ((rest < -half || (rest == -half && (i / scale) % 2 != 0)) && __builtin_sub_overflow(i, scale, &i))
        return too_large(r);
    *out = jv_int(i);
    return 0;
}

static int round_number(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    static const struct jstr common = {.p = "common", .n = 6};
    const struct jstr *method;
    struct jvalue scale, scaled;
    int64_t digits;
    double f;

    if (soq__jarg_int(r, c, 0, 0, &digits) || soq__jarg_str(r, c, 1, &method))
        return r->mem.rc;
    method = method ? method : &common;
    if (!jstr_same(method, &common) && !jstr_is(method, "ceil", 4) && !jstr_is(method, "floor", 5))
        return soq__jfail(&r->mem, SOQ_EINVAL, "round(): 'method' must be common, ceil or floor");
    if (!jv_is_number(c->self))
        return soq__jfail_type(r, c->self, "rounded");
    if (jstr_same(method, &common)) {
        if (c->self.kind != J_FLOAT)
            return round_int(r, jv_integer(c->self), digits, out);
        *out = jv_float(round_float(c->self.f, digits));
        return 0;
    }
    if (soq__jbinary(r, JOP_POW, jv_int(10), jv_int(digits), &scale) || soq__jbinary(r, JOP_MUL, c->self, scale, &scaled))
        return r->mem.rc;
    f = jv_double(scaled);
    if (scaled.kind == J_FLOAT && float_to_int(r, method->n == 4 ? ceil(f) : floor(f), &scaled))
        return r->mem.rc;
    return soq__jbinary(r, JOP_DIV, scaled, scale, out);
}

static const struct jbuiltin table[] = {
    {.name = "int", .fn = to_int, .params = {"default", "base"}},
    {.name = "float", .fn = to_float, .params = {"default"}},
    {.name = "abs", .fn = absolute},
    {.name = "round", .fn = round_number, .params = {"precision", "method"}},
};

const struct jbuiltin_table soq__jfilters_number = {.what = "filter", .items = table, .count = JTABLE_COUNT(table)};
