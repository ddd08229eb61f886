/* Filters that make text. `self` is turned into a string first, as jinja2's soft_str does. */
#include <string.h>

#include "text/jinja_run.h"
#include "text/jinja_unicode.h"

static int filter_case(struct jrun *r, const struct jcall *c, enum jcase_mode mode, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);

    return s ? soq__jtext_case(r, s, mode, out) : r->mem.rc;
}

static int upper(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return filter_case(r, c, JMODE_UPPER, out);
}

static int lower(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return filter_case(r, c, JMODE_LOWER, out);
}

static int capitalize(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return filter_case(r, c, JMODE_CAPITALIZE, out);
}

static bool starts_word(uint32_t cp)
{
    return soq__ju_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp));
}

/* Appends bytes [from, to) of s in another case. */
static void add_cased(struct jrun *r, struct jbuild *b, const struct jstr *s, size_t from, size_t to, enum jcase_mode mode)
{
    const struct jstr *part = soq__jstr_slice(&r->mem, s, from, to);
    struct jvalue v;

    if (part && !soq__jtext_case(r, part, mode, &v))
        soq__jb_str(b, v.s);
}

/* The filter, unlike str.title(), begins words only after white space and - ( { [ <. */
static int title(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);
    struct jbuild b = {.m = &r->mem};
    struct jiter it = {.s = s}, end;
    struct jchar ch, rest;

    while (s && soq__jiter_next(&it, &ch)) {
        if (starts_word(ch.cp)) {
            soq__jb_slice(&b, s, ch.at, it.at);
            continue;
        }
        for (end = it; soq__jiter_next(&end, &rest) && !starts_word(rest.cp);)
            it.at = end.at;
        add_cased(r, &b, s, ch.at, ch.at + ch.size, JMODE_UPPER);
        add_cased(r, &b, s, ch.at + ch.size, it.at, JMODE_LOWER);
    }
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

static int trim(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);

    return s ? soq__jtext_strip(r, s, c->arg[0], true, true, out) : r->mem.rc;
}

static int replace(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self), *old = soq__jto_str(r, c->arg[0]), *new = soq__jto_str(r, c->arg[1]);
    struct jcall counted = *c;
    int64_t count;

    if (counted.arg[2].kind == J_NONE)
        counted.arg[2].kind = J_OMITTED;
    if (!s || !old || !new || soq__jarg_int(r, &counted, 2, -1, &count))
        return r->mem.rc;
    return soq__jtext_replace(r, s, old, new, count, out);
}

static int join(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *separator =
        c->arg[0].kind == J_OMITTED ? soq__jstr_view(&r->mem, "", 0, false) : soq__jto_str(r, c->arg[0]);
    struct jseq *items = NULL, *parts;

    if (!separator || soq__jlist_of(r, c->self, &items))
        return r->mem.rc;
    if (c->arg[1].kind == J_OMITTED || c->arg[1].kind == J_NONE)
        return soq__jtext_join(r, separator, items, true, out);
    parts = soq__jseq_new(&r->mem, items->count);
    for (size_t i = 0; parts && i < items->count; i++)
        if (soq__jget_path(r, items->items[i], c->arg[1], NULL, &parts->items[parts->count++]))
            return r->mem.rc;
    return parts ? soq__jtext_join(r, separator, parts, true, out) : r->mem.rc;
}

static int string(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    *out = jv_str(soq__jto_str(r, c->self));
    return r->mem.rc;
}

static int safe(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);
    struct jbuild b = {.m = &r->mem, .markup = true};

    if (s)
        soq__jb_str(&b, s);
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

static int escape(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);

    if (!s || soq__jescape(r, s, &s))
        return r->mem.rc;
    *out = jv_str(s);
    return 0;
}

static int forceescape(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);
    struct jstr plain;

    if (!s)
        return r->mem.rc;
    plain = *s;
    plain.markup = false;
    if (soq__jescape(r, &plain, &s))
        return r->mem.rc;
    *out = jv_str(s);
    return 0;
}

static int format(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);
    struct jseq args = {.items = (struct jvalue *)(uintptr_t)c->raw->positional, .count = c->raw->count};
    bool keywords = c->raw->keywords && c->raw->keywords->count > 0;

    if (keywords && args.count)
        return soq__jfail(&r->mem, SOQ_EINVAL, "format(): positional and keyword arguments cannot be mixed");
    if (!s)
        return r->mem.rc;
    if (keywords)
        return soq__jformat_percent(r, s, (struct jvalue){.kind = J_DICT, .dict = (struct jdict *)(uintptr_t)c->raw->keywords},
                                    out);
    return soq__jformat_percent(r, s, jv_seq(J_TUPLE, &args), out);
}

