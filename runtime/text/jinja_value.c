/* Sequences and dictionaries of the template interpreter, type names, truth. */
#include "text/jinja_value.h"

static const char *const type_names[] = {
    [J_OMITTED] = "missing",   [J_UNDEFINED] = "Undefined", [J_NONE] = "NoneType",      [J_BOOL] = "bool",
    [J_INT] = "int",           [J_FLOAT] = "float",         [J_STRING] = "str",         [J_LIST] = "list",
    [J_TUPLE] = "tuple",       [J_VIEW] = "dict view",      [J_ITERATOR] = "generator", [J_DICT] = "dict",
    [J_RANGE] = "range",       [J_NAMESPACE] = "Namespace", [J_LOOP] = "LoopContext",   [J_MACRO] = "Macro",
    [J_FUNCTION] = "function", [J_METHOD] = "method",       [J_CYCLER] = "Cycler",      [J_JOINER] = "Joiner",
};

const char *soq__jtype_name(struct jvalue v)
{
    return v.kind == J_VIEW ? v.seq->type : type_names[v.kind];
}

bool soq__jtruth(struct jvalue v)
{
    switch (v.kind) {
    case J_OMITTED:
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.b;
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0;
    case J_STRING:
        return v.s->n > 0;
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        return v.seq->count > 0;
    case J_DICT:
        return v.dict->count > 0;
    case J_RANGE:
        return v.range->count > 0;
    default:
        return true;
    }
}

struct jseq *soq__jseq_new(struct jmem *m, size_t cap)
{
    struct jseq *s = soq__jmem_zero(m, sizeof *s);

    if (!s || (cap && !(s->items = soq__jmem_array(m, cap, sizeof *s->items))))
        return NULL;
    s->cap = cap;
    return s;
}

bool soq__jseq_add(struct jmem *m, struct jseq *s, struct jvalue v)
{
    if (s->count == s->cap) {
        struct jvalue *items = soq__jmem_grow(m, s->items, s->count, 1, &s->cap, sizeof *items);

        if (!items)
            return false;
        s->items = items;
    }
    s->items[s->count++] = v;
    return true;
}

struct jdict *soq__jdict_new(struct jmem *m, size_t cap)
{
    struct jdict *d = soq__jmem_zero(m, sizeof *d);

    if (!d || (cap && !(d->pairs = soq__jmem_array(m, cap, sizeof *d->pairs))))
        return NULL;
    d->cap = cap;
    return d;
}

bool soq__jdict_add(struct jmem *m, struct jdict *d, struct jvalue key, struct jvalue value)
{
    if (d->count == d->cap) {
        struct jpair *pairs = soq__jmem_grow(m, d->pairs, d->count, 1, &d->cap, sizeof *pairs);

        if (!pairs)
            return false;
        d->pairs = pairs;
    }
    d->pairs[d->count++] = (struct jpair){.key = key, .value = value};
    return true;
}

static struct jpair *find_name(const struct jdict *d, const char *name, size_t n)
{
    for (size_t i = 0; i < d->count; i++)
        if (d->pairs[i].key.kind == J_STRING && jstr_is(d->pairs[i].key.s, name, n))
            return &d->pairs[i];
    return NULL;
}

const struct jvalue *soq__jdict_get_name(const struct jdict *d, const char *name, size_t n)
{
    const struct jpair *p = find_name(d, name, n);

    return p ? &p->value : NULL;
}

bool soq__jdict_set_name(struct jmem *m, struct jdict *d, const struct jstr *name, struct jvalue value)
{
    struct jpair *p = find_name(d, name->p, name->n);

    if (!p)
        return soq__jdict_add(m, d, jv_str(name), value);
    p->value = value;
    return true;
}
