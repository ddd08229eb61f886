/* Attributes, items, slices, lengths and iteration. `x.y` prefers the attribute (a method), `x['y']` the item. */
#include <string.h>

#include "text/jinja_run.h"

int soq__jfail_type(struct jrun *r, struct jvalue v, const char *what)
{
    if (v.kind == J_UNDEFINED && v.s)
        return soq__jfail(&r->mem, SOQ_EINVAL, "%.*s", (int)v.s->n, v.s->p);
    return soq__jfail(&r->mem, SOQ_EINVAL, "a value of type %s cannot be %s", soq__jtype_name(v), what);
}

/* ---- iteration ---- */

static struct jseq *list_of_chars(struct jrun *r, const struct jstr *s)
{
    struct jseq *q = soq__jseq_new(&r->mem, s->n);
    struct jiter it = {.s = s};
    struct jchar c;

    while (q && soq__jiter_next(&it, &c)) {
        const struct jstr *one = soq__jstep(r, 1) ? soq__jstr_slice(&r->mem, s, c.at, c.at + c.size) : NULL;

        if (!one || !soq__jseq_add(&r->mem, q, jv_str(one)))
            return NULL;
    }
    return q;
}

static struct jseq *list_of_range(struct jrun *r, const struct jrange *range)
{
    struct jseq *q = soq__jseq_new(&r->mem, (size_t)range->count);

    if (!q || !soq__jstep(r, (size_t)range->count))
        return NULL;
    for (int64_t i = 0; i < range->count; i++)
        q->items[q->count++] = jv_int(range->start + i * range->step);
    return q;
}

static struct jseq *list_of_keys(struct jrun *r, const struct jdict *d)
{
    struct jseq *q = soq__jseq_new(&r->mem, d->count);

    if (!q || !soq__jstep(r, d->count))
        return NULL;
    for (size_t i = 0; i < d->count; i++)
        q->items[q->count++] = d->pairs[i].key;
    return q;
}

static struct jseq *rest_of(struct jrun *r, struct jseq *iterator)
{
    struct jseq *q = soq__jmem_zero(&r->mem, sizeof *q);

    if (!q)
        return NULL;
    q->count = q->cap = iterator->count - iterator->cursor;
    q->items = q->count ? iterator->items + iterator->cursor : NULL;
    iterator->cursor = iterator->count;
    return q;
}

int soq__jlist_of(struct jrun *r, struct jvalue v, struct jseq **out)
{
    switch (v.kind) {
    case J_UNDEFINED:
        *out = soq__jseq_new(&r->mem, 0);
        break;
    case J_STRING:
        *out = list_of_chars(r, v.s);
        break;
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        *out = v.seq;
        break;
    case J_ITERATOR:
        *out = rest_of(r, v.seq);
        break;
    case J_DICT:
        *out = list_of_keys(r, v.dict);
        break;
    case J_RANGE:
        *out = list_of_range(r, v.range);
        break;
    default:
        return soq__jfail_type(r, v, "iterated over");
    }
    return r->mem.rc;
}

int soq__jlength(struct jrun *r, struct jvalue v, int64_t *out)
{
    switch (v.kind) {
    case J_UNDEFINED:
        *out = 0;
        return 0;
    case J_STRING:
        *out = (int64_t)soq__jstr_chars(v.s);
        return soq__jstep(r, v.s->n / 64) ? 0 : r->mem.rc;
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        *out = (int64_t)v.seq->count;
        return 0;
    case J_DICT:
        *out = (int64_t)v.dict->count;
        return 0;
    case J_RANGE:
        *out = v.range->count;
        return 0;
    default:
        return soq__jfail(&r->mem, SOQ_EINVAL, "a value of type %s has no length", soq__jtype_name(v));
    }
}

/* ---- attributes ---- */

static const struct jbuiltin_table *const *method_tables(struct jvalue of)
{
    static const struct jbuiltin_table *const of_str[] = {&soq__jstr_methods, &soq__jstr_more_methods, NULL};
    static const struct jbuiltin_table *const of_dict[] = {&soq__jdict_methods, NULL};
    static const struct jbuiltin_table *const of_list[] = {&soq__jlist_methods, NULL};
    static const struct jbuiltin_table *const of_loop[] = {&soq__jloop_methods, NULL};
    static const struct jbuiltin_table *const of_cycler[] = {&soq__jcycler_methods, NULL};

    switch (of.kind) {
    case J_STRING:
        return of_str;
    case J_DICT:
        return of_dict;
    case J_LIST:
    case J_TUPLE:
        return of_list;
    case J_LOOP:
        return of_loop;
    case J_CYCLER:
        return of_cycler;
    default:
        return NULL;
    }
}

