/* Expressions: jinja2's grammar by recursive descent, one function per level of precedence. */
#include <string.h>

#include "text/jinja_run.h"

static struct jnode *parse_or(struct jparser *p);
static struct jnode *parse_unary(struct jparser *p, bool with_filter);

static bool at_op(const struct jparser *p, const char *text)
{
    return soq__jtoken_is(p->at, JT_OPERATOR, text);
}

static bool at_name(const struct jparser *p, const char *text)
{
    return soq__jtoken_is(p->at, JT_NAME, text);
}

static bool expect_op(struct jparser *p, const char *text)
{
    return soq__jparse_expect(p, JT_OPERATOR, text);
}

/* ---- literals and names ---- */

static struct jnode *constant(struct jparser *p, uint32_t line, struct jvalue v)
{
    struct jnode *n = soq__jparse_node(p, JN_CONST, line);

    if (n)
        n->value = v;
    return n;
}

static struct jnode *parse_name(struct jparser *p)
{
    static const struct {
        const char *name;
        enum jkind kind;
        bool b;
    } words[] = {{"true", J_BOOL, true},   {"True", J_BOOL, true},  {"false", J_BOOL, false},
                 {"False", J_BOOL, false}, {"none", J_NONE, false}, {"None", J_NONE, false}};
    const struct jtoken *t = p->at++;
    struct jnode *n;

    for (size_t i = 0; i < JTABLE_COUNT(words); i++)
        if (jstr_is(&t->text, words[i].name, strlen(words[i].name)))
            return constant(p, t->line, (struct jvalue){.kind = words[i].kind, .b = words[i].b});
    for (struct jnode *m = p->macro; m; m = m->next) {
        m->macro.uses_caller |= jstr_is(&t->text, "caller", 6);
        m->macro.uses_varargs |= jstr_is(&t->text, "varargs", 7);
        m->macro.uses_kwargs |= jstr_is(&t->text, "kwargs", 6);
    }
    n = soq__jparse_node(p, JN_NAME, t->line);
    if (n && !(n->name = soq__jparse_name(p, &t->text)))
        return NULL;
    return n;
}

/* Adjacent string literals are one. */
static struct jnode *parse_string(struct jparser *p)
{
    uint32_t line = p->at->line;
    struct jbuild b = {.m = p->m};
    const struct jstr *s;

    if (p->at[1].type != JT_STRING) {
        s = soq__jparse_name(p, &p->at++->text);
    } else {
        while (p->at->type == JT_STRING)
            soq__jb_str(&b, &p->at++->text);
        s = soq__jb_done(&b);
    }
    return s ? constant(p, line, jv_str(s)) : NULL;
}

/* Items up to the closing bracket, with a trailing comma allowed; `pairs`: key: value. */
static struct jnode *parse_bracketed(struct jparser *p, enum jnode_kind kind, const char *close, bool pairs)
{
    struct jnode *n = soq__jparse_node(p, kind, p->at->line), **end = n ? &n->items : NULL;

    p->at++;
    while (n && !at_op(p, close)) {
        if (n->items && (!expect_op(p, ",") || at_op(p, close)))
            break;
        *end = soq__jparse_expression(p);
        if (*end && pairs) {
            end = &(*end)->next;
            *end = expect_op(p, ":") ? soq__jparse_expression(p) : NULL;
        }
        if (!*end)
            return NULL;
        end = &(*end)->next;
    }
    return n && expect_op(p, close) ? n : NULL;
}

static struct jnode *parse_primary(struct jparser *p)
{
    const struct jtoken *t = p->at;
    struct jnode *n;

    switch (t->type) {
    case JT_NAME:
        return parse_name(p);
    case JT_STRING:
        return parse_string(p);
    case JT_INTEGER:
        p->at++;
        return constant(p, t->line, jv_int(t->i));
    case JT_FLOAT:
        p->at++;
        return constant(p, t->line, jv_float(t->f));
    default:
        break;
    }
    if (at_op(p, "[") || at_op(p, "{"))
        return at_op(p, "[") ? parse_bracketed(p, JN_LIST, "]", false) : parse_bracketed(p, JN_DICT, "}", true);
    if (at_op(p, "(")) {
        p->at++;
        n = soq__jparse_tuple(p, JTUPLE_COND | JTUPLE_PARENS, NULL);
        return n && expect_op(p, ")") ? n : NULL;
    }
    soq__jparse_unexpected(p, "an expression");
    return NULL;
}

