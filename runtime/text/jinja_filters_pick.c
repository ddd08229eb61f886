/* Filters that ask every element something: map, select, reject and their attribute forms; default and attr. */
#include "text/jinja_run.h"

/* The builtin named by the first argument (map: a filter; select: a test) and the arguments for it. */
static int named_builtin(struct jrun *r, const struct jbuiltin_table *const *tables, const struct jargs *args, size_t at,
                         const struct jbuiltin **fn_out, struct jargs *rest_out)
{
    struct jvalue name = args->positional[at];

    if (name.kind != J_STRING)
        return soq__jfail_type(r, name, "used as the name of a filter or test");
    *fn_out = soq__jbuiltin_find(tables, name.s->p, name.s->n);
    if (!*fn_out)
        return soq__jbuiltin_unknown(&r->mem, tables, name.s);
    *rest_out =
        (struct jargs){.positional = args->positional + at + 1, .count = args->count - at - 1, .keywords = args->keywords};
    return 0;
}

static int map_attribute(struct jrun *r, const struct jcall *c, struct jseq *from, struct jseq *to)
{
    const struct jdict *k = c->raw->keywords;
    const struct jvalue *path = k ? soq__jdict_get_name(k, "attribute", 9) : NULL;
    const struct jvalue *fallback = k ? soq__jdict_get_name(k, "default", 7) : NULL;

    if (!path)
        return soq__jfail(&r->mem, SOQ_EINVAL, "map() needs the name of a filter, or attribute=");
    if (k->count != 1 + (size_t)(fallback != NULL))
        return soq__jfail(&r->mem, SOQ_EINVAL, "map(attribute=...) takes only 'default' besides");
    if (fallback && fallback->kind == J_NONE)
        fallback = NULL;
    for (size_t i = 0; i < from->count; i++)
        if (soq__jget_path(r, from->items[i], *path, fallback, &to->items[to->count++]))
            return r->mem.rc;
    return 0;
}

static int map(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *from = NULL, *to;
    const struct jbuiltin *fn;
    struct jargs rest;

    if (!soq__jtruth(c->self)) {
        *out = jv_seq(J_ITERATOR, soq__jseq_new(&r->mem, 0));
        return r->mem.rc;
    }
    if (soq__jlist_of(r, c->self, &from) || !(to = soq__jseq_new(&r->mem, from->count)))
        return r->mem.rc;
    *out = jv_seq(J_ITERATOR, to);
    if (c->raw->count == 0)
        return map_attribute(r, c, from, to);
    if (named_builtin(r, soq__jfilters, c->raw, 0, &fn, &rest))
        return r->mem.rc;
    for (size_t i = 0; i < from->count; i++)
        if (soq__jbuiltin_call(r, fn, from->items[i], &rest, &to->items[to->count++]))
            return r->mem.rc;
    return 0;
}

/* What a selection asks: a test, or truth if fn is NULL. */
struct question {
    const struct jbuiltin *fn;
    struct jargs args;
    bool by_attribute;
};

static int prepare(struct jrun *r, const struct jcall *c, bool by_attribute, struct question *q)
{
    size_t at = by_attribute;

    *q = (struct question){.by_attribute = by_attribute};
    if (by_attribute && c->raw->count == 0)
        return soq__jfail(&r->mem, SOQ_EINVAL, "%s() needs the name of an attribute", c->builtin->name);
    return c->raw->count > at ? named_builtin(r, soq__jtests, c->raw, at, &q->fn, &q->args) : 0;
}

static int ask(struct jrun *r, const struct jcall *c, const struct question *q, struct jvalue item, bool *out)
{
    struct jvalue answer = item;

    if (q->by_attribute && soq__jget_path(r, item, c->raw->positional[0], NULL, &answer))
        return r->mem.rc;
    if (q->fn && soq__jbuiltin_call(r, q->fn, answer, &q->args, &answer))
        return r->mem.rc;
    *out = soq__jtruth(answer);
    return 0;
}

static int choose(struct jrun *r, const struct jcall *c, bool by_attribute, bool wanted, struct jvalue *out)
{
    struct jseq *from = NULL, *to = soq__jseq_new(&r->mem, 0);
    struct question q;

    *out = jv_seq(J_ITERATOR, to);
    if (!to || !soq__jtruth(c->self))
        return r->mem.rc;
    if (prepare(r, c, by_attribute, &q) || soq__jlist_of(r, c->self, &from))
        return r->mem.rc;
    for (size_t i = 0; i < from->count; i++) {
        bool yes = false;

        if (ask(r, c, &q, from->items[i], &yes) || (yes == wanted && !soq__jseq_add(&r->mem, to, from->items[i])))
            return r->mem.rc;
    }
    return 0;
}

static int select_items(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return choose(r, c, false, true, out);
}

static int reject_items(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return choose(r, c, false, false, out);
}

static int selectattr_items(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return choose(r, c, true, true, out);
}

static int rejectattr_items(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return choose(r, c, true, false, out);
}

static int fallback(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    bool replace = c->self.kind == J_UNDEFINED || (jarg_truth(c, 1) && !soq__jtruth(c->self));

    *out = !replace ? c->self : c->arg[0].kind != J_OMITTED ? c->arg[0] : jv_str(soq__jstr_view(&r->mem, "", 0, false));
    return r->mem.rc;
}

/* foo|attr("bar"): the attribute, never the item. */
static int attr(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *name;

    if (soq__jarg_str(r, c, 0, &name))
        return r->mem.rc;
    if (c->self.kind == J_DICT && !soq__jmethod_find(c->self, name)) {
        *out = (struct jvalue){.kind = J_UNDEFINED, .s = soq__jstr_copy(&r->mem, "'dict object' has no such attribute")};
        return r->mem.rc;
    }
    return soq__jget_attr(r, c->self, name, out);
}

static const struct jbuiltin table[] = {
    {.name = "map", .fn = map, .variadic = true},
    {.name = "select", .fn = select_items, .variadic = true},
    {.name = "reject", .fn = reject_items, .variadic = true},
    {.name = "selectattr", .fn = selectattr_items, .variadic = true},
    {.name = "rejectattr", .fn = rejectattr_items, .variadic = true},
    {.name = "default", .fn = fallback, .params = {"default_value", "boolean"}},
    {.name = "d", .fn = fallback, .params = {"default_value", "boolean"}},
    {.name = "attr", .fn = attr, .params = {"name"}, .required = 1},
};

const struct jbuiltin_table soq__jfilters_pick = {.what = "filter", .items = table, .count = JTABLE_COUNT(table)};