const struct jbuiltin *soq__jmethod_find(struct jvalue of, const struct jstr *name)
{
    const struct jbuiltin_table *const *tables = method_tables(of);

    return tables ? soq__jbuiltin_find(tables, name->p, name->n) : NULL;
}

enum loop_value {
    LOOP_INDEX,
    LOOP_INDEX0,
    LOOP_FIRST,
    LOOP_DEPTH,
    LOOP_DEPTH0,
    LOOP_PREVIOUS,
    LOOP_LAST,
    LOOP_NEXT,
    LOOP_LENGTH,
    LOOP_LEFT,
    LOOP_LEFT0
};

static const struct {
    const char *name;
    enum loop_value value;
} loop_values[] = {
    {"index", LOOP_INDEX},   {"index0", LOOP_INDEX0},     {"first", LOOP_FIRST},     {"depth", LOOP_DEPTH},
    {"depth0", LOOP_DEPTH0}, {"previtem", LOOP_PREVIOUS}, {"last", LOOP_LAST},       {"nextitem", LOOP_NEXT},
    {"length", LOOP_LENGTH}, {"revindex", LOOP_LEFT},     {"revindex0", LOOP_LEFT0},
};

/* The neighbour at items[at], or undefined. */
static struct jvalue neighbour(struct jrun *r, const struct jloop *l, size_t at, const char *none)
{
    if (at < l->items->count)
        return l->items->items[at];
    return (struct jvalue){.kind = J_UNDEFINED, .s = soq__jstr_copy(&r->mem, none)};
}

static struct jvalue loop_value(struct jrun *r, struct jloop *l, enum loop_value value)
{
    int64_t index = (int64_t)l->index, length;
    bool more = false;

    if (value >= LOOP_LAST && soq__jloop_pull(r, l, value >= LOOP_LENGTH ? SIZE_MAX : l->index + 2, &more))
        return jv_none();
    length = (int64_t)l->items->count;
    switch (value) {
    case LOOP_INDEX:
        return jv_int(index + 1);
    case LOOP_INDEX0:
        return jv_int(index);
    case LOOP_FIRST:
        return jv_bool(index == 0);
    case LOOP_DEPTH:
    case LOOP_DEPTH0:
        return jv_int(value == LOOP_DEPTH);
    case LOOP_PREVIOUS:
        return neighbour(r, l, l->index - 1, "there is no previous item");
    case LOOP_LAST:
        return jv_bool(!more);
    case LOOP_NEXT:
        return neighbour(r, l, l->index + 1, "there is no next item");
    case LOOP_LENGTH:
        return jv_int(length);
    default:
        return jv_int(length - index - (value == LOOP_LEFT0));
    }
}

static bool loop_attribute(struct jrun *r, struct jloop *l, const struct jstr *name, struct jvalue *out)
{
    for (size_t i = 0; i < JTABLE_COUNT(loop_values); i++) {
        if (jstr_is(name, loop_values[i].name, strlen(loop_values[i].name))) {
            *out = loop_value(r, l, loop_values[i].value);
            return true;
        }
    }
    return false;
}

/* What Python's getattr() finds. */
static bool own_attribute(struct jrun *r, struct jvalue of, const struct jstr *name, struct jvalue *out)
{
    const struct jvalue *found = of.kind == J_NAMESPACE ? soq__jdict_get_name(of.dict, name->p, name->n) : NULL;
    const struct jbuiltin *fn;
    struct jmethod *method;

    if (found) {
        *out = *found;
        return true;
    }
    if (of.kind == J_LOOP && loop_attribute(r, of.loop, name, out))
        return true;
    if (of.kind == J_CYCLER && jstr_is(name, "current", 7)) {
        *out = of.cycler->items->items[of.cycler->at];
        return true;
    }
    fn = soq__jmethod_find(of, name);
    method = fn ? soq__jmem_alloc(&r->mem, sizeof *method) : NULL;
    if (!method)
        return false;
    *method = (struct jmethod){.fn = fn, .self = of};
    *out = (struct jvalue){.kind = J_METHOD, .method = method};
    return true;
}

/* An undefined value that says what was looked for. */
static int missing(struct jrun *r, struct jvalue of, struct jvalue key, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem};

    soq__jb_printf(&b, "'%s object' has no %s ", soq__jtype_name(of), key.kind == J_STRING ? "attribute" : "element");
    soq__jrepr(r, &b, key);
    *out = (struct jvalue){.kind = J_UNDEFINED, .s = soq__jb_done(&b)};
    return r->mem.rc;
}

/* Python's sandbox forgets list.pop, which would change a list: it is forbidden here. */
static bool is_mutator(struct jvalue of, const struct jstr *name)
{
    for (size_t i = 0; (of.kind == J_LIST || of.kind == J_DICT) && soq__jmutators[i].name; i++)
        if (soq__jmutators[i].kind == of.kind && jstr_is(name, soq__jmutators[i].name, strlen(soq__jmutators[i].name)))
            return true;
    return false;
}