static bool at_tuple_end(const struct jparser *p, const char *end_name)
{
    return p->at->type == JT_VAR_CLOSE || p->at->type == JT_BLOCK_CLOSE || at_op(p, ")") || (end_name && at_name(p, end_name));
}

struct jnode *soq__jparse_tuple(struct jparser *p, unsigned mode, const char *end_name)
{
    struct jnode *tuple = soq__jparse_node(p, JN_TUPLE, p->at->line), **end = tuple ? &tuple->items : NULL;
    bool is_tuple = false;

    while (tuple && !at_tuple_end(p, end_name)) {
        *end = mode & JTUPLE_SIMPLE ? parse_primary(p) : mode & JTUPLE_COND ? soq__jparse_expression(p) : parse_or(p);
        if (!*end)
            return NULL;
        end = &(*end)->next;
        if (!at_op(p, ","))
            break;
        is_tuple = true;
        p->at++;
    }
    if (!tuple || is_tuple)
        return tuple;
    if (tuple->items)
        return tuple->items;
    if (mode & JTUPLE_PARENS)
        return tuple;
    soq__jparse_unexpected(p, "an expression");
    return NULL;
}

/* ---- postfix: attributes, items, calls, filters, tests ---- */

/* One of start : stop : step, absent before a colon, "]" or ",". */
static bool parse_bound(struct jparser *p, struct jnode **out)
{
    if (at_op(p, ":") || at_op(p, "]") || at_op(p, ","))
        return true;
    *out = soq__jparse_expression(p);
    return *out != NULL;
}

static struct jnode *parse_subscribed(struct jparser *p)
{
    uint32_t line = p->at->line;
    struct jnode *start = NULL, *n;

    if (!at_op(p, ":")) {
        start = soq__jparse_expression(p);
        if (!start || !at_op(p, ":"))
            return start;
    }
    p->at++;
    n = soq__jparse_node(p, JN_SLICE, line);
    if (!n)
        return NULL;
    n->slice.start = start;
    if (!parse_bound(p, &n->slice.stop))
        return NULL;
    if (at_op(p, ":")) {
        p->at++;
        if (!parse_bound(p, &n->slice.step))
            return NULL;
    }
    return n;
}

static struct jnode *parse_item(struct jparser *p, struct jnode *of, uint32_t line)
{
    struct jnode *n = soq__jparse_node(p, JN_ITEM, line), *tuple = soq__jparse_node(p, JN_TUPLE, line);
    struct jnode **end = tuple ? &tuple->items : NULL;

    while (n && tuple && !at_op(p, "]")) {
        if (tuple->items && !expect_op(p, ","))
            return NULL;
        *end = parse_subscribed(p);
        if (!*end)
            return NULL;
        if (tuple->items->next && ((*end)->kind == JN_SLICE || tuple->items->kind == JN_SLICE)) {
            soq__jparse_fail(p, line, "slices in several dimensions are not supported");
            return NULL;
        }
        end = &(*end)->next;
    }
    if (!n || !tuple || !expect_op(p, "]"))
        return NULL;
    n->item.of = of;
    n->item.key = tuple->items && !tuple->items->next ? tuple->items : tuple;
    return n;
}

static struct jnode *parse_subscript(struct jparser *p, struct jnode *of)
{
    uint32_t line = p->at->line;
    const struct jtoken *t;
    struct jnode *n;

    if (at_op(p, "[")) {
        p->at++;
        return parse_item(p, of, line);
    }
    t = ++p->at;
    if (t->type == JT_INTEGER) {
        p->at++;
        n = soq__jparse_node(p, JN_ITEM, line);
        if (n) {
            n->item.of = of;
            n->item.key = constant(p, line, jv_int(t->i));
        }
        return n && n->item.key ? n : NULL;
    }
    if (t->type != JT_NAME) {
        soq__jparse_unexpected(p, "a name or number");
        return NULL;
    }
    p->at++;
    n = soq__jparse_node(p, JN_ATTR, line);
    if (!n || !(n->attr.name = soq__jparse_name(p, &t->text)))
        return NULL;
    n->attr.of = of;
    return n;
}

