/* Statements. */
#include "text/jinja_run.h"

/* ---- scopes ---- */

/* In the arena, because a macro that is defined in it keeps it. */
static struct jscope *push_scope(struct jrun *r, struct jscope *parent)
{
    struct jscope *s = soq__jmem_zero(&r->mem, sizeof *s);

    if (s) {
        s->parent = parent;
        r->scope = s;
    }
    return s;
}

static int exec_scoped(struct jrun *r, const struct jnode *body)
{
    struct jscope *outer = r->scope;
    int rc;

    if (!push_scope(r, outer))
        return r->mem.rc;
    rc = soq__jexec(r, body);
    r->scope = outer;
    return rc;
}

int soq__jcapture(struct jrun *r, const struct jnode *body, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max}, *outer = r->out;
    int rc;

    r->out = &b;
    rc = soq__jexec(r, body);
    r->out = outer;
    if (rc)
        return rc;
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

/* ---- assignment ---- */

static int assign_tuple(struct jrun *r, const struct jnode *target, struct jvalue v)
{
    struct jseq *values = NULL;
    size_t wanted = 0, i = 0;

    for (const struct jnode *t = target->items; t; t = t->next)
        wanted++;
    if (soq__jlist_of(r, v, &values))
        return r->mem.rc;
    if (values->count != wanted)
        return soq__jfail(&r->mem, SOQ_EINVAL, "%zu values cannot be unpacked into %zu names", values->count, wanted);
    for (const struct jnode *t = target->items; t; t = t->next)
        if (soq__jassign(r, t, values->items[i++]))
            return r->mem.rc;
    return 0;
}

static int assign_attribute(struct jrun *r, const struct jnode *target, struct jvalue v)
{
    struct jvalue of;

    if (soq__jeval(r, target->attr.of, &of))
        return r->mem.rc;
    if (of.kind != J_NAMESPACE)
        return soq__jfail(&r->mem, SOQ_EINVAL, "attributes can be set on namespaces only, not on %s", soq__jtype_name(of));
    soq__jdict_set_name(&r->mem, of.dict, target->attr.name, v);
    return r->mem.rc;
}

int soq__jassign(struct jrun *r, const struct jnode *target, struct jvalue v)
{
    if (target->kind == JN_NAME)
        return soq__jset_name(r, target->name, v) ? 0 : r->mem.rc;
    return target->kind == JN_TUPLE ? assign_tuple(r, target, v) : assign_attribute(r, target, v);
}

static int exec_set(struct jrun *r, const struct jnode *n)
{
    struct jvalue v;

    return soq__jeval(r, n->set.value, &v) ? r->mem.rc : soq__jassign(r, n->set.target, v);
}

/* The text of a block through its filters, in a scope of its own. */
static int filtered_text(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jscope *outer = r->scope;
    struct jvalue text;
    int rc;

    if (!push_scope(r, outer))
        return r->mem.rc;
    rc = soq__jcapture(r, n->set.body, &text);
    if (!rc)
        rc = soq__jfilter_value(r, n->set.filter, text, out);
    r->scope = outer;
    return rc;
}

static int exec_set_block(struct jrun *r, const struct jnode *n)
{
    struct jvalue v;
    int rc = filtered_text(r, n, &v);

    return rc ? rc : soq__jassign(r, n->set.target, v);
}

static int exec_filter_block(struct jrun *r, const struct jnode *n)
{
    struct jvalue v;
    int rc = filtered_text(r, n, &v);

    if (!rc)
        soq__jprint(r, r->out, v);
    return rc ? rc : r->mem.rc;
}

/* Values belong to the scope outside, names to the one inside. */
static int exec_with(struct jrun *r, const struct jnode *n)
{
    struct jscope *outer = r->scope, *inner = push_scope(r, outer);
    struct jvalue v;
    int rc = inner ? 0 : r->mem.rc;

    for (const struct jnode *i = n->with.vars; !rc && i; i = i->next) {
        r->scope = outer;
        rc = soq__jeval(r, i->set.value, &v);
        r->scope = inner;
        if (!rc)
            rc = soq__jassign(r, i->set.target, v);
    }
    if (!rc)
        rc = soq__jexec(r, n->with.body);
    r->scope = outer;
    return rc;
}

