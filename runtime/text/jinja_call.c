/* Calling macros, functions and methods. */
#include <string.h>

#include "text/jinja_run.h"

static int too_many(struct jrun *r, const struct jmacro *m, size_t count)
{
    const struct jstr *name = m->node->macro.name;

    return soq__jfail(&r->mem, SOQ_EINVAL, "macro '%.*s' does not take %zu arguments", name ? soq__jclip(name) : 6,
                      name ? name->p : "caller", count);
}

static bool has_param(const struct jmacro *m, const struct jstr *name)
{
    for (const struct jnode *p = m->node->macro.params; p; p = p->next)
        if (jstr_same(p->param.name, name))
            return true;
    return false;
}

static int set_text(struct jrun *r, const char *name, struct jvalue v)
{
    const struct jstr *s = soq__jstr_copy(&r->mem, name);

    return s && soq__jset_name(r, s, v) ? 0 : r->mem.rc;
}

/* What remains of the positional arguments is `varargs`, if the macro asks for it. */
static int bind_varargs(struct jrun *r, const struct jmacro *m, const struct jargs *args, size_t used)
{
    struct jseq *rest;

    if (!m->node->macro.uses_varargs)
        return args->count > used ? too_many(r, m, args->count) : 0;
    rest = soq__jseq_new(&r->mem, args->count > used ? args->count - used : 0);
    for (size_t i = used; rest && i < args->count; i++)
        rest->items[rest->count++] = args->positional[i];
    return rest ? set_text(r, "varargs", jv_seq(J_TUPLE, rest)) : r->mem.rc;
}

/* Keyword arguments that name no parameter: `caller` and `kwargs`, if the macro asks for them. */
static int bind_extra_keywords(struct jrun *r, const struct jmacro *m, const struct jargs *args)
{
    struct jdict *rest = soq__jdict_new(&r->mem, 0);
    struct jvalue caller = {.kind = J_UNDEFINED, .s = soq__jstr_copy(&r->mem, "No caller defined")};
    bool take_caller = m->node->macro.uses_caller;

    for (size_t i = 0; rest && args->keywords && i < args->keywords->count; i++) {
        const struct jpair *p = &args->keywords->pairs[i];

        if (has_param(m, p->key.s))
            continue;
        if (take_caller && jstr_is(p->key.s, "caller", 6))
            caller = p->value;
        else if (m->node->macro.uses_kwargs)
            soq__jdict_add(&r->mem, rest, p->key, p->value);
        else
            return soq__jfail(&r->mem, SOQ_EINVAL, "this macro has no parameter '%.*s'", soq__jclip(p->key.s), p->key.s->p);
    }
    if (!rest || (take_caller && !has_param(m, &(struct jstr){.p = "caller", .n = 6}) && set_text(r, "caller", caller)))
        return r->mem.rc;
    return m->node->macro.uses_kwargs ? set_text(r, "kwargs", (struct jvalue){.kind = J_DICT, .dict = rest}) : 0;
}

static int not_provided(struct jrun *r, const struct jstr *name, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem};

    soq__jb_puts(&b, "parameter '");
    soq__jb_str(&b, name);
    soq__jb_puts(&b, "' was not provided");
    *out = (struct jvalue){.kind = J_UNDEFINED, .s = soq__jb_done(&b)};
    return r->mem.rc;
}

/* Parameters from left to right, so that defaults see the earlier ones. */
static int bind_params(struct jrun *r, const struct jmacro *m, const struct jargs *args)
{
    size_t i = 0;

    for (const struct jnode *p = m->node->macro.params; p; p = p->next, i++) {
        const struct jstr *name = p->param.name;
        const struct jvalue *keyword = args->keywords ? soq__jdict_get_name(args->keywords, name->p, name->n) : NULL;
        struct jvalue v;

        if (i < args->count && keyword)
            return soq__jfail(&r->mem, SOQ_EINVAL, "this macro got two values for '%.*s'", soq__jclip(name), name->p);
        if (i < args->count)
            v = args->positional[i];
        else if (keyword)
            v = *keyword;
        else if (p->param.value ? soq__jeval(r, p->param.value, &v) : not_provided(r, name, &v))
            return r->mem.rc;
        if (!soq__jset_name(r, name, v))
            return r->mem.rc;
    }
    return bind_varargs(r, m, args, i);
}

static int call_macro(struct jrun *r, const struct jmacro *m, const struct jargs *args, struct jvalue *out)
{
    struct jscope *outer = r->scope, *scope = soq__jmem_zero(&r->mem, sizeof *scope);
    int rc;

    if (!scope || !soq__jenter(r))
        return r->mem.rc;
    scope->parent = m->scope;
    r->scope = scope;
    rc = bind_extra_keywords(r, m, args);
    if (!rc)
        rc = bind_params(r, m, args);
    if (!rc)
        rc = soq__jcapture(r, m->node->macro.body, out);
    r->scope = outer;
    soq__jleave(r);
    return rc;
}

static int call_joiner(struct jrun *r, struct jjoiner *j, struct jvalue *out)
{
    *out = j->used ? j->separator : jv_str(soq__jstr_view(&r->mem, "", 0, false));
    j->used = true;
    return r->mem.rc;
}

int soq__jcall(struct jrun *r, struct jvalue of, const struct jargs *args, struct jvalue *out)
{
    switch (of.kind) {
    case J_MACRO:
        return call_macro(r, of.macro, args, out);
    case J_FUNCTION:
        return soq__jbuiltin_call(r, of.function, jv_none(), args, out);
    case J_METHOD:
        return soq__jbuiltin_call(r, of.method->fn, of.method->self, args, out);
    case J_JOINER:
        return call_joiner(r, of.joiner, out);
    default:
        return soq__jfail_type(r, of, "called");
    }
}
