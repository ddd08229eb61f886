/* Arithmetic with Python's results: floor division, true division, sequences that repeat and join. */
#include <math.h>
#include <string.h>

#include "text/jinja_run.h"

static const char *const symbols[] = {[JOP_ADD] = "+",       [JOP_SUB] = "-", [JOP_MUL] = "*", [JOP_DIV] = "/",
                                      [JOP_FLOORDIV] = "//", [JOP_MOD] = "%", [JOP_POW] = "**"};

static int overflow(struct jrun *r, enum jop op)
{
    return soq__jfail(&r->mem, SOQ_ELIMIT, "the result of %s is beyond 64 bits", symbols[op]);
}

static int by_zero(struct jrun *r)
{
    return soq__jfail(&r->mem, SOQ_EINVAL, "division by zero");
}

static int bad_types(struct jrun *r, enum jop op, struct jvalue a, struct jvalue b)
{
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        return soq__jfail_type(r, a.kind == J_UNDEFINED ? a : b, "calculated with");
    return soq__jfail(&r->mem, SOQ_EINVAL, "%s %s %s is not possible", soq__jtype_name(a), symbols[op], soq__jtype_name(b));
}

/* ---- numbers ---- */

static int int_pow(struct jrun *r, int64_t a, int64_t n, struct jvalue *out)
{
    int64_t result = 1;

    if (n < 0) {
        if (a == 0)
            return by_zero(r);
        *out = jv_float(pow((double)a, (double)n));
        return 0;
    }
    while (n > 0) {
        if ((n & 1) && __builtin_mul_overflow(result, a, &result))
            return overflow(r, JOP_POW);
        n >>= 1;
        if (n && __builtin_mul_overflow(a, a, &a))
            return overflow(r, JOP_POW);
    }
    *out = jv_int(result);
    return 0;
}

static int int_division(struct jrun *r, enum jop op, int64_t a, int64_t b, struct jvalue *out)
{
    int64_t q, rest;

    if (b == 0)
        return by_zero(r);
    if (op == JOP_DIV) {
        *out = jv_float((double)((long double)a / (long double)b));
        return 0;
    }
    if (b == -1) { /* INT64_MIN / -1 traps */
        if (op == JOP_FLOORDIV && a == INT64_MIN)
            return overflow(r, op);
        *out = jv_int(op == JOP_MOD ? 0 : -a);
        return 0;
    }
    q = a / b;
    rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        q--;
        rest += b;
    }
    *out = jv_int(op == JOP_MOD ? rest : q);
    return 0;
}

static int ints(struct jrun *r, enum jop op, int64_t a, int64_t b, struct jvalue *out)
{
    int64_t result;

    switch (op) {
    case JOP_POW:
        return int_pow(r, a, b, out);
    case JOP_DIV:
    case JOP_FLOORDIV:
    case JOP_MOD:
        return int_division(r, op, a, b, out);
    default:
        break;
    }
    if (op == JOP_ADD   ? __builtin_add_overflow(a, b, &result)
        : op == JOP_SUB ? __builtin_sub_overflow(a, b, &result)
                        : __builtin_mul_overflow(a, b, &result))
        return overflow(r, op);
    *out = jv_int(result);
    return 0;
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);

    if (m != 0)
        return (m < 0) != (b < 0) ? m + b : m;
    return copysign(0.0, b);
}

/* As Python does it: from the exact remainder, then to the nearest whole number. */
static double float_floordiv(double a, double b)
{
    double m = fmod(a, b), q = (a - m) / b, whole;

    if (m != 0 && (m < 0) != (b < 0))
        q -= 1;
    if (q == 0)
        return copysign(0.0, a / b);
    whole = floor(q);
    return q - whole > 0.5 ? whole + 1 : whole;
}

static int float_pow(struct jrun *r, double a, double b, struct jvalue *out)
{
    double result = pow(a, b);

    if (a == 0 && b < 0)
        return by_zero(r);
    if (isfinite(a) && a < 0 && isfinite(b) && b != floor(b))
        return soq__jfail(&r->mem, SOQ_EINVAL, "a negative number to a fractional power is not a real number");
    if (isinf(result) && isfinite(a) && isfinite(b))
        return soq__jfail(&r->mem, SOQ_ELIMIT, "the result of ** is too large");
    *out = jv_float(result);
    return 0;
}

static int floats(struct jrun *r, enum jop op, double a, double b, struct jvalue *out)
{
    double result;

    if (b == 0 && (op == JOP_DIV || op == JOP_FLOORDIV || op == JOP_MOD))
        return by_zero(r);
    switch (op) {
    case JOP_ADD:
        result = a + b;
        break;
    case JOP_SUB:
        result = a - b;
        break;
    case JOP_MUL:
        result = a * b;
        break;
    case JOP_DIV:
        result = a / b;
        break;
    case JOP_MOD:
        result = float_mod(a, b);
        break;
    case JOP_FLOORDIV:
        result = float_floordiv(a, b);
        break;
    default:
        return float_pow(r, a, b, out);
    }
    *out = jv_float(result);
    return 0;
}

