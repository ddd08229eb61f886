/* "..." % args and "...".format(args), with Python's conversions. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_run.h"

#define PRECISION_MAX 300
#define NUMBER_MAX 1024 /* bytes of a formatted number before padding */

/* How one value is to be written; both syntaxes are translated to it. */
struct spec {
    char fill, align;         /* align: < > ^ = or 0 */
    char sign;                /* + - or space */
    bool alternate;           /* # */
    char group;               /* , or _ or 0 */
    bool zero;                /* 0 before the width of a replacement field */
    bool untrusted;           /* the format string is, so its fill character may be */
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
};

static int bad(struct jrun *r, const char *what)
{
    return soq__jfail(&r->mem, SOQ_EINVAL, "format string: %s", what);
}

/* ---- writing ---- */

/* body, padded; prefix ("-0x") stays in front of the fill where align is '='. */
static void write_padded(struct jrun *r, struct jbuild *b, const struct spec *s, const char *prefix, const struct jstr *body,
                         char default_align)
{
    int64_t length = (int64_t)(strlen(prefix) + soq__jstr_chars(body));
    size_t space = s->width > length ? (size_t)(s->width - length) : 0;
    char align = s->align ? s->align : default_align;
    size_t left = align == '<' || align == '=' ? 0 : align == '>' ? space : space / 2;

    if (!soq__jstep(r, 1))
        return;
    soq__jb_repeat(b, s->fill, left, s->untrusted);
    soq__jb_puts(b, prefix);
    soq__jb_repeat(b, s->fill, align == '=' ? space : 0, s->untrusted);
    soq__jb_str(b, body);
    soq__jb_repeat(b, s->fill, align == '=' ? 0 : space - left, s->untrusted);
}

static void write_string(struct jrun *r, struct jbuild *b, const struct spec *s, const struct jstr *text)
{
    const struct jstr *cut = text;

    if (text && s->precision >= 0)
        cut = soq__jstr_slice(&r->mem, text, 0, soq__jstr_offset(text, (size_t)s->precision));
    if (cut)
        write_padded(r, b, s, "", cut, '<');
}

/* Puts separators between every three (for binary and such: four) digits of the leading run of digits. */
static void group_digits(char *text, size_t cap, char separator, size_t every)
{
    size_t digits = strspn(text, "0123456789abcdefABCDEF"), length = strlen(text);

    for (size_t at = digits; at > every && length + 2 < cap; length++) {
        at -= every;
        memmove(text + at + 1, text + at, length - at + 1);
        text[at] = separator;
    }
}

static const char *sign_of(bool negative, const struct spec *s)
{
    return negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
}

static int write_int(struct jrun *r, struct jbuild *b, const struct spec *s, int64_t value)
{
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    unsigned base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    const char *digits = s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    char text[NUMBER_MAX], prefix[8], *p = text + PRECISION_MAX;
    size_t count = 0;

    *p = '\0';
    do {
        *--p = digits[rest % base];
        rest /= base;
        count++;
    } while (rest);
    while (s->precision > 0 && count < (size_t)s->precision) { /* %.5d: at least so many digits */
        *--p = '0';
        count++;
    }
    memmove(text, p, count + 1);
    if (s->group)
        group_digits(text, sizeof text, s->group, base == 10 ? 3 : 4);
    snprintf(prefix, sizeof prefix, s->alternate && base != 10 ? "%s0%c" : "%s", sign_of(value < 0, s), s->type);
    write_padded(r, b, s, prefix, &(struct jstr){.p = text, .n = strlen(text)}, '>');
    return r->mem.rc;
}

/* printf's text with a '.' whatever the locale. */
static void print_double(char *text, size_t cap, const char *format, int precision, double f)
{
    const char *point = localeconv()->decimal_point;
    char *found;

    snprintf(text, cap, format, precision, f);
    found = strstr(text, point);
    if (found && *point) {
        *found = '.';
        memmove(found + 1, found + strlen(point), strlen(found + strlen(point)) + 1);
    }
}