/* Methods that would change a list or dict exist in Python; the sandbox makes them undefined with a message of their own. */
static int forbidden(struct jrun *r, struct jvalue of, const struct jstr *name, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem};

    soq__jb_puts(&b, "access to attribute '");
    soq__jb_str(&b, name);
    soq__jb_printf(&b, "' of '%s' object is unsafe: values cannot be changed; use a namespace", soq__jtype_name(of));
    *out = (struct jvalue){.kind = J_UNDEFINED, .s = soq__jb_done(&b)};
    return r->mem.rc;
}

static bool string_item(struct jrun *r, struct jvalue of, struct jvalue key, struct jvalue *out)
{
    int64_t i = jv_integer(key);
    size_t chars, at;

    if (i < 0) {
        chars = soq__jstr_chars(of.s);
        if (chars < (uint64_t)-i)
            return false;
        i += (int64_t)chars;
    }
    at = soq__jstr_offset(of.s, (size_t)i);
    if (at >= of.s->n || !soq__jstep(r, of.s->n / 64))
        return false;
    *out = jv_str(
        soq__jstr_slice(&r->mem, of.s, at, soq__jstr_offset(&(struct jstr){.p = of.s->p + at, .n = of.s->n - at}, 1) + at));
    return true;
}

/* What of[key] finds; errors that jinja2 turns into undefined are just "not found". */
static bool own_item(struct jrun *r, struct jvalue of, struct jvalue key, struct jvalue *out)
{
    const struct jpair *pair;
    int64_t n, i;

    if (of.kind == J_DICT) {
        if (!soq__jhashable(key) || soq__jdict_find(r, of.dict, key, &pair) || !pair)
            return false;
        *out = pair->value;
        return true;
    }
    if (!jv_is_integral(key))
        return false;
    if (of.kind == J_STRING)
        return string_item(r, of, key, out);
    if (of.kind != J_LIST && of.kind != J_TUPLE && of.kind != J_RANGE)
        return false;
    n = of.kind == J_RANGE ? of.range->count : (int64_t)of.seq->count;
    i = jv_integer(key) < 0 ? jv_integer(key) + n : jv_integer(key);
    if (i < 0 || i >= n)
        return false;
    *out = of.kind == J_RANGE ? jv_int(of.range->start + i * of.range->step) : of.seq->items[i];
    return true;
}

int soq__jget_attr(struct jrun *r, struct jvalue of, const struct jstr *name, struct jvalue *out)
{
    if (of.kind == J_UNDEFINED)
        return soq__jfail_type(r, of, "asked for an attribute");
    if (is_mutator(of, name))
        return forbidden(r, of, name, out);
    if (own_attribute(r, of, name, out) || own_item(r, of, jv_str(name), out))
        return r->mem.rc;
    return r->mem.rc ? r->mem.rc : missing(r, of, jv_str(name), out);
}

int soq__jget_method(struct jrun *r, struct jvalue of, const struct jstr *name, struct jvalue *out)
{
    const struct jbuiltin_table *const *tables = method_tables(of);

    if (soq__jget_attr(r, of, name, out) || out->kind != J_UNDEFINED || !tables || is_mutator(of, name))
        return r->mem.rc;
    return soq__jbuiltin_unknown(&r->mem, tables, name);
}

int soq__jget_item(struct jrun *r, struct jvalue of, struct jvalue key, struct jvalue *out)
{
    if (of.kind == J_UNDEFINED)
        return soq__jfail_type(r, of, "asked for an item");
    if (own_item(r, of, key, out))
        return r->mem.rc;
    if (key.kind == J_STRING && own_attribute(r, of, key.s, out))
        return r->mem.rc;
    return r->mem.rc ? r->mem.rc : missing(r, of, key, out);
}

static bool all_digits(const struct jstr *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->p[i] < '0' || s->p[i] > '9')
            return false;
    return s->n > 0 && s->n < 18;
}

static struct jvalue path_part(const struct jstr *part)
{
    int64_t i = 0;

    if (!all_digits(part))
        return jv_str(part);
    for (size_t k = 0; k < part->n; k++)
        i = i * 10 + (part->p[k] - '0');
    return jv_int(i);
}

/* "a.b.0" or a single key, as the `attribute` argument of filters has it; fallback replaces undefined parts. */
int soq__jget_path(struct jrun *r, struct jvalue of, struct jvalue path, const struct jvalue *fallback, struct jvalue *out)
{
    size_t at = 0;

    *out = of;
    for (;;) {
        const char *dot = path.kind == J_STRING && at < path.s->n ? memchr(path.s->p + at, '.', path.s->n - at) : NULL;
        size_t end = path.kind == J_STRING ? dot ? (size_t)(dot - path.s->p) : path.s->n : 0;
        const struct jstr *part = path.kind == J_STRING ? soq__jstr_slice(&r->mem, path.s, at, end) : NULL;

        if (r->mem.rc || soq__jget_item(r, *out, part ? path_part(part) : path, out))
            return r->mem.rc;
        if (fallback && out->kind == J_UNDEFINED)
            *out = *fallback;
        if (!dot)
            return 0;
        at = end + 1;
    }
}

