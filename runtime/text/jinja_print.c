/* Values as text: str() and repr() with Python's spelling. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_run.h"
#include "text/jinja_unicode.h"

/* ---- numbers ---- */

/* The shortest decimal digits that read back as f, and the decimal exponent of the first. Returns their number. */
static int shortest_digits(double f, char digits[20], int *exponent)
{
    char text[40];
    int n = 0, precision = 0;

    do
        snprintf(text, sizeof text, "%.*e", precision, f);
    while (strtod(text, NULL) != f && ++precision < 17);
    for (const char *p = text; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && n < 19)
            digits[n++] = *p;
    digits[n] = '\0';
    *exponent = atoi(strchr(text, 'e') + 1);
    return n;
}

void soq__jfloat_repr(struct jbuild *b, double f)
{
    char digits[20];
    int n, exponent;

    if (!isfinite(f)) {
        soq__jb_puts(b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    n = shortest_digits(fabs(f), digits, &exponent);
    if (signbit(f))
        soq__jb_puts(b, "-");
    if (exponent < -4 || exponent >= 16) {
        soq__jb_printf(b, n > 1 ? "%c.%se%+03d" : "%c%se%+03d", digits[0], digits + 1, exponent);
    } else if (exponent < 0) {
        soq__jb_printf(b, "0.%.*s%s", -exponent - 1, "000", digits);
    } else if (n <= exponent + 1) {
        soq__jb_puts(b, digits);
        soq__jb_repeat(b, '0', (size_t)(exponent + 1 - n), false);
        soq__jb_puts(b, ".0");
    } else {
        soq__jb_printf(b, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    }
}

/* ---- repr ---- */

static void repr_char(struct jbuild *b, const struct jstr *s, const struct jchar *c, char quote)
{
    static const char escapes[] = "\n\r\t\\", letters[] = "nrt\\";
    const char *escape = c->cp && c->cp < 0x80 ? strchr(escapes, (int)c->cp) : NULL;
    char text[16];

    if (c->cp == (unsigned char)quote)
        snprintf(text, sizeof text, "\\%c", quote);
    else if (escape)
        snprintf(text, sizeof text, "\\%c", letters[escape - escapes]);
    else if (c->cp == JCHAR_BAD)
        snprintf(text, sizeof text, "\\x%02x", (unsigned char)s->p[c->at]);
    else if (!soq__ju_printable(c->cp))
        snprintf(text, sizeof text, c->cp <= 0xFF ? "\\x%02x" : c->cp <= 0xFFFF ? "\\u%04x" : "\\U%08x", c->cp);
    else {
        soq__jb_slice(b, s, c->at, c->at + c->size);
        return;
    }
    soq__jb_add(b, text, strlen(text), c->untrusted);
}

static void repr_string(struct jbuild *b, const struct jstr *s)
{
    bool use_double = s->n && memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n);
    char quote = use_double ? '"' : '\'';
    struct jiter it = {.s = s};
    struct jchar c;

    soq__jb_add(b, &quote, 1, false);
    while (soq__jiter_next(&it, &c))
        repr_char(b, s, &c, quote);
    soq__jb_add(b, &quote, 1, false);
}

static void repr_seq(struct jrun *r, struct jbuild *b, const struct jseq *s, const char *open, const char *close)
{
    soq__jb_puts(b, open);
    for (size_t i = 0; i < s->count && !r->mem.rc; i++) {
        if (i)
            soq__jb_puts(b, ", ");
        soq__jrepr(r, b, s->items[i]);
    }
    soq__jb_puts(b, close);
}

static void repr_dict(struct jrun *r, struct jbuild *b, const struct jdict *d)
{
    soq__jb_puts(b, "{");
    for (size_t i = 0; i < d->count && !r->mem.rc; i++) {
        if (i)
            soq__jb_puts(b, ", ");
        soq__jrepr(r, b, d->pairs[i].key);
        soq__jb_puts(b, ": ");
        soq__jrepr(r, b, d->pairs[i].value);
    }
    soq__jb_puts(b, "}");
}

static void repr_range(struct jbuild *b, const struct jrange *range)
{
    soq__jb_printf(b, "range(%lld, %lld", (long long)range->start, (long long)range->stop);
    if (range->step != 1)
        soq__jb_printf(b, ", %lld", (long long)range->step);
    soq__jb_puts(b, ")");
}

static void repr_object(struct jrun *r, struct jbuild *b, struct jvalue v)
{
    bool has;

    switch (v.kind) {
    case J_NAMESPACE:
        soq__jb_puts(b, "<Namespace ");
        repr_dict(r, b, v.dict);
        soq__jb_puts(b, ">");
        break;
    case J_LOOP:
        if (!soq__jloop_pull(r, v.loop, SIZE_MAX, &has))
            soq__jb_printf(b, "<LoopContext %zu/%zu>", v.loop->index + 1, v.loop->items->count);
        break;
    case J_MACRO:
        soq__jb_puts(b, "<Macro ");
        if (v.macro->node->macro.name)
            repr_string(b, v.macro->node->macro.name);
        else
            soq__jb_puts(b, "anonymous");
        soq__jb_puts(b, ">");
        break;
    default:
        soq__jb_printf(b, "<%s object>", soq__jtype_name(v));
        break;
    }
}

static void repr_nested(struct jrun *r, struct jbuild *b, struct jvalue v)
{
    switch (v.kind) {
    case J_LIST:
        repr_seq(r, b, v.seq, "[", "]");
        break;
    case J_TUPLE:
        repr_seq(r, b, v.seq, "(", v.seq->count == 1 ? ",)" : ")");
        break;
    case J_VIEW:
        soq__jb_puts(b, v.seq->type);
        repr_seq(r, b, v.seq, "([", "])");
        break;
    case J_DICT:
        repr_dict(r, b, v.dict);
        break;
    default:
        repr_object(r, b, v);
        break;
    }
}

void soq__jrepr(struct jrun *r, struct jbuild *b, struct jvalue v)
{
    if (!soq__jstep(r, 1) || !soq__jenter(r))
        return;
    switch (v.kind) {
    case J_OMITTED:
    case J_UNDEFINED:
        soq__jb_puts(b, "Undefined");
        break;
    case J_NONE:
        soq__jb_puts(b, "None");
        break;
    case J_BOOL:
        soq__jb_puts(b, v.b ? "True" : "False");
        break;
    case J_INT:
        soq__jb_printf(b, "%lld", (long long)v.i);
        break;
    case J_FLOAT:
        soq__jfloat_repr(b, v.f);
        break;
    case J_STRING:
        soq__jb_puts(b, v.s->markup ? "Markup(" : "");
        repr_string(b, v.s);
        soq__jb_puts(b, v.s->markup ? ")" : "");
        break;
    case J_RANGE:
        repr_range(b, v.range);
        break;
    default:
        repr_nested(r, b, v);
        break;
    }
    soq__jleave(r);
}

void soq__jprint(struct jrun *r, struct jbuild *b, struct jvalue v)
{
    if (v.kind == J_STRING)
        soq__jb_str(b, v.s);
    else if (v.kind != J_UNDEFINED)
        soq__jrepr(r, b, v);
}

const struct jstr *soq__jto_str(struct jrun *r, struct jvalue v)
{
    struct jbuild b = {.m = &r->mem};

    if (v.kind == J_STRING)
        return v.s;
    soq__jprint(r, &b, v);
    return soq__jb_done(&b);
}