static struct jnode *keyword_argument(struct jparser *p)
{
    struct jnode *n = soq__jparse_node(p, JN_PARAM, p->at->line);

    if (!n || !(n->param.name = soq__jparse_name(p, &p->at->text)))
        return NULL;
    p->at += 2;
    n->param.value = soq__jparse_expression(p);
    return n->param.value ? n : NULL;
}

/* One argument: x, name=x, *x or **x, in this order only. */
static bool parse_argument(struct jparser *p, struct jnode_args *a, struct jnode ***positional, struct jnode ***keyword)
{
    bool keyword_ahead = p->at->type == JT_NAME && soq__jtoken_is(p->at + 1, JT_OPERATOR, "=");
    bool star = at_op(p, "*"), star_star = at_op(p, "**");
    struct jnode **to = star ? &a->star : star_star ? &a->star_star : keyword_ahead ? *keyword : *positional;

    if (a->star_star || (a->star && !star_star && !keyword_ahead) || (a->keywords && !keyword_ahead && !star && !star_star)) {
        soq__jparse_fail(p, p->at->line, "this argument cannot stand after keyword or * arguments");
        return false;
    }
    for (const struct jnode *k = a->keywords; keyword_ahead && k; k = k->next) {
        if (jstr_same(k->param.name, &p->at->text)) {
            soq__jparse_fail(p, p->at->line, "an argument is passed twice");
            return false;
        }
    }
    p->at += star || star_star;
    *to = keyword_ahead ? keyword_argument(p) : soq__jparse_expression(p);
    if (!*to)
        return false;
    if (to == *keyword)
        *keyword = &(*to)->next;
    else if (to == *positional)
        *positional = &(*to)->next;
    return true;
}

static bool parse_args(struct jparser *p, struct jnode_args *a)
{
    struct jnode **positional = &a->positional, **keyword = &a->keywords;
    bool any = false;

    p->at++;
    while (!at_op(p, ")")) {
        if (any && !expect_op(p, ","))
            return false;
        if (any && at_op(p, ")"))
            break;
        if (!parse_argument(p, a, &positional, &keyword))
            return false;
        any = true;
    }
    return expect_op(p, ")");
}

static struct jnode *parse_call(struct jparser *p, struct jnode *of)
{
    struct jnode *n = soq__jparse_node(p, JN_CALL, p->at->line);

    if (!n || !parse_args(p, &n->call.args))
        return NULL;
    n->call.of = of;
    return n;
}

static struct jnode *parse_postfix(struct jparser *p, struct jnode *n)
{
    while (n && (at_op(p, ".") || at_op(p, "[") || at_op(p, "(")))
        n = at_op(p, "(") ? parse_call(p, n) : parse_subscript(p, n);
    return n;
}

/* The name of a filter or test and its table entry. Unknown ones are an error at once, except where an `if` may avoid them. */
static bool parse_builtin(struct jparser *p, struct jnode *n, const struct jbuiltin_table *const *tables)
{
    const struct jtoken *t = p->at;

    if (t->type != JT_NAME) {
        soq__jparse_unexpected(p, "a name");
        return false;
    }
    p->at++;
    n->call.name = soq__jparse_name(p, &t->text);
    n->call.fn = soq__jbuiltin_find(tables, t->text.p, t->text.n);
    while (at_op(p, ".")) { /* names may have dots; none that is known has */
        p->at++;
        n->call.fn = NULL;
        if (!soq__jparse_expect(p, JT_NAME, NULL))
            return false;
    }
    if (n->call.fn || p->conditional || p->m->rc)
        return p->m->rc == 0;
    soq__jbuiltin_unknown(p->m, tables, &t->text);
    soq__fail_prefix(p->m->err, "template line %u", t->line);
    return false;
}

static struct jnode *parse_filter(struct jparser *p, struct jnode *of)
{
    struct jnode *n = soq__jparse_node(p, JN_FILTER, p->at->line);