static int write_float(struct jrun *r, struct jbuild *b, const struct spec *s, double value)
{
    char format[] = {'%', '.', '*', s->type == '%' ? 'f' : s->type, '\0', '\0'}, text[NUMBER_MAX];
    double f = fabs(s->type == '%' ? value * 100 : value);
    struct jbuild repr = {.m = &r->mem};

    if (s->alternate) {
        memmove(format + 2, format + 1, 3);
        format[1] = '#';
    }
    if (s->type) {
        print_double(text, sizeof text, format, s->precision < 0 ? 6 : (int)s->precision, f);
    } else {
        if (s->precision >= 0)
            return bad(r, "a precision needs a type: e, f or g");
        soq__jfloat_repr(&repr, f);
        snprintf(text, sizeof text, "%.*s", (int)repr.n, repr.p ? repr.p : "");
    }
    if (s->type == '%')
        strcat(text, "%");
    if (s->group)
        group_digits(text, sizeof text, s->group, 3);
    write_padded(r, b, s, sign_of(signbit(value) && !isnan(value), s), &(struct jstr){.p = text, .n = strlen(text)}, '>');
    return r->mem.rc;
}

/* A character made from a number counts as untrusted: the number may come from anywhere. */
static int write_char(struct jrun *r, struct jbuild *b, const struct spec *s, int64_t cp)
{
    struct jbuild text = {.m = &r->mem};
    const struct jstr *one;

    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        return bad(r, "%c needs a character's number");
    soq__jb_cp(&text, (uint32_t)cp, true);
    one = soq__jb_done(&text);
    if (one)
        write_padded(r, b, s, "", one, '>');
    return r->mem.rc;
}

static bool is_one_of(char c, const char *set)
{
    return c && strchr(set, c);
}

/* ---- "..." % args ---- */

struct percent {
    const struct jstr *format;
    size_t at;
    struct jvalue args;
    size_t next;     /* of a tuple; for a single value 1 = used */
    bool used_names; /* %(name)s */
};

static int next_arg(struct jrun *r, struct percent *p, struct jvalue *out)
{
    bool is_tuple = p->args.kind == J_TUPLE;

    if (p->next >= (is_tuple ? p->args.seq->count : 1))
        return bad(r, "more conversions than arguments");
    *out = is_tuple ? p->args.seq->items[p->next] : p->args;
    p->next++;
    return 0;
}

static char peek(const struct percent *p)
{
    return p->at < p->format->n ? p->format->p[p->at] : '\0';
}

/* A number, or "*" for the next argument, which may be negative; absent leaves *out alone. */
static int percent_number(struct jrun *r, struct percent *p, int64_t *out)
{
    struct jvalue v;

    if (peek(p) == '*') {
        p->at++;
        if (next_arg(r, p, &v))
            return r->mem.rc;
        if (!jv_is_integral(v))
            return bad(r, "* needs an integer");
        *out = jv_integer(v);
    } else if (peek(p) >= '0' && peek(p) <= '9') {
        for (*out = 0; peek(p) >= '0' && peek(p) <= '9' && *out <= INT32_MAX; p->at++)
            *out = *out * 10 + (peek(p) - '0');
    }
    return *out > INT32_MAX || *out < -INT32_MAX ? bad(r, "width or precision too large") : 0;
}

static int percent_spec(struct jrun *r, struct percent *p, struct spec *s)
{
    bool left = false, zero = false;

    *s = (struct spec){.fill = ' ', .sign = '-', .precision = -1, .untrusted = p->format->taint_count > 0};
    for (; is_one_of(peek(p), "-+ #0"); p->at++) {
        left |= peek(p) == '-';
        zero |= peek(p) == '0';
        s->alternate |= peek(p) == '#';
        if (peek(p) == '+' || (peek(p) == ' ' && s->sign != '+'))
            s->sign = peek(p);
    }
    if (percent_number(r, p, &s->width))
        return r->mem.rc;
    if (s->width < 0) {
        left = true;
        s->width = -s->width;
    }
    if (peek(p) == '.') {
        p->at++;
        s->precision = 0;
        if (percent_number(r, p, &s->precision))
            return r->mem.rc;
        s->precision = s->precision < 0 ? 0 : s->precision;
    }
    p->at += is_one_of(peek(p), "hlL");
    s->type = peek(p);
    s->align = left ? '<' : '>';
    if (zero && !left && is_one_of(s->type, "diuoxXeEfFgG")) {
        s->align = '=';
        s->fill = '0';
    }
    return s->precision > PRECISION_MAX && !is_one_of(s->type, "sra") ? bad(r, "precision too large") : 0;
}

