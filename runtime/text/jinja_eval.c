/* Expressions. */
#include <string.h>

#include "text/jinja_run.h"

static const struct jbuiltin_table *const functions[] = {&soq__jfunctions, NULL};

/* ---- names ---- */

static int undefined_name(struct jrun *r, const struct jstr *name, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem};

    soq__jb_puts(&b, "'");
    soq__jb_str(&b, name);
    soq__jb_puts(&b, "' is undefined");
    *out = (struct jvalue){.kind = J_UNDEFINED, .s = soq__jb_done(&b)};
    return r->mem.rc;
}

static int eval_name(struct jrun *r, const struct jstr *name, struct jvalue *out)
{
    const struct jbuiltin *fn;

    for (const struct jscope *s = r->scope; s; s = s->parent) {
        const struct jvalue *v = soq__jdict_get_name(&s->vars, name->p, name->n);

        if (v) {
            *out = *v;
            return 0;
        }
        if (!soq__jstep(r, s->vars.count / 16))
            return r->mem.rc;
    }
    fn = soq__jbuiltin_find(functions, name->p, name->n);
    if (!fn)
        return undefined_name(r, name, out);
    *out = (struct jvalue){.kind = J_FUNCTION, .function = fn};
    return 0;
}

bool soq__jset_name(struct jrun *r, const struct jstr *name, struct jvalue v)
{
    return soq__jstep(r, r->scope->vars.count / 16) && soq__jdict_set_name(&r->mem, &r->scope->vars, name, v);
}

/* ---- literals ---- */

static int eval_seq(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jseq *s = soq__jseq_new(&r->mem, 0);
    struct jvalue v;

    for (const struct jnode *i = n->items; s && i; i = i->next)
        if (soq__jeval(r, i, &v) || !soq__jseq_add(&r->mem, s, v))
            return r->mem.rc;
    *out = jv_seq(n->kind == JN_LIST ? J_LIST : J_TUPLE, s);
    return r->mem.rc;
}

static int eval_dict(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jdict *d = soq__jdict_new(&r->mem, 0);
    struct jvalue key, value;

    for (const struct jnode *i = n->items; d && i; i = i->next->next)
        if (soq__jeval(r, i, &key) || soq__jeval(r, i->next, &value) || soq__jdict_put(r, d, key, value))
            return r->mem.rc;
    *out = (struct jvalue){.kind = J_DICT, .dict = d};
    return r->mem.rc;
}

static int eval_concat(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max};
    struct jvalue v;

    for (const struct jnode *i = n->items; i; i = i->next) {
        if (soq__jeval(r, i, &v))
            return r->mem.rc;
        soq__jprint(r, &b, v);
    }
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

/* ---- access ---- */

static int eval_item(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    const struct jnode *key = n->item.key;
    struct jvalue of, bounds[3] = {{0}, {0}, {0}};

    if (soq__jeval(r, n->item.of, &of))
        return r->mem.rc;
    if (key->kind != JN_SLICE)
        return soq__jeval(r, key, &bounds[0]) ? r->mem.rc : soq__jget_item(r, of, bounds[0], out);
    if ((key->slice.start && soq__jeval(r, key->slice.start, &bounds[0])) ||
        (key->slice.stop && soq__jeval(r, key->slice.stop, &bounds[1])) ||
        (key->slice.step && soq__jeval(r, key->slice.step, &bounds[2])))
        return r->mem.rc;
    return soq__jget_slice(r, of, bounds, out);
}

static int eval_attr(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue of;

    return soq__jeval(r, n->attr.of, &of) ? r->mem.rc : soq__jget_attr(r, of, n->attr.name, out);
}

/* ---- calls ---- */

static int add_star(struct jrun *r, const struct jnode *star, struct jseq *positional)
{
    struct jseq *more = NULL;
    struct jvalue v;

    if (soq__jeval(r, star, &v) || soq__jlist_of(r, v, &more))
        return r->mem.rc;
    for (size_t i = 0; i < more->count; i++)
        if (!soq__jseq_add(&r->mem, positional, more->items[i]))
            return r->mem.rc;
    return 0;
}

static int add_star_star(struct jrun *r, const struct jnode *star, struct jdict *keywords)
{
    struct jvalue v;

    if (soq__jeval(r, star, &v))
        return r->mem.rc;
    if (v.kind != J_DICT)
        return soq__jfail_type(r, v, "passed as ** arguments");
    for (size_t i = 0; i < v.dict->count; i++) {
        const struct jpair *p = &v.dict->pairs[i];

        if (p->key.kind != J_STRING || soq__jdict_get_name(keywords, p->key.s->p, p->key.s->n))
            return soq__jfail(&r->mem, SOQ_EINVAL, "** arguments need distinct strings as keys");
        if (!soq__jdict_add(&r->mem, keywords, p->key, p->value))
            return r->mem.rc;
    }
    return 0;
}

int soq__jeval_args(struct jrun *r, const struct jnode_args *a, struct jargs *out)
{
    struct jseq *positional = soq__jseq_new(&r->mem, 0);
    struct jdict *keywords = a->keywords || a->star_star ? soq__jdict_new(&r->mem, 0) : NULL;
    struct jvalue v;

    for (const struct jnode *i = a->positional; i; i = i->next)
        if (soq__jeval(r, i, &v) || !soq__jseq_add(&r->mem, positional, v))
            return r->mem.rc;
    for (const struct jnode *i = a->keywords; i; i = i->next) {
        if (soq__jeval(r, i->param.value, &v))
            return r->mem.rc;
        if (!soq__jdict_add(&r->mem, keywords, jv_str(i->param.name), v))
            return r->mem.rc;
    }
    if (r->mem.rc || (a->star && add_star(r, a->star, positional)) ||
        (a->star_star && add_star_star(r, a->star_star, keywords)))
        return r->mem.rc;
    *out = (struct jargs){.positional = positional->items, .count = positional->count, .keywords = keywords};
    return 0;
}