/* ---- loops and conditions ---- */

/* Asks the loop's `if` about an element. */
static int passes(struct jrun *r, const struct jloop *l, struct jvalue item, bool *out)
{
    struct jscope *current = r->scope, scope = {.parent = l->scope};
    struct jvalue test = jv_none();
    int rc;

    r->scope = &scope;
    rc = soq__jassign(r, l->node->loop.target, item);
    if (!rc)
        rc = soq__jeval(r, l->node->loop.test, &test);
    r->scope = current;
    if (!rc)
        *out = soq__jtruth(test);
    return rc;
}

int soq__jloop_pull(struct jrun *r, struct jloop *l, size_t count, bool *has)
{
    while (l->items->count < count && l->next < l->source->count) {
        struct jvalue item = l->source->items[l->next++];
        bool pass = false;

        if (passes(r, l, item, &pass))
            return r->mem.rc;
        if (pass && !soq__jseq_add(&r->mem, l->items, item))
            return r->mem.rc;
    }
    *has = l->items->count >= count;
    return 0;
}

static int run_iteration(struct jrun *r, const struct jnode *n, struct jloop *l)
{
    static const struct jstr name = {.p = "loop", .n = 4};

    if (soq__jassign(r, n->loop.target, l->items->items[l->index]) ||
        !soq__jset_name(r, &name, (struct jvalue){.kind = J_LOOP, .loop = l}))
        return r->mem.rc;
    return soq__jexec(r, n->loop.body);
}

/* Each iteration starts with an empty scope; it is a new one only if a macro holds the last. */
static int run_loop(struct jrun *r, const struct jnode *n, struct jloop *l, bool *completed)
{
    uint64_t closures = 0;
    struct jscope *inner = NULL;
    bool has = false;
    int rc;

    for (;; l->index++) {
        rc = soq__jloop_pull(r, l, l->index + 1, &has);
        if (rc || !has)
            return rc;
        if (!inner || closures != r->closures)
            inner = push_scope(r, l->scope);
        if (!inner)
            return r->mem.rc;
        closures = r->closures;
        inner->vars.count = 0;
        r->scope = inner;
        rc = run_iteration(r, n, l);
        *completed |= rc == 0;
        if (rc && rc != JEXEC_CONTINUE)
            return rc == JEXEC_BREAK ? 0 : rc;
    }
}

/* `else` runs if no iteration was completed: jinja2 counts those that a break or continue cut short as not run. */
static int exec_for(struct jrun *r, const struct jnode *n)
{
    struct jloop *l = soq__jmem_zero(&r->mem, sizeof *l);
    struct jscope *outer = r->scope;
    struct jseq *source = NULL;
    bool completed = false;
    struct jvalue over;
    int rc;

    if (!l || soq__jeval(r, n->loop.over, &over) || soq__jlist_of(r, over, &source))
        return r->mem.rc;
    *l = (struct jloop){.node = n, .scope = outer, .source = source, .items = source, .next = source->count};
    if (n->loop.test) {
        l->items = soq__jseq_new(&r->mem, 0);
        l->next = 0;
    }
    if (!l->items)
        return r->mem.rc;
    rc = run_loop(r, n, l, &completed);
    r->scope = outer;
    if (!rc && !completed && n->loop.otherwise)
        rc = exec_scoped(r, n->loop.otherwise);
    return rc;
}

static int exec_if(struct jrun *r, const struct jnode *n)
{
    for (;;) {
        struct jvalue test;

        if (!soq__jstep(r, 1) || soq__jeval(r, n->cond.test, &test))
            return r->mem.rc;
        if (soq__jtruth(test))
            return soq__jexec(r, n->cond.yes);
        if (!n->cond.elif)
            return soq__jexec(r, n->cond.no);
        n = n->cond.elif;
    }
}

