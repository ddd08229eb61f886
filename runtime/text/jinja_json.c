/* json.dumps() with Python's spelling. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_run.h"

static void dump_char(struct jbuild *b, const struct jstr *s, const struct jchar *c, bool ascii)
{
    static const char escapes[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    const char *escape = c->cp && c->cp < 0x80 ? strchr(escapes, (int)c->cp) : NULL;
    char text[16];

    if (escape)
        snprintf(text, sizeof text, "\\%c", letters[escape - escapes]);
    else if (c->cp < 0x20 || (ascii && c->cp >= 0x7F && c->cp <= 0xFFFF))
        snprintf(text, sizeof text, "\\u%04x", c->cp);
    else if (ascii && c->cp > 0xFFFF && c->cp != JCHAR_BAD)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((c->cp - 0x10000) >> 10), 0xDC00 + ((c->cp - 0x10000) & 0x3FF));
    else {
        soq__jb_slice(b, s, c->at, c->at + c->size);
        return;
    }
    soq__jb_add(b, text, strlen(text), c->untrusted);
}

static void dump_string(struct jbuild *b, const struct jstr *s, bool ascii)
{
    struct jiter it = {.s = s};
    struct jchar c;

    soq__jb_puts(b, "\"");
    while (soq__jiter_next(&it, &c))
        dump_char(b, s, &c, ascii);
    soq__jb_puts(b, "\"");
}

static void dump_float(struct jbuild *b, double f)
{
    if (isfinite(f))
        soq__jfloat_repr(b, f);
    else
        soq__jb_puts(b, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
}

static void dump_value(struct jrun *r, struct jbuild *b, struct jvalue v, const struct jjson_style *style, size_t level);

static void dump_newline(struct jbuild *b, const struct jjson_style *style, size_t level)
{
    if (!style->indent)
        return;
    soq__jb_puts(b, "\n");
    for (size_t i = 0; i < level; i++)
        soq__jb_str(b, style->indent);
}

static void dump_array(struct jrun *r, struct jbuild *b, const struct jseq *s, const struct jjson_style *style, size_t level)
{
    soq__jb_puts(b, "[");
    for (size_t i = 0; i < s->count && !r->mem.rc; i++) {
        if (i)
            soq__jb_str(b, style->item_separator);
        dump_newline(b, style, level + 1);
        dump_value(r, b, s->items[i], style, level + 1);
    }
    if (s->count)
        dump_newline(b, style, level);
    soq__jb_puts(b, "]");
}

static void dump_key(struct jrun *r, struct jbuild *b, struct jvalue key, bool ascii)
{
    if (key.kind == J_STRING) {
        dump_string(b, key.s, ascii);
    } else if (jv_is_number(key) || key.kind == J_NONE) {
        soq__jb_puts(b, "\"");
        soq__jjson(r, b, key, &(struct jjson_style){.ascii = ascii});
        soq__jb_puts(b, "\"");
    } else {
        soq__jfail(&r->mem, SOQ_EINVAL, "a %s cannot be a key in JSON", soq__jtype_name(key));
    }
}

static const struct jdict *sorted(struct jrun *r, const struct jdict *d)
{
    struct jdict *copy = soq__jdict_new(&r->mem, d->count);
    struct jvalue *keys = soq__jmem_array(&r->mem, d->count * 2, sizeof *keys), *values = keys ? keys + d->count : NULL;

    if (!copy || !keys)
        return NULL;
    for (size_t i = 0; i < d->count; i++) {
        keys[i] = d->pairs[i].key;
        values[i] = d->pairs[i].value;
    }
    if (soq__jsort(r, keys, values, d->count, false))
        return NULL;
    for (size_t i = 0; i < d->count; i++)
        soq__jdict_add(&r->mem, copy, keys[i], values[i]);
    return copy;
}

static void dump_object(struct jrun *r, struct jbuild *b, const struct jdict *d, const struct jjson_style *style, size_t level)
{
    if (style->sort && !(d = sorted(r, d)))
        return;
    soq__jb_puts(b, "{");
    for (size_t i = 0; i < d->count && !r->mem.rc; i++) {
        if (i)
            soq__jb_str(b, style->item_separator);
        dump_newline(b, style, level + 1);
        dump_key(r, b, d->pairs[i].key, style->ascii);
        soq__jb_str(b, style->key_separator);
        dump_value(r, b, d->pairs[i].value, style, level + 1);
    }
    if (d->count)
        dump_newline(b, style, level);
    soq__jb_puts(b, "}");
}

static void dump_value(struct jrun *r, struct jbuild *b, struct jvalue v, const struct jjson_style *style, size_t level)
{
    if (!soq__jstep(r, 1) || !soq__jenter(r))
        return;
    switch (v.kind) {
    case J_NONE:
        soq__jb_puts(b, "null");
        break;
    case J_BOOL:
        soq__jb_puts(b, v.b ? "true" : "false");
        break;
    case J_INT:
        soq__jb_printf(b, "%lld", (long long)v.i);
        break;
    case J_FLOAT:
        dump_float(b, v.f);
        break;
    case J_STRING:
        dump_string(b, v.s, style->ascii);
        break;
    case J_LIST:
    case J_TUPLE:
        dump_array(r, b, v.seq, style, level);
        break;
    case J_DICT:
        dump_object(r, b, v.dict, style, level);
        break;
    default:
        soq__jfail_type(r, v, "written as JSON");
        break;
    }
    soq__jleave(r);
}

void soq__jjson(struct jrun *r, struct jbuild *b, struct jvalue v, const struct jjson_style *style)
{
    dump_value(r, b, v, style, 0);
}