static int percent_int(struct jrun *r, struct jbuild *b, struct spec *s, struct jvalue v)
{
    bool decimal = is_one_of(s->type, "diu");

    if (v.kind == J_FLOAT && decimal && fabs(v.f) < 9.2e18)
        v = jv_int((int64_t)v.f);
    if (!jv_is_integral(v))
        return soq__jfail_type(r, v, "formatted as an integer");
    if (decimal)
        s->type = 'd';
    return write_int(r, b, s, jv_integer(v));
}

static int percent_value(struct jrun *r, struct jbuild *b, struct spec *s, struct jvalue v)
{
    struct jbuild repr = {.m = &r->mem};

    if (s->type == 's') {
        write_string(r, b, s, soq__jto_str(r, v));
    } else if (s->type == 'r' || s->type == 'a') {
        soq__jrepr(r, &repr, v);
        write_string(r, b, s, soq__jb_done(&repr));
    } else if (is_one_of(s->type, "diuoxX")) {
        return percent_int(r, b, s, v);
    } else if (is_one_of(s->type, "eEfFgG")) {
        if (!jv_is_number(v))
            return soq__jfail_type(r, v, "formatted as a number");
        return write_float(r, b, s, jv_double(v));
    } else if (s->type == 'c') {
        if (v.kind == J_STRING && soq__jstr_chars(v.s) == 1)
            write_string(r, b, s, v.s);
        else
            return jv_is_integral(v) ? write_char(r, b, s, jv_integer(v)) : bad(r, "%c needs a character");
    } else {
        return bad(r, "unknown conversion behind %");
    }
    return r->mem.rc;
}

/* The argument for %(name)...; p->at is behind the "(". */
static int named_arg(struct jrun *r, struct percent *p, struct jvalue *out)
{
    size_t start = p->at, depth = 1;
    const struct jstr *name;
    const struct jpair *pair;

    for (; p->at < p->format->n; p->at++) {
        depth += (size_t)(peek(p) == '(') - (size_t)(peek(p) == ')');
        if (depth == 0)
            break;
    }
    if (depth || p->args.kind != J_DICT)
        return bad(r, depth ? "%( has no )" : "%(name) needs a mapping");
    name = soq__jstr_slice(&r->mem, p->format, start, p->at++);
    if (!name || soq__jdict_find(r, p->args.dict, jv_str(name), &pair))
        return r->mem.rc;
    if (!pair)
        return bad(r, "%(name) is missing in the mapping");
    p->used_names = true;
    *out = pair->value;
    return 0;
}

static int percent_one(struct jrun *r, struct jbuild *b, struct percent *p)
{
    struct jvalue v = {0};
    bool named = peek(p) == '(';
    struct spec s;

    if (peek(p) == '%') {
        p->at++;
        soq__jb_puts(b, "%");
        return r->mem.rc;
    }
    p->at += named;
    if ((named && named_arg(r, p, &v)) || percent_spec(r, p, &s))
        return r->mem.rc;
    if (p->at >= p->format->n)
        return bad(r, "it ends inside a conversion");
    if (!named && next_arg(r, p, &v))
        return r->mem.rc;
    p->at++;
    return percent_value(r, b, &s, v);
}

/* Python complains about unused arguments only where they are not something that could be looked into. */
static bool unused_arguments(const struct percent *p)
{
    switch (p->args.kind) {
    case J_TUPLE:
        return p->next < p->args.seq->count;
    case J_DICT:
    case J_LIST:
    case J_RANGE:
    case J_UNDEFINED:
        return false;
    default:
        return p->next == 0;
    }
}

int soq__jformat_percent(struct jrun *r, const struct jstr *format, struct jvalue args, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max, .markup = format->markup};
    struct percent p = {.format = format, .args = args};

    while (p.at < format->n && soq__jstep(r, 1)) {
        const char *percent = memchr(format->p + p.at, '%', format->n - p.at);
        size_t end = percent ? (size_t)(percent - format->p) : format->n;

        soq__jb_slice(&b, format, p.at, end);
        p.at = end + 1;
        if (percent && percent_one(r, &b, &p))
            return r->mem.rc;
    }
    if (unused_arguments(&p))
        return bad(r, "more arguments than conversions");
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