static const struct jstr *indention(struct jrun *r, struct jvalue width)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max};

    if (width.kind == J_STRING)
        return width.s;
    if (width.kind != J_OMITTED && !jv_is_integral(width)) {
        soq__jfail_type(r, width, "used as the width of indent()");
        return NULL;
    }
    if (width.kind == J_OMITTED || jv_integer(width) > 0)
        soq__jb_repeat(&b, ' ', width.kind == J_OMITTED ? 4 : (size_t)jv_integer(width), false);
    return soq__jb_done(&b);
}

static int indent(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *by = indention(r, c->arg[0]);
    bool first = jarg_truth(c, 1), blank = jarg_truth(c, 2);
    struct jbuild b = {.m = &r->mem, .max = r->output_max}, source = {.m = &r->mem};
    const struct jstr *s;
    struct jseq *lines;

    if (!by)
        return r->mem.rc;
    if (c->self.kind != J_STRING)
        return soq__jfail_type(r, c->self, "indented");
    soq__jb_str(&source, c->self.s); /* with a newline behind: what jinja2 does, and its results depend on it */
    soq__jb_puts(&source, "\n");
    s = soq__jb_done(&source);
    lines = s ? soq__jtext_lines(r, s, false) : NULL;
    for (size_t i = 0; lines && i < lines->count; i++) {
        const struct jstr *line = lines->items[i].s;

        if (i)
            soq__jb_puts(&b, "\n");
        if (i ? blank || line->n > 0 : first)
            soq__jb_str(&b, by);
        soq__jb_str(&b, line);
    }
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

static int center(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);
    int64_t width;

    return !s || soq__jarg_int(r, c, 0, 80, &width) ? r->mem.rc : soq__jtext_pad(r, s, width, 0, NULL, out);
}

static int wordcount(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);
    struct jiter it = {.s = s};
    bool inside = false;
    int64_t count = 0;
    struct jchar ch;

    while (s && soq__jiter_next(&it, &ch)) {
        bool word = soq__ju_word(ch.cp);

        count += word && !inside;
        inside = word;
    }
    *out = jv_int(count);
    return r->mem.rc;
}

/* ---- tojson, with the arguments that Hugging Face gives it ---- */

static int json_indent(struct jrun *r, struct jvalue v, const struct jstr **out)
{
    *out = NULL;
    if (v.kind == J_OMITTED || v.kind == J_NONE)
        return 0;
    if (jv_is_integral(v) && jv_integer(v) <= 0)
        *out = soq__jstr_view(&r->mem, "", 0, false);
    else
        *out = indention(r, v);
    return r->mem.rc;
}

static int json_separators(struct jrun *r, struct jvalue v, struct jjson_style *style)
{
    if (v.kind == J_OMITTED || v.kind == J_NONE) {
        style->item_separator = soq__jstr_copy(&r->mem, style->indent ? "," : ", ");
        style->key_separator = soq__jstr_copy(&r->mem, ": ");
        return r->mem.rc;
    }
    if ((v.kind != J_TUPLE && v.kind != J_LIST) || v.seq->count != 2 || v.seq->items[0].kind != J_STRING ||
        v.seq->items[1].kind != J_STRING)
        return soq__jfail(&r->mem, SOQ_EINVAL, "tojson(): 'separators' must be two strings");
    style->item_separator = v.seq->items[0].s;
    style->key_separator = v.seq->items[1].s;
    return 0;
}

static int tojson(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max};
    struct jjson_style style = {.ascii = jarg_truth(c, 0), .sort = jarg_truth(c, 3)};

    if (json_indent(r, c->arg[1], &style.indent) || json_separators(r, c->arg[2], &style))
        return r->mem.rc;
    soq__jjson(r, &b, c->self, &style);
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

static const struct jbuiltin items[] = {
    {.name = "upper", .fn = upper},
    {.name = "lower", .fn = lower},
    {.name = "capitalize", .fn = capitalize},
    {.name = "title", .fn = title},
    {.name = "trim", .fn = trim, .params = {"chars"}},
    {.name = "replace", .fn = replace, .params = {"old", "new", "count"}, .required = 2},
    {.name = "join", .fn = join, .params = {"d", "attribute"}},
    {.name = "string", .fn = string},
    {.name = "safe", .fn = safe},
    {.name = "escape", .fn = escape},
    {.name = "e", .fn = escape},
    {.name = "forceescape", .fn = forceescape},
    {.name = "format", .fn = format, .variadic = true},
    {.name = "indent", .fn = indent, .params = {"width", "first", "blank"}},
    {.name = "center", .fn = center, .params = {"width"}},
    {.name = "wordcount", .fn = wordcount},
    {.name = "tojson", .fn = tojson, .params = {"ensure_ascii", "indent", "separators", "sort_keys"}},
};

const struct jbuiltin_table soq__jfilters_text = {.what = "filter", .items = items, .count = JTABLE_COUNT(items)};
