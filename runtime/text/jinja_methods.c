/* Methods of str that ask something, and the methods of dict, list and tuple. */
#include <string.h>

#include "text/jinja_run.h"
#include "text/jinja_unicode.h"

/* Present in Python, forbidden in jinja2's immutable sandbox. */
const struct jmutator soq__jmutators[] = {
    {J_LIST, "append"}, {J_LIST, "extend"}, {J_LIST, "insert"},     {J_LIST, "remove"}, {J_LIST, "reverse"},
    {J_LIST, "sort"},   {J_LIST, "pop"},    {J_LIST, "clear"},      {J_DICT, "pop"},    {J_DICT, "popitem"},
    {J_DICT, "clear"},  {J_DICT, "update"}, {J_DICT, "setdefault"}, {J_NONE, NULL},
};

/* ---- searching in strings ---- */

/* Bytes [from, to) that the arguments `start` and `end` of a search select, and the character at `from`. */
struct window {
    size_t from, to;
    int64_t first;
    bool empty; /* start lies behind the end */
};

static int window(struct jrun *r, const struct jcall *c, unsigned start_arg, struct window *w)
{
    const struct jstr *s = c->self.s;
    int64_t chars = (int64_t)soq__jstr_chars(s), start, end;
    struct jcall given = *c;

    for (unsigned i = start_arg; i < start_arg + 2; i++)
        if (given.arg[i].kind == J_NONE)
            given.arg[i].kind = J_OMITTED;
    if (soq__jarg_int(r, &given, start_arg, 0, &start) || soq__jarg_int(r, &given, start_arg + 1, chars, &end))
        return r->mem.rc;
    if (start < 0)
        start = start < -chars ? 0 : start + chars;
    if (end < 0)
        end = end < -chars ? 0 : end + chars;
    if (end > chars)
        end = chars;
    w->empty = start > end;
    w->first = start;
    w->from = w->empty ? 0 : soq__jstr_offset(s, (size_t)start);
    w->to = w->empty ? 0 : soq__jstr_offset(s, (size_t)end);
    return 0;
}

static int find_from(struct jrun *r, const struct jcall *c, bool right, struct jvalue *out)
{
    const struct jstr *needle, *s = c->self.s;
    struct window w;
    size_t at;

    if (soq__jarg_str(r, c, 0, &needle) || window(r, c, 1, &w))
        return r->mem.rc;
    if (right && !soq__jstep(r, s->n / 16))
        return r->mem.rc;
    at = w.empty ? SIZE_MAX : right ? soq__jstr_rfind(s, needle, w.from, w.to) : soq__jstr_find(s, needle, w.from, w.to);
    *out =
        jv_int(at == SIZE_MAX ? -1 : w.first + (int64_t)soq__jstr_chars(&(struct jstr){.p = s->p + w.from, .n = at - w.from}));
    return 0;
}

static int find(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return find_from(r, c, false, out);
}

static int rfind(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return find_from(r, c, true, out);
}

static int found(struct jrun *r, int rc, const struct jvalue *out)
{
    return rc == 0 && out->i < 0 ? soq__jfail(&r->mem, SOQ_EINVAL, "substring not found") : rc;
}

static int index_of(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return found(r, find_from(r, c, false, out), out);
}

static int rindex_of(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return found(r, find_from(r, c, true, out), out);
}

static int count(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *needle;
    struct window w;
    int64_t n = 0;

    if (soq__jarg_str(r, c, 0, &needle) || window(r, c, 1, &w))
        return r->mem.rc;
    if (needle->n == 0)
        n = w.empty ? 0 : 1 + (int64_t)soq__jstr_chars(&(struct jstr){.p = c->self.s->p + w.from, .n = w.to - w.from});
    while (!w.empty && needle->n && soq__jstep(r, 1)) {
        size_t at = soq__jstr_find(c->self.s, needle, w.from, w.to);

        if (at == SIZE_MAX)
            break;
        n++;
        w.from = at + needle->n;
    }
    *out = jv_int(n);
    return r->mem.rc;
}

/* startswith and endswith: `what` is a string or a tuple of them. */
static int matches(struct jrun *r, const struct jcall *c, bool at_end, struct jvalue *out)
{
    struct jvalue one = c->arg[0];
    struct jseq single = {.items = &one, .count = 1}, *all = one.kind == J_TUPLE ? one.seq : &single;
    struct window w;
    bool yes = false;

    if (window(r, c, 1, &w))
        return r->mem.rc;
    for (size_t i = 0; i < all->count && !yes; i++) {
        const struct jstr *s = all->items[i].s;

        if (all->items[i].kind != J_STRING)
            return soq__jfail_type(r, all->items[i], "looked for at an end of a string");
        yes = !w.empty && s->n <= w.to - w.from && memcmp(c->self.s->p + (at_end ? w.to - s->n : w.from), s->p, s->n) == 0;
    }
    *out = jv_bool(yes);
    return 0;
}

static int startswith(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return matches(r, c, false, out);
}

static int endswith(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return matches(r, c, true, out);
}

/* ---- classes of characters ---- */

static int all_are(const struct jcall *c, bool (*is)(uint32_t cp), struct jvalue *out)
{
    struct jiter it = {.s = c->self.s};
    bool yes = c->self.s->n > 0;
    struct jchar ch;

    while (yes && soq__jiter_next(&it, &ch))
        yes = is(ch.cp);
    *out = jv_bool(yes);
    return 0;
}

static bool is_alnum(uint32_t cp)
{
    return soq__ju_alpha(cp) || soq__ju_numeric(cp);
}

static bool is_ascii(uint32_t cp)
{
    return cp < 0x80;
}