    if (!n || !parse_builtin(p, n, soq__jfilters))
        return NULL;
    n->call.of = of;
    return !at_op(p, "(") || parse_args(p, &n->call.args) ? n : NULL;
}

struct jnode *soq__jparse_filters(struct jparser *p, struct jnode *of, bool first_without_pipe)
{
    struct jnode *n = of;

    if (first_without_pipe && !(n = parse_filter(p, n)))
        return NULL;
    while (at_op(p, "|")) {
        p->at++;
        n = parse_filter(p, n);
        if (!n)
            return NULL;
    }
    return n;
}

static bool at_bare_test_argument(const struct jparser *p)
{
    switch (p->at->type) {
    case JT_NAME:
        return !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and");
    case JT_STRING:
    case JT_INTEGER:
    case JT_FLOAT:
        return true;
    default:
        return at_op(p, "[") || at_op(p, "{");
    }
}

static struct jnode *parse_test(struct jparser *p, struct jnode *of)
{
    struct jnode *n = soq__jparse_node(p, JN_TEST, p->at->line), *negated;
    bool negate;

    p->at++;
    negate = soq__jparse_skip(p, JT_NAME, "not");
    if (!n || !parse_builtin(p, n, soq__jtests))
        return NULL;
    n->call.of = of;
    if (at_op(p, "(")) {
        if (!parse_args(p, &n->call.args))
            return NULL;
    } else if (at_bare_test_argument(p)) {
        if (at_name(p, "is")) {
            soq__jparse_fail(p, p->at->line, "tests with `is` cannot be chained");
            return NULL;
        }
        n->call.args.positional = parse_postfix(p, parse_primary(p));
        if (!n->call.args.positional)
            return NULL;
    }
    if (!negate)
        return n;
    negated = soq__jparse_node(p, JN_NOT, n->line);
    if (negated)
        negated->operand = n;
    return negated;
}