/* ---- strings and sequences ---- */

int soq__jescape(struct jrun *r, const struct jstr *s, const struct jstr **out)
{
    static const char special[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct jbuild b = {.m = &r->mem, .markup = true};
    struct jiter it = {.s = s};
    struct jchar c;

    while (soq__jiter_next(&it, &c)) {
        const char *found = c.cp && c.cp < 0x80 ? strchr(special, (int)c.cp) : NULL;

        if (s->markup || !found)
            soq__jb_slice(&b, s, c.at, c.at + c.size);
        else
            soq__jb_add(&b, entities[found - special], strlen(entities[found - special]), c.untrusted);
    }
    *out = soq__jb_done(&b);
    return r->mem.rc;
}

static int join_strings(struct jrun *r, const struct jstr *a, const struct jstr *b, struct jvalue *out)
{
    struct jbuild text = {.m = &r->mem, .markup = a->markup || b->markup};

    if (a->markup != b->markup && soq__jescape(r, a->markup ? b : a, a->markup ? &b : &a))
        return r->mem.rc;
    soq__jb_str(&text, a);
    soq__jb_str(&text, b);
    *out = jv_str(soq__jb_done(&text));
    return r->mem.rc;
}

static int join_seqs(struct jrun *r, struct jvalue a, struct jvalue b, struct jvalue *out)
{
    struct jseq *s = soq__jseq_new(&r->mem, a.seq->count + b.seq->count);

    if (!s || !soq__jstep(r, a.seq->count + b.seq->count))
        return r->mem.rc;
    for (size_t i = 0; i < a.seq->count; i++)
        s->items[s->count++] = a.seq->items[i];
    for (size_t i = 0; i < b.seq->count; i++)
        s->items[s->count++] = b.seq->items[i];
    *out = jv_seq(a.kind, s);
    return 0;
}

static int repeat_string(struct jrun *r, const struct jstr *s, uint64_t times, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max};

    for (uint64_t i = 0; i < times && s->n && soq__jstep(r, 1); i++)
        soq__jb_str(&b, s);
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

static int repeat(struct jrun *r, struct jvalue what, int64_t times, struct jvalue *out)
{
    uint64_t n = times < 0 ? 0 : (uint64_t)times;
    struct jseq *s;

    if (what.kind == J_STRING)
        return repeat_string(r, what.s, n, out);
    s = soq__jseq_new(&r->mem, 0);
    for (uint64_t i = 0; s && i < n && what.seq->count; i++)
        for (size_t k = 0; k < what.seq->count; k++)
            if (!soq__jstep(r, 1) || !soq__jseq_add(&r->mem, s, what.seq->items[k]))
                return r->mem.rc;
    *out = jv_seq(what.kind, s);
    return r->mem.rc;
}

static bool repeatable(struct jvalue v)
{
    return v.kind == J_STRING || v.kind == J_LIST || v.kind == J_TUPLE;
}

int soq__jbinary(struct jrun *r, enum jop op, struct jvalue a, struct jvalue b, struct jvalue *out)
{
    if (jv_is_integral(a) && jv_is_integral(b))
        return ints(r, op, jv_integer(a), jv_integer(b), out);
    if (jv_is_number(a) && jv_is_number(b))
        return floats(r, op, jv_double(a), jv_double(b), out);
    if (op == JOP_MOD && a.kind == J_STRING)
        return soq__jformat_percent(r, a.s, b, out);
    if (op == JOP_ADD && a.kind == J_STRING && b.kind == J_STRING)
        return join_strings(r, a.s, b.s, out);
    if (op == JOP_ADD && a.kind == b.kind && repeatable(a))
        return join_seqs(r, a, b, out);
    if (op == JOP_MUL && repeatable(a) && jv_is_integral(b))
        return repeat(r, a, jv_integer(b), out);
    if (op == JOP_MUL && repeatable(b) && jv_is_integral(a))
        return repeat(r, b, jv_integer(a), out);
    return bad_types(r, op, a, b);
}

int soq__jnegate(struct jrun *r, struct jvalue a, bool minus, struct jvalue *out)
{
    if (a.kind == J_FLOAT) {
        *out = jv_float(minus ? -a.f : a.f);
        return 0;
    }
    if (!jv_is_integral(a))
        return soq__jfail_type(r, a, minus ? "negated" : "given a sign");
    if (minus && jv_integer(a) == INT64_MIN)
        return overflow(r, JOP_SUB);
    *out = jv_int(minus ? -jv_integer(a) : jv_integer(a));
    return 0;
}