/* ---- "...".format(args) ---- */

struct braces {
    const struct jstr *format;
    size_t at;
    const struct jargs *args;
    int64_t automatic; /* the next {} */
    bool any_automatic, any_numbered;
};

static bool read_number(const struct jstr *s, size_t *at, int64_t *out)
{
    size_t start = *at;

    *out = 0;
    for (; *at < s->n && s->p[*at] >= '0' && s->p[*at] <= '9' && *out < INT32_MAX; ++*at)
        *out = *out * 10 + (s->p[*at] - '0');
    return *at > start;
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static int parse_spec(struct jrun *r, const struct jstr *t, struct spec *s)
{
    size_t at = 0;

    *s = (struct spec){.fill = ' ', .sign = '-', .precision = -1, .untrusted = t->taint_count > 0};
    if (t->n > 1 && is_one_of(t->p[1], "<>^=") && !(t->p[0] & 0x80)) {
        s->fill = t->p[0];
        s->align = t->p[1];
        at = 2;
    } else if (t->n > 0 && is_one_of(t->p[0], "<>^=")) {
        s->align = t->p[at++];
    }
    if (at < t->n && is_one_of(t->p[at], "+- "))
        s->sign = t->p[at++];
    if (at < t->n && t->p[at] == '#') {
        s->alternate = true;
        at++;
    }
    if (at < t->n && t->p[at] == '0' && !s->align) {
        s->fill = '0';
        s->zero = true;
        at++;
    }
    read_number(t, &at, &s->width);
    if (at < t->n && is_one_of(t->p[at], ",_"))
        s->group = t->p[at++];
    if (at < t->n && t->p[at] == '.') {
        at++;
        if (!read_number(t, &at, &s->precision) || s->precision > (1 << 24))
            return bad(r, "precision missing or too large");
    }
    if (at < t->n)
        s->type = t->p[at++];
    return at < t->n ? bad(r, "malformed specification behind ':'") : 0;
}

static int write_number(struct jrun *r, struct jbuild *b, struct spec *s, struct jvalue v)
{
    bool integral = jv_is_integral(v);

    if (s->zero && s->group)
        return bad(r, "zeros with separators are not supported");
    s->align = s->zero ? '=' : s->align;
    if (is_one_of(s->type, "eEfFgG%") || (!integral && s->type == '\0'))
        return s->precision > PRECISION_MAX ? bad(r, "precision too large") : write_float(r, b, s, jv_double(v));
    if (!integral || !(s->type == '\0' || is_one_of(s->type, "dboxXcn")))
        return bad(r, "this type does not fit the number");
    if (s->precision >= 0)
        return bad(r, "precision is not possible for an integer");
    s->type = s->type == '\0' || s->type == 'n' ? 'd' : s->type;
    return s->type == 'c' ? write_char(r, b, s, jv_integer(v)) : write_int(r, b, s, jv_integer(v));
}

static int write_value(struct jrun *r, struct jbuild *b, const struct jstr *spec, struct jvalue v)
{
    struct spec s;

    if (!spec)
        return r->mem.rc;
    if (spec->n == 0) {
        soq__jprint(r, b, v);
        return r->mem.rc;
    }
    if (parse_spec(r, spec, &s))
        return r->mem.rc;
    if (jv_is_number(v))
        return write_number(r, b, &s, v);
    if (v.kind != J_STRING)
        return soq__jfail_type(r, v, "formatted with a specification");
    if ((s.type && s.type != 's') || s.align == '=' || s.sign != '-' || s.group)
        return bad(r, "this specification does not fit a string");
    write_string(r, b, &s, v.s);
    return r->mem.rc;
}

/* The argument named by field[0..n): nothing, a number or a name. */
static int first_part(struct jrun *r, struct braces *p, const struct jstr *name, struct jvalue *out)
{
    const struct jvalue *found = NULL;
    size_t at = 0;
    int64_t i = p->automatic;

    if (!name)
        return r->mem.rc;
    if (name->n == 0 || (read_number(name, &at, &i) && at == name->n)) {
        p->any_automatic |= name->n == 0;
        p->any_numbered |= name->n != 0;
        p->automatic += name->n == 0;
        if (p->any_automatic && p->any_numbered)
            return bad(r, "{} and {0} cannot be mixed");
        if ((uint64_t)i < p->args->count)
            found = &p->args->positional[i];
    } else if (p->args->keywords) {
        found = soq__jdict_get_name(p->args->keywords, name->p, name->n);
    }
    if (!found)
        return bad(r, "there is no argument for a replacement field");
    *out = *found;
    return 0;
}

/* field: name(.attribute | [item])* */
static int lookup(struct jrun *r, struct braces *p, const struct jstr *field, struct jvalue *out)
{
    size_t end = 0;

    if (!field)
        return r->mem.rc;
    while (end < field->n && field->p[end] != '.' && field->p[end] != '[')
        end++;
    if (first_part(r, p, soq__jstr_slice(&r->mem, field, 0, end), out))
        return r->mem.rc;
    while (end < field->n) {
        bool item = field->p[end] == '[';
        size_t start = ++end, at = 0;
        const struct jstr *name;
        int64_t number;

        while (end < field->n && (item ? field->p[end] != ']' : field->p[end] != '.' && field->p[end] != '['))
            end++;
        name = soq__jstr_slice(&r->mem, field, start, end);
        if (!name || name->n == 0 || (item && end >= field->n))
            return bad(r, "malformed replacement field");
        end += item;
        if (item && read_number(name, &at, &number) && at == name->n ? soq__jget_item(r, *out, jv_int(number), out)
            : item                                                   ? soq__jget_item(r, *out, jv_str(name), out)
                                                                     : soq__jget_attr(r, *out, name, out))
            return r->mem.rc;
        if (end < field->n && field->p[end] != '.' && field->p[end] != '[')
            return bad(r, "malformed replacement field");
    }
    return 0;
}

/* A replacement field; p->at is behind its "{". */
static int replace_field(struct jrun *r, struct jbuild *b, struct braces *p)
{
    const struct jstr *f = p->format;
    size_t start = p->at, end, name_end = start;
    char conversion = '\0';
    struct jvalue v;

    while (p->at < f->n && f->p[p->at] != '}' && f->p[p->at] != '{')
        p->at++;
    end = p->at++;
    if (end >= f->n || f->p[end] == '{')
        return bad(r, end < f->n ? "nested {} are not supported" : "{ has no }");
    while (name_end < end && f->p[name_end] != ':' && f->p[name_end] != '!')
        name_end++;
    if (lookup(r, p, soq__jstr_slice(&r->mem, f, start, name_end), &v))
        return r->mem.rc;
    if (name_end + 1 < end && f->p[name_end] == '!') {
        conversion = f->p[name_end + 1];
        name_end += 2;
        if (!is_one_of(conversion, "sra") || (name_end < end && f->p[name_end] != ':'))
            return bad(r, "malformed conversion behind '!'");
    }
    if (conversion) {
        struct jbuild text = {.m = &r->mem};

        (conversion == 's' ? soq__jprint : soq__jrepr)(r, &text, v);
        v = jv_str(soq__jb_done(&text));
    }
    return r->mem.rc ? r->mem.rc : write_value(r, b, soq__jstr_slice(&r->mem, f, name_end + 1, end), v);
}

int soq__jformat_braces(struct jrun *r, const struct jstr *format, const struct jargs *args, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max};
    struct braces p = {.format = format, .args = args};

    while (p.at < format->n && soq__jstep(r, 1)) {
        size_t end = p.at;
        char c;

        while (end < format->n && format->p[end] != '{' && format->p[end] != '}')
            end++;
        soq__jb_slice(&b, format, p.at, end);
        p.at = end + 1;
        if (end >= format->n)
            break;
        c = format->p[end];
        if (p.at < format->n && format->p[p.at] == c) {
            soq__jb_slice(&b, format, end, p.at);
            p.at++;
        } else if (c == '}') {
            return bad(r, "} without {");
        } else if (replace_field(r, &b, &p)) {
            return r->mem.rc;
        }
    }
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}