static struct jnode *parse_filter_expr(struct jparser *p, struct jnode *n)
{
    while (n) {
        if (at_op(p, "|"))
            n = soq__jparse_filters(p, n, false);
        else if (at_name(p, "is"))
            n = parse_test(p, n);
        else if (at_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* ---- operators, from the tightest ---- */

static struct jnode *parse_signed(struct jparser *p)
{
    struct jnode *n = soq__jparse_node(p, at_op(p, "-") ? JN_NEGATE : JN_PLUS, p->at->line);

    p->at++;
    if (!n || !soq__jparse_enter(p))
        return NULL;
    n->operand = parse_unary(p, false);
    soq__jparse_leave(p);
    return n->operand ? n : NULL;
}

static struct jnode *parse_unary(struct jparser *p, bool with_filter)
{
    struct jnode *n = at_op(p, "-") || at_op(p, "+") ? parse_signed(p) : parse_primary(p);

    n = parse_postfix(p, n);
    return with_filter ? parse_filter_expr(p, n) : n;
}

struct operator
{
    const char *text;
    enum jop op;
};

static const struct operator* find_operator(const struct jparser *p, const struct operator* ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (at_op(p, ops[i].text))
            return &ops[i];
    return NULL;
}

static struct jnode *binary(struct jparser *p, enum jnode_kind kind, enum jop op, struct jnode *left, struct jnode *right)
{
    struct jnode *n = right ? soq__jparse_node(p, kind, right->line) : NULL;

    if (n) {
        n->binary.op = op;
        n->binary.left = left;
        n->binary.right = right;
    }
    return n;
}

static struct jnode *parse_pow(struct jparser *p)
{
    struct jnode *n = parse_unary(p, true);

    while (n && at_op(p, "**")) {
        p->at++;
        n = binary(p, JN_BINARY, JOP_POW, n, parse_unary(p, true));
    }
    return n;
}

static struct jnode *parse_product(struct jparser *p)
{
    static const struct operator ops[] = {{"*", JOP_MUL}, {"/", JOP_DIV}, {"//", JOP_FLOORDIV}, {"%", JOP_MOD}};
    struct jnode *n = parse_pow(p);
    const struct operator* o;

    while (n && (o = find_operator(p, ops, JTABLE_COUNT(ops)))) {
        p->at++;
        n = binary(p, JN_BINARY, o->op, n, parse_pow(p));
    }
    return n;
}

static struct jnode *parse_concat(struct jparser *p)
{
    struct jnode *first = parse_product(p), *n, **end;

    if (!first || !at_op(p, "~"))
        return first;
    n = soq__jparse_node(p, JN_CONCAT, first->line);
    if (!n)
        return NULL;
    n->items = first;
    end = &first->next;
    while (at_op(p, "~")) {
        p->at++;
        *end = parse_product(p);
        if (!*end)
            return NULL;
        end = &(*end)->next;
    }
    return n;
}

static struct jnode *parse_sum(struct jparser *p)
{
    static const struct operator ops[] = {{"+", JOP_ADD}, {"-", JOP_SUB}};
    struct jnode *n = parse_concat(p);
    const struct operator* o;

    while (n && (o = find_operator(p, ops, JTABLE_COUNT(ops)))) {
        p->at++;
        n = binary(p, JN_BINARY, o->op, n, parse_concat(p));
    }
    return n;
}

static bool comparison_ahead(struct jparser *p, enum jop *op_out)
{
    static const struct operator ops[] = {{"==", JOP_EQ}, {"!=", JOP_NE}, {"<", JOP_LT},
                                          {"<=", JOP_LE}, {">", JOP_GT},  {">=", JOP_GE}};
    const struct operator* o = find_operator(p, ops, JTABLE_COUNT(ops));

    if (o) {
        *op_out = o->op;
        p->at++;
        return true;
    }
    *op_out = at_name(p, "in") ? JOP_IN : JOP_NOT_IN;
    if (*op_out == JOP_NOT_IN && !(at_name(p, "not") && soq__jtoken_is(p->at + 1, JT_NAME, "in")))
        return false;
    p->at += *op_out == JOP_IN ? 1 : 2;
    return true;
}

static struct jnode *parse_compare(struct jparser *p)
{
    struct jnode *first = parse_sum(p), *n, **end;
    enum jop op;

    if (!first || !comparison_ahead(p, &op))
        return first;
    n = soq__jparse_node(p, JN_COMPARE, first->line);
    if (!n)
        return NULL;
    n->compare.first = first;
    end = &n->compare.rest;
    do {
        *end = binary(p, JN_BINARY, op, NULL, parse_sum(p));
        if (!*end)
            return NULL;
        end = &(*end)->next;
    } while (comparison_ahead(p, &op));
    return n;
}

static struct jnode *parse_not(struct jparser *p)
{
    struct jnode *n;

    if (!at_name(p, "not"))
        return parse_compare(p);
    n = soq__jparse_node(p, JN_NOT, p->at->line);
    p->at++;
    if (!n || !soq__jparse_enter(p))
        return NULL;
    n->operand = parse_not(p);
    soq__jparse_leave(p);
    return n->operand ? n : NULL;
}

static struct jnode *parse_and(struct jparser *p)
{
    struct jnode *n = parse_not(p);

    while (n && soq__jparse_skip(p, JT_NAME, "and"))
        n = binary(p, JN_AND, JOP_EQ, n, parse_not(p));
    return n;
}

static struct jnode *parse_or(struct jparser *p)
{
    struct jnode *n = parse_and(p);

    while (n && soq__jparse_skip(p, JT_NAME, "or"))
        n = binary(p, JN_OR, JOP_EQ, n, parse_and(p));
    return n;
}

static struct jnode *parse_cond(struct jparser *p)
{
    struct jnode *yes = parse_or(p), *n;

    while (yes && at_name(p, "if")) {
        n = soq__jparse_node(p, JN_COND, p->at->line);
        p->at++;
        if (!n || !(n->cond.test = parse_or(p)))
            return NULL;
        n->cond.yes = yes;
        if (soq__jparse_skip(p, JT_NAME, "else") && !(n->cond.no = soq__jparse_expression(p)))
            return NULL;
        yes = n;
    }
    return yes;
}

struct jnode *soq__jparse_expression(struct jparser *p)
{
    struct jnode *n;

    if (!soq__jparse_enter(p))
        return NULL;
    n = parse_cond(p);
    soq__jparse_leave(p);
    return n;
}