#define CLASS_METHOD(name, is)                                                                                                 \
    static int name(struct jrun *r, const struct jcall *c, struct jvalue *out)                                                 \
    {                                                                                                                          \
        (void)r;                                                                                                               \
        return all_are(c, is, out);                                                                                            \
    }

CLASS_METHOD(isalpha_method, soq__ju_alpha)
CLASS_METHOD(isalnum_method, is_alnum)
CLASS_METHOD(isdigit_method, soq__ju_digit)
CLASS_METHOD(isdecimal, soq__ju_decimal)
CLASS_METHOD(isnumeric, soq__ju_numeric)
CLASS_METHOD(isspace_method, soq__ju_space)

static int isascii_method(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    (void)r;
    all_are(c, is_ascii, out);
    out->b |= c->self.s->n == 0;
    return 0;
}

static int is_case(struct jrun *r, const struct jcall *c, const char *test, struct jvalue *out)
{
    static const struct jargs none;

    return soq__jbuiltin_call(r, soq__jbuiltin_find(soq__jtests, test, strlen(test)), c->self, &none, out);
}

static int islower_method(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return is_case(r, c, "lower", out);
}

static int isupper_method(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return is_case(r, c, "upper", out);
}

#define SEARCH .params = {"sub", "start", "end"}, .required = 1

static const struct jbuiltin str_table[] = {
    {.name = "find", .fn = find, SEARCH},         {.name = "rfind", .fn = rfind, SEARCH},
    {.name = "index", .fn = index_of, SEARCH},    {.name = "rindex", .fn = rindex_of, SEARCH},
    {.name = "count", .fn = count, SEARCH},       {.name = "startswith", .fn = startswith, SEARCH},
    {.name = "endswith", .fn = endswith, SEARCH}, {.name = "isalpha", .fn = isalpha_method},
    {.name = "isalnum", .fn = isalnum_method},    {.name = "isdigit", .fn = isdigit_method},
    {.name = "isdecimal", .fn = isdecimal},       {.name = "isnumeric", .fn = isnumeric},
    {.name = "isspace", .fn = isspace_method},    {.name = "isascii", .fn = isascii_method},
    {.name = "islower", .fn = islower_method},    {.name = "isupper", .fn = isupper_method},
};

const struct jbuiltin_table soq__jstr_more_methods = {
    .what = "method of str", .items = str_table, .count = JTABLE_COUNT(str_table)};

/* ---- dict ---- */

static int get(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jpair *p;

    if (soq__jdict_find(r, c->self.dict, c->arg[0], &p))
        return r->mem.rc;
    *out = p ? p->value : c->arg[1].kind == J_OMITTED ? jv_none() : c->arg[1];
    return 0;
}

static struct jseq *view(struct jrun *r, const struct jdict *d, const char *type)
{
    struct jseq *s = soq__jseq_new(&r->mem, d->count);

    if (s)
        s->type = type;
    return s && soq__jstep(r, d->count) ? s : NULL;
}

static int keys(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = view(r, c->self.dict, "dict_keys");

    for (size_t i = 0; s && i < c->self.dict->count; i++)
        s->items[s->count++] = c->self.dict->pairs[i].key;
    *out = jv_seq(J_VIEW, s);
    return r->mem.rc;
}

static int values(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = view(r, c->self.dict, "dict_values");

    for (size_t i = 0; s && i < c->self.dict->count; i++)
        s->items[s->count++] = c->self.dict->pairs[i].value;
    *out = jv_seq(J_VIEW, s);
    return r->mem.rc;
}

static int items(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = view(r, c->self.dict, "dict_items");

    for (size_t i = 0; s && i < c->self.dict->count; i++) {
        struct jseq *pair = soq__jseq_new(&r->mem, 2);

        if (!pair)
            break;
        pair->items[0] = c->self.dict->pairs[i].key;
        pair->items[1] = c->self.dict->pairs[i].value;
        pair->count = 2;
        s->items[s->count++] = jv_seq(J_TUPLE, pair);
    }
    *out = jv_seq(J_VIEW, s);
    return r->mem.rc;
}

/* Values are immutable, so a copy may be the thing itself. */
static int copy(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    (void)r;
    *out = c->self;
    return 0;
}

static const struct jbuiltin dict_table[] = {
    {.name = "get", .fn = get, .params = {"key", "default"}, .required = 1},
    {.name = "keys", .fn = keys},
    {.name = "values", .fn = values},
    {.name = "items", .fn = items},
    {.name = "copy", .fn = copy},
};

const struct jbuiltin_table soq__jdict_methods = {
    .what = "method of dict", .items = dict_table, .count = JTABLE_COUNT(dict_table)};

/* ---- list and tuple ---- */

static int list_index(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    for (size_t i = 0; i < c->self.seq->count; i++) {
        bool equal;

        if (soq__jequal(r, c->self.seq->items[i], c->arg[0], &equal))
            return r->mem.rc;
        if (equal) {
            *out = jv_int((int64_t)i);
            return 0;
        }
    }
    return soq__jfail(&r->mem, SOQ_EINVAL, "index(): the value is not in the list");
}

static int list_count(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    int64_t n = 0;

    for (size_t i = 0; i < c->self.seq->count; i++) {
        bool equal;

        if (soq__jequal(r, c->self.seq->items[i], c->arg[0], &equal))
            return r->mem.rc;
        n += equal;
    }
    *out = jv_int(n);
    return 0;
}

static const struct jbuiltin list_table[] = {
    {.name = "index", .fn = list_index, .params = {"value"}, .required = 1},
    {.name = "count", .fn = list_count, .params = {"value"}, .required = 1},
    {.name = "copy", .fn = copy},
};

const struct jbuiltin_table soq__jlist_methods = {
    .what = "method of list", .items = list_table, .count = JTABLE_COUNT(list_table)};
