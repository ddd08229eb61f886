/* Finding filters, tests, methods and functions by name, and binding arguments to their parameters. */
#include <string.h>

#include "base/nearest.h"
#include "text/jinja_run.h"

const struct jbuiltin_table *const soq__jfilters[] = {&soq__jfilters_text, &soq__jfilters_seq, &soq__jfilters_pick,
                                                      &soq__jfilters_number, NULL};
const struct jbuiltin_table *const soq__jtests[] = {&soq__jtests_all, NULL};

#define NAMES_MAX 128

const struct jbuiltin *soq__jbuiltin_find(const struct jbuiltin_table *const *tables, const char *name, size_t n)
{
    for (; *tables; tables++)
        for (size_t i = 0; i < (*tables)->count; i++)
            if (strlen((*tables)->items[i].name) == n && memcmp((*tables)->items[i].name, name, n) == 0)
                return &(*tables)->items[i];
    return NULL;
}

int soq__jbuiltin_unknown(struct jmem *m, const struct jbuiltin_table *const *tables, const struct jstr *name)
{
    const char *names[NAMES_MAX], *near, *what = tables[0]->what;
    char word[65];
    size_t count = 0, n = (size_t)soq__jclip(name);

    memcpy(word, name->p, n);
    word[n] = '\0';
    for (; *tables; tables++)
        for (size_t i = 0; i < (*tables)->count && count < NAMES_MAX; i++)
            names[count++] = (*tables)->items[i].name;
    near = soq__nearest(word, names, count);
    if (near)
        return soq__jfail(m, SOQ_EINVAL, "unknown %s '%s'; did you mean '%s'?", what, word, near);
    return soq__jfail(m, SOQ_EINVAL, "unknown %s '%s'", what, word);
}

static unsigned param_count(const struct jbuiltin *b)
{
    unsigned n = 0;

    while (n < JPARAMS_MAX && b->params[n])
        n++;
    return n;
}

static int bind_keyword(struct jrun *r, struct jcall *c, const struct jpair *pair)
{
    const struct jbuiltin *b = c->builtin;
    const struct jstr *name = pair->key.s;
    unsigned count = param_count(b);

    for (unsigned i = 0; i < count; i++) {
        if (!jstr_is(name, b->params[i], strlen(b->params[i])))
            continue;
        if (c->arg[i].kind != J_OMITTED)
            return soq__jfail(&r->mem, SOQ_EINVAL, "%s() got two values for '%s'", b->name, b->params[i]);
        c->arg[i] = pair->value;
        return 0;
    }
    return soq__jfail(&r->mem, SOQ_EINVAL, "%s() has no parameter '%.*s'", b->name, soq__jclip(name), name->p);
}

static int bind(struct jrun *r, struct jcall *c)
{
    const struct jbuiltin *b = c->builtin;
    unsigned count = param_count(b);

    if (c->raw->count > count)
        return soq__jfail(&r->mem, SOQ_EINVAL, "%s() takes at most %u arguments, not %zu", b->name, count, c->raw->count);
    for (size_t i = 0; i < c->raw->count; i++)
        c->arg[i] = c->raw->positional[i];
    for (size_t i = 0; c->raw->keywords && i < c->raw->keywords->count; i++)
        if (bind_keyword(r, c, &c->raw->keywords->pairs[i]))
            return r->mem.rc;
    for (unsigned i = 0; i < b->required; i++)
        if (c->arg[i].kind == J_OMITTED)
            return soq__jfail(&r->mem, SOQ_EINVAL, "%s() needs the argument '%s'", b->name, b->params[i]);
    return 0;
}

int soq__jbuiltin_call(struct jrun *r, const struct jbuiltin *b, struct jvalue self, const struct jargs *args,
                       struct jvalue *out)
{
    struct jcall c = {.self = self, .raw = args, .builtin = b};

    if (!soq__jstep(r, 1) || (!b->variadic && bind(r, &c)))
        return r->mem.rc;
    return b->fn(r, &c, out);
}

int soq__jarg_int(struct jrun *r, const struct jcall *c, unsigned i, int64_t fallback, int64_t *out)
{
    if (c->arg[i].kind != J_OMITTED && !jv_is_integral(c->arg[i]))
        return soq__jfail(&r->mem, SOQ_EINVAL, "%s(): '%s' must be an integer, not %s", c->builtin->name, c->builtin->params[i],
                          soq__jtype_name(c->arg[i]));
    *out = c->arg[i].kind == J_OMITTED ? fallback : jv_integer(c->arg[i]);
    return 0;
}

int soq__jarg_str(struct jrun *r, const struct jcall *c, unsigned i, const struct jstr **out)
{
    *out = NULL;
    if (c->arg[i].kind == J_OMITTED)
        return 0;
    if (c->arg[i].kind != J_STRING)
        return soq__jfail(&r->mem, SOQ_EINVAL, "%s(): '%s' must be a string, not %s", c->builtin->name, c->builtin->params[i],
                          soq__jtype_name(c->arg[i]));
    *out = c->arg[i].s;
    return 0;
}