/* What is called; here a missing function or method is reported with the nearest name. */
static int eval_callee(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue of;

    if (n->kind == JN_ATTR)
        return soq__jeval(r, n->attr.of, &of) ? r->mem.rc : soq__jget_method(r, of, n->attr.name, out);
    if (soq__jeval(r, n, out))
        return r->mem.rc;
    return n->kind == JN_NAME && out->kind == J_UNDEFINED ? soq__jbuiltin_unknown(&r->mem, functions, n->name) : 0;
}

static int eval_call(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue of;
    struct jargs args;

    if (eval_callee(r, n->call.of, &of) || soq__jeval_args(r, &n->call.args, &args))
        return r->mem.rc;
    return soq__jcall(r, of, &args, out);
}

/* A filter or test; `of` is the filtered or tested value. */
static int apply(struct jrun *r, const struct jnode *n, struct jvalue of, struct jvalue *out)
{
    struct jargs args;

    if (!n->call.fn)
        return soq__jbuiltin_unknown(&r->mem, n->kind == JN_FILTER ? soq__jfilters : soq__jtests, n->call.name);
    if (soq__jeval_args(r, &n->call.args, &args))
        return r->mem.rc;
    return soq__jbuiltin_call(r, n->call.fn, of, &args, out);
}

static int eval_applied(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue of;

    return soq__jeval(r, n->call.of, &of) ? r->mem.rc : apply(r, n, of, out);
}

/* The filters of a set or filter block, innermost first. */
int soq__jfilter_value(struct jrun *r, const struct jnode *filter, struct jvalue text, struct jvalue *out)
{
    int rc = 0;

    *out = text;
    if (!filter)
        return 0;
    if (!soq__jenter(r))
        return r->mem.rc;
    rc = soq__jfilter_value(r, filter->call.of, text, out);
    if (!rc)
        rc = apply(r, filter, *out, out);
    soq__jleave(r);
    return rc;
}

/* ---- operators ---- */

static int eval_binary(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue left, right;

    if (soq__jeval(r, n->binary.left, &left) || soq__jeval(r, n->binary.right, &right))
        return r->mem.rc;
    return soq__jbinary(r, n->binary.op, left, right, out);
}

static int eval_logic(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    if (soq__jeval(r, n->binary.left, out))
        return r->mem.rc;
    return soq__jtruth(*out) == (n->kind == JN_AND) ? soq__jeval(r, n->binary.right, out) : 0;
}

static int eval_not(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    if (soq__jeval(r, n->operand, out))
        return r->mem.rc;
    *out = jv_bool(!soq__jtruth(*out));
    return 0;
}

static int eval_sign(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue v;

    return soq__jeval(r, n->operand, &v) ? r->mem.rc : soq__jnegate(r, v, n->kind == JN_NEGATE, out);
}

/* a < b < c is a < b and b < c, each evaluated once. */
static int eval_compare(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue left, right;
    bool holds = true;

    if (soq__jeval(r, n->compare.first, &left))
        return r->mem.rc;
    for (const struct jnode *i = n->compare.rest; holds && i; i = i->next) {
        if (soq__jeval(r, i->binary.right, &right) || soq__jcompare(r, i->binary.op, left, right, &holds))
            return r->mem.rc;
        left = right;
    }
    *out = jv_bool(holds);
    return 0;
}

static int eval_cond(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    struct jvalue test;

    if (soq__jeval(r, n->cond.test, &test))
        return r->mem.rc;
    if (soq__jtruth(test))
        return soq__jeval(r, n->cond.yes, out);
    if (n->cond.no)
        return soq__jeval(r, n->cond.no, out);
    *out = (struct jvalue){.kind = J_UNDEFINED,
                           .s = soq__jstr_copy(&r->mem, "the inline if-expression was false and has no else")};
    return r->mem.rc;
}

static int eval_const(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    (void)r;
    *out = n->value;
    return 0;
}

static int eval_name_node(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    return eval_name(r, n->name, out);
}

typedef int eval_fn(struct jrun *r, const struct jnode *n, struct jvalue *out);

static eval_fn *const evaluators[] = {
    [JN_CONST] = eval_const,    [JN_NAME] = eval_name_node,  [JN_TUPLE] = eval_seq,     [JN_LIST] = eval_seq,
    [JN_DICT] = eval_dict,      [JN_ATTR] = eval_attr,       [JN_ITEM] = eval_item,     [JN_CALL] = eval_call,
    [JN_FILTER] = eval_applied, [JN_TEST] = eval_applied,    [JN_NEGATE] = eval_sign,   [JN_PLUS] = eval_sign,
    [JN_NOT] = eval_not,        [JN_BINARY] = eval_binary,   [JN_CONCAT] = eval_concat, [JN_AND] = eval_logic,
    [JN_OR] = eval_logic,       [JN_COMPARE] = eval_compare, [JN_COND] = eval_cond,
};

int soq__jeval(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    int rc;

    if (!soq__jstep(r, 1) || !soq__jenter(r)) {
        r->line = r->line ? r->line : n->line;
        return r->mem.rc;
    }
    rc = evaluators[n->kind](r, n, out);
    soq__jleave(r);
    if (rc && !r->line)
        r->line = n->line;
    return rc;
}
