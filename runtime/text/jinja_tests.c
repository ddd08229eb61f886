/* Tests: what stands behind `is`. */
#include <string.h>

#include "text/jinja_run.h"
#include "text/jinja_unicode.h"

#define KIND_TEST(name, condition)                                                                                             \
    static int name(struct jrun *r, const struct jcall *c, struct jvalue *out)                                                 \
    {                                                                                                                          \
        const struct jvalue v = c->self;                                                                                       \
                                                                                                                               \
        (void)r;                                                                                                               \
        *out = jv_bool(condition);                                                                                             \
        return 0;                                                                                                              \
    }

KIND_TEST(is_defined, v.kind != J_UNDEFINED)
KIND_TEST(is_undefined, v.kind == J_UNDEFINED)
KIND_TEST(is_none, v.kind == J_NONE)
KIND_TEST(is_boolean, v.kind == J_BOOL)
KIND_TEST(is_true, v.kind == J_BOOL && v.b)
KIND_TEST(is_false, v.kind == J_BOOL && !v.b)
KIND_TEST(is_integer, v.kind == J_INT)
KIND_TEST(is_float, v.kind == J_FLOAT)
KIND_TEST(is_number, jv_is_number(v))
KIND_TEST(is_string, v.kind == J_STRING)
KIND_TEST(is_mapping, v.kind == J_DICT)
KIND_TEST(is_sequence, v.kind == J_STRING || v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_DICT || v.kind == J_RANGE ||
                           v.kind == J_UNDEFINED)
KIND_TEST(is_iterable, v.kind == J_STRING || jv_is_seq(v) || v.kind == J_DICT || v.kind == J_RANGE || v.kind == J_UNDEFINED ||
                           v.kind == J_LOOP)
KIND_TEST(is_callable, v.kind == J_FUNCTION || v.kind == J_METHOD || v.kind == J_MACRO || v.kind == J_JOINER ||
                           v.kind == J_UNDEFINED || v.kind == J_LOOP)
KIND_TEST(is_escaped, v.kind == J_STRING && v.s->markup)

/* Whether v % by is `rest`. */
static int remainder_is(struct jrun *r, struct jvalue v, struct jvalue by, int64_t rest, struct jvalue *out)
{
    struct jvalue m;
    bool equal;

    if (soq__jbinary(r, JOP_MOD, v, by, &m) || soq__jequal(r, m, jv_int(rest), &equal))
        return r->mem.rc;
    *out = jv_bool(equal);
    return 0;
}

static int is_odd(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return remainder_is(r, c->self, jv_int(2), 1, out);
}

static int is_even(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return remainder_is(r, c->self, jv_int(2), 0, out);
}

static int is_divisibleby(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return remainder_is(r, c->self, c->arg[0], 0, out);
}

/* At least one cased character, and none of the other case. */
static int is_case(struct jrun *r, const struct jcall *c, bool lower, struct jvalue *out)
{
    const struct jstr *s = soq__jto_str(r, c->self);
    bool any = false, other = false;
    struct jiter it = {.s = s};
    struct jchar ch;

    while (s && soq__jiter_next(&it, &ch)) {
        any |= soq__ju_cased(ch.cp);
        other |= soq__ju_cased(ch.cp) && !(lower ? soq__ju_lower(ch.cp) : soq__ju_upper(ch.cp));
    }
    *out = jv_bool(any && !other);
    return r->mem.rc;
}

static int is_lower(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return is_case(r, c, true, out);
}

static int is_upper(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return is_case(r, c, false, out);
}

static int is_sameas(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jvalue a = c->self, b = c->arg[0];
    bool same = a.kind == b.kind;

    if (same && (a.kind == J_BOOL || a.kind == J_INT || a.kind == J_FLOAT || a.kind == J_STRING))
        return soq__jequal(r, a, b, &same) ? r->mem.rc : (*out = jv_bool(same), 0);
    *out = jv_bool(same && (a.kind == J_NONE || a.kind == J_UNDEFINED || a.seq == b.seq));
    return 0;
}