/* ---- slices ---- */

struct slice {
    int64_t start, stop, step, count;
};

static bool bound(struct jvalue v, int64_t *out)
{
    if (v.kind == J_OMITTED || v.kind == J_NONE)
        return true;
    if (!jv_is_integral(v))
        return false;
    *out = jv_integer(v);
    return true;
}

/* Python's slice.indices(): a bound counted from the end, clamped. */
static int64_t clamp(struct jvalue v, int64_t value, int64_t fallback, int64_t n, int64_t step)
{
    if (v.kind == J_OMITTED || v.kind == J_NONE)
        return fallback;
    if (value < 0)
        value = value < -n ? -1 : value + n;
    if (value < 0)
        return step < 0 ? -1 : 0;
    if (value >= n)
        return step < 0 ? n - 1 : n;
    return value;
}

static int resolve(struct jrun *r, const struct jvalue bounds[3], int64_t n, struct slice *out)
{
    int64_t start = 0, stop = 0, step = 1, span;

    if (!bound(bounds[0], &start) || !bound(bounds[1], &stop) || !bound(bounds[2], &step))
        return soq__jfail(&r->mem, SOQ_EINVAL, "the bounds of a slice must be integers or none");
    if (step == 0)
        return soq__jfail(&r->mem, SOQ_EINVAL, "the step of a slice cannot be zero");
    if (step < -INT64_MAX)
        step = -INT64_MAX;
    start = clamp(bounds[0], start, step < 0 ? n - 1 : 0, n, step);
    stop = clamp(bounds[1], stop, step < 0 ? -1 : n, n, step);
    span = step < 0 ? start - stop : stop - start;
    *out = (struct slice){.start = start, .stop = stop, .step = step};
    out->count = span <= 0 ? 0 : (span - 1) / (step < 0 ? -step : step) + 1;
    return 0;
}

static int slice_string(struct jrun *r, const struct jstr *s, const struct slice *c, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem};
    struct jseq *chars;

    if (c->step == 1 || c->count == 0) {
        size_t from = soq__jstr_offset(s, (size_t)c->start);
        size_t to = from + soq__jstr_offset(&(struct jstr){.p = s->p + from, .n = s->n - from}, (size_t)c->count);

        *out = jv_str(soq__jstr_slice(&r->mem, s, from, to));
        return r->mem.rc;
    }
    chars = list_of_chars(r, s);
    for (int64_t i = 0; chars && i < c->count; i++)
        soq__jb_str(&b, chars->items[c->start + i * c->step].s);
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

static int slice_range(struct jrun *r, const struct jrange *range, const struct slice *c, struct jvalue *out)
{
    struct jrange *q = soq__jmem_alloc(&r->mem, sizeof *q);

    if (!q)
        return r->mem.rc;
    if (__builtin_mul_overflow(c->start, range->step, &q->start) || __builtin_add_overflow(q->start, range->start, &q->start) ||
        __builtin_mul_overflow(c->stop, range->step, &q->stop) || __builtin_add_overflow(q->stop, range->start, &q->stop) ||
        __builtin_mul_overflow(range->step, c->step, &q->step))
        return soq__jfail(&r->mem, SOQ_ELIMIT, "the slice of this range is beyond 64 bits");
    q->count = c->count;
    *out = (struct jvalue){.kind = J_RANGE, .range = q};
    return 0;
}

int soq__jget_slice(struct jrun *r, struct jvalue of, const struct jvalue bounds[3], struct jvalue *out)
{
    struct jseq *q;
    struct slice c = {0};
    int64_t n;

    if (of.kind != J_STRING && of.kind != J_LIST && of.kind != J_TUPLE && of.kind != J_RANGE)
        return soq__jfail_type(r, of, "sliced");
    if (soq__jlength(r, of, &n) || resolve(r, bounds, n, &c))
        return r->mem.rc;
    if (of.kind == J_STRING)
        return slice_string(r, of.s, &c, out);
    if (of.kind == J_RANGE)
        return slice_range(r, of.range, &c, out);
    q = soq__jseq_new(&r->mem, (size_t)c.count);
    if (!q || !soq__jstep(r, (size_t)c.count))
        return r->mem.rc;
    for (int64_t i = 0; i < c.count; i++)
        q->items[q->count++] = of.seq->items[c.start + i * c.step];
    *out = jv_seq(of.kind, q);
    return 0;
}