/* ---- macros ---- */

static struct jmacro *new_macro(struct jrun *r, const struct jnode *n)
{
    struct jmacro *m = soq__jmem_alloc(&r->mem, sizeof *m);

    if (m)
        *m = (struct jmacro){.node = n, .scope = r->scope};
    r->closures++;
    return m;
}

static int exec_macro(struct jrun *r, const struct jnode *n)
{
    struct jmacro *m = new_macro(r, n);

    return m && soq__jset_name(r, n->macro.name, (struct jvalue){.kind = J_MACRO, .macro = m}) ? 0 : r->mem.rc;
}

/* {% call f(x) %}body{% endcall %}: f(x, caller=body). */
static int exec_call_block(struct jrun *r, const struct jnode *n)
{
    static const struct jstr name = {.p = "caller", .n = 6};
    const struct jnode *call = n->macro.call;
    struct jmacro *m = new_macro(r, n);
    struct jdict *keywords = soq__jdict_new(&r->mem, 1);
    struct jvalue of, v;
    struct jargs args;

    if (!m || !keywords || soq__jeval(r, call->call.of, &of) || soq__jeval_args(r, &call->call.args, &args))
        return r->mem.rc;
    for (size_t i = 0; args.keywords && i < args.keywords->count; i++)
        soq__jdict_add(&r->mem, keywords, args.keywords->pairs[i].key, args.keywords->pairs[i].value);
    if (!soq__jdict_set_name(&r->mem, keywords, &name, (struct jvalue){.kind = J_MACRO, .macro = m}))
        return r->mem.rc;
    args.keywords = keywords;
    if (soq__jcall(r, of, &args, &v))
        return r->mem.rc;
    soq__jprint(r, r->out, v);
    return r->mem.rc;
}

/* ---- output ---- */

static int exec_text(struct jrun *r, const struct jnode *n)
{
    soq__jb_str(r->out, n->value.s);
    return r->mem.rc;
}

static int exec_print(struct jrun *r, const struct jnode *n)
{
    struct jvalue v;

    for (const struct jnode *i = n->items; i; i = i->next) {
        if (soq__jeval(r, i, &v))
            return r->mem.rc;
        soq__jprint(r, r->out, v);
    }
    return r->mem.rc;
}

static int exec_scope(struct jrun *r, const struct jnode *n)
{
    return exec_scoped(r, n->items);
}

static int exec_jump(struct jrun *r, const struct jnode *n)
{
    (void)r;
    return n->kind == JN_BREAK ? JEXEC_BREAK : JEXEC_CONTINUE;
}

typedef int exec_fn(struct jrun *r, const struct jnode *n);

static exec_fn *const executors[] = {
    [JN_TEXT] = exec_text,
    [JN_PRINT] = exec_print,
    [JN_FOR] = exec_for,
    [JN_IF] = exec_if,
    [JN_SET] = exec_set,
    [JN_SET_BLOCK] = exec_set_block,
    [JN_MACRO] = exec_macro,
    [JN_CALL_BLOCK] = exec_call_block,
    [JN_FILTER_BLOCK] = exec_filter_block,
    [JN_WITH] = exec_with,
    [JN_SCOPE] = exec_scope,
    [JN_BREAK] = exec_jump,
    [JN_CONTINUE] = exec_jump,
};

int soq__jexec(struct jrun *r, const struct jnode *list)
{
    int rc = 0;

    if (!soq__jenter(r))
        return r->mem.rc;
    for (const struct jnode *n = list; n && !rc; n = n->next) {
        rc = soq__jstep(r, 1) ? executors[n->kind](r, n) : r->mem.rc;
        if (rc < 0 && !r->line)
            r->line = n->line;
    }
    soq__jleave(r);
    return rc;
}