static int compare(struct jrun *r, const struct jcall *c, enum jop op, struct jvalue *out)
{
    bool holds = false;
    int rc = soq__jcompare(r, op, c->self, c->arg[0], &holds);

    *out = jv_bool(holds);
    return rc;
}

#define COMPARE_TEST(name, op)                                                                                                 \
    static int name(struct jrun *r, const struct jcall *c, struct jvalue *out)                                                 \
    {                                                                                                                          \
        return compare(r, c, op, out);                                                                                         \
    }

COMPARE_TEST(is_eq, JOP_EQ)
COMPARE_TEST(is_ne, JOP_NE)
COMPARE_TEST(is_lt, JOP_LT)
COMPARE_TEST(is_le, JOP_LE)
COMPARE_TEST(is_gt, JOP_GT)
COMPARE_TEST(is_ge, JOP_GE)
COMPARE_TEST(is_in, JOP_IN)

static int is_known(const struct jcall *c, const struct jbuiltin_table *const *tables, struct jvalue *out)
{
    *out = jv_bool(c->self.kind == J_STRING && soq__jbuiltin_find(tables, c->self.s->p, c->self.s->n));
    return 0;
}

static int is_filter(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    (void)r;
    return is_known(c, soq__jfilters, out);
}

static int is_test(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    (void)r;
    return is_known(c, soq__jtests, out);
}

#define OTHER .params = {"other"}, .required = 1

static const struct jbuiltin table[] = {
    {.name = "defined", .fn = is_defined},
    {.name = "undefined", .fn = is_undefined},
    {.name = "none", .fn = is_none},
    {.name = "boolean", .fn = is_boolean},
    {.name = "true", .fn = is_true},
    {.name = "false", .fn = is_false},
    {.name = "integer", .fn = is_integer},
    {.name = "float", .fn = is_float},
    {.name = "number", .fn = is_number},
    {.name = "string", .fn = is_string},
    {.name = "mapping", .fn = is_mapping},
    {.name = "sequence", .fn = is_sequence},
    {.name = "iterable", .fn = is_iterable},
    {.name = "callable", .fn = is_callable},
    {.name = "escaped", .fn = is_escaped},
    {.name = "odd", .fn = is_odd},
    {.name = "even", .fn = is_even},
    {.name = "divisibleby", .fn = is_divisibleby, .params = {"num"}, .required = 1},
    {.name = "lower", .fn = is_lower},
    {.name = "upper", .fn = is_upper},
    {.name = "sameas", .fn = is_sameas, OTHER},
    {.name = "in", .fn = is_in, .params = {"seq"}, .required = 1},
    {.name = "filter", .fn = is_filter},
    {.name = "test", .fn = is_test},
    {.name = "==", .fn = is_eq, OTHER},
    {.name = "eq", .fn = is_eq, OTHER},
    {.name = "equalto", .fn = is_eq, OTHER},
    {.name = "!=", .fn = is_ne, OTHER},
    {.name = "ne", .fn = is_ne, OTHER},
    {.name = "<", .fn = is_lt, OTHER},
    {.name = "lt", .fn = is_lt, OTHER},
    {.name = "lessthan", .fn = is_lt, OTHER},
    {.name = "<=", .fn = is_le, OTHER},
    {.name = "le", .fn = is_le, OTHER},
    {.name = ">", .fn = is_gt, OTHER},
    {.name = "gt", .fn = is_gt, OTHER},
    {.name = "greaterthan", .fn = is_gt, OTHER},
    {.name = ">=", .fn = is_ge, OTHER},
    {.name = "ge", .fn = is_ge, OTHER},
};

const struct jbuiltin_table soq__jtests_all = {.what = "test", .items = table, .count = JTABLE_COUNT(table)};
