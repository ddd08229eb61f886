/* Equality, order, membership, sorting: Python's rules. */
#include <string.h>

#include "text/jinja_run.h"

static int compare_numbers(struct jvalue a, struct jvalue b, bool *unordered)
{
    /* long double holds every int64 and every double where it is wider than double */
    long double x = a.kind == J_FLOAT ? (long double)a.f : (long double)jv_integer(a);
    long double y = b.kind == J_FLOAT ? (long double)b.f : (long double)jv_integer(b);

    if (a.kind != J_FLOAT && b.kind != J_FLOAT)
        return (jv_integer(a) > jv_integer(b)) - (jv_integer(a) < jv_integer(b));
    *unordered = x != x || y != y;
    return (x > y) - (x < y);
}

static int equal_seqs(struct jrun *r, const struct jseq *a, const struct jseq *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++)
        if (soq__jequal(r, a->items[i], b->items[i], out))
            return r->mem.rc;
    return 0;
}

static int equal_dicts(struct jrun *r, const struct jdict *a, const struct jdict *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++) {
        const struct jpair *p;

        if (soq__jdict_find(r, b, a->pairs[i].key, &p))
            return r->mem.rc;
        *out = p != NULL;
        if (p && soq__jequal(r, a->pairs[i].value, p->value, out))
            return r->mem.rc;
    }
    return 0;
}

static bool equal_ranges(const struct jrange *a, const struct jrange *b)
{
    return a->count == b->count && (a->count == 0 || (a->start == b->start && (a->count == 1 || a->step == b->step)));
}

static int equal_kinds(struct jrun *r, struct jvalue a, struct jvalue b, bool *out)
{
    switch (a.kind) {
    case J_STRING:
        *out = jstr_same(a.s, b.s);
        return 0;
    case J_LIST:
    case J_TUPLE:
        return equal_seqs(r, a.seq, b.seq, out);
    case J_DICT:
        return equal_dicts(r, a.dict, b.dict, out);
    case J_RANGE:
        *out = equal_ranges(a.range, b.range);
        return 0;
    case J_UNDEFINED:
    case J_NONE:
        *out = true;
        return 0;
    default:
        *out = a.seq == b.seq; /* identity, whatever the pointer is */
        return 0;
    }
}

int soq__jequal(struct jrun *r, struct jvalue a, struct jvalue b, bool *out)
{
    bool unordered = false;
    int rc;

    if (!soq__jstep(r, 1))
        return r->mem.rc;
    if (jv_is_number(a) && jv_is_number(b)) {
        *out = compare_numbers(a, b, &unordered) == 0 && !unordered;
        return 0;
    }
    *out = false;
    if (a.kind != b.kind)
        return 0;
    if (!soq__jenter(r))
        return r->mem.rc;
    rc = equal_kinds(r, a, b, out);
    soq__jleave(r);
    return rc;
}

/* ---- order ---- */

static int order(struct jrun *r, struct jvalue a, struct jvalue b, int *out, bool *unordered);

static int order_seqs(struct jrun *r, const struct jseq *a, const struct jseq *b, int *out, bool *unordered)
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        bool equal;

        if (soq__jequal(r, a->items[i], b->items[i], &equal))
            return r->mem.rc;
        if (!equal)
            return order(r, a->items[i], b->items[i], out, unordered);
    }
    *out = (a->count > b->count) - (a->count < b->count);
    return 0;
}

static int order_strings(const struct jstr *a, const struct jstr *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->p, b->p, n) : 0; /* UTF-8 sorts as its code points do */

    return c ? c : (a->n > b->n) - (a->n < b->n);
}

static int order(struct jrun *r, struct jvalue a, struct jvalue b, int *out, bool *unordered)
{
    int rc;

    if (!soq__jstep(r, 1))
        return r->mem.rc;
    if (jv_is_number(a) && jv_is_number(b)) {
        *out = compare_numbers(a, b, unordered);
        return 0;
    }
    if (a.kind == J_STRING && b.kind == J_STRING) {
        *out = order_strings(a.s, b.s);
        return 0;
    }
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        return soq__jfail_type(r, a.kind == J_UNDEFINED ? a : b, "compared");
    if (a.kind != b.kind || (a.kind != J_LIST && a.kind != J_TUPLE))
        return soq__jfail(&r->mem, SOQ_EINVAL, "%s and %s cannot be ordered", soq__jtype_name(a), soq__jtype_name(b));
    if (!soq__jenter(r))
        return r->mem.rc;
    rc = order_seqs(r, a.seq, b.seq, out, unordered);
    soq__jleave(r);
    return rc;
}

/* ---- membership ---- */

static bool in_range(struct jvalue v, const struct jrange *range)
{
    double f = jv_is_number(v) ? jv_double(v) : 0.5;
    int64_t i;

    if (v.kind == J_FLOAT && (f != __builtin_floor(f) || f < -9e18 || f > 9e18))
        return false;
    if (!jv_is_number(v) || range->count == 0)
        return false;
    i = v.kind == J_FLOAT ? (int64_t)f : jv_integer(v);
    if (range->step > 0 ? i < range->start || i >= range->stop : i > range->start || i <= range->stop)
        return false;
    if (range->step > 0)
        return ((uint64_t)i - (uint64_t)range->start) % (uint64_t)range->step == 0;
    return ((uint64_t)range->start - (uint64_t)i) % (0 - (uint64_t)range->step) == 0;
}

static int contains(struct jrun *r, struct jvalue v, struct jvalue in, bool *out)
{
    const struct jpair *pair;

    *out = false;
    switch (in.kind) {
    case J_UNDEFINED:
        return 0;
    case J_STRING:
        if (v.kind != J_STRING)
            return soq__jfail_type(r, v, "looked for in a string");
        *out = soq__jstr_find(in.s, v.s, 0, in.s->n) != SIZE_MAX;
        return 0;
    case J_DICT:
        if (soq__jdict_find(r, in.dict, v, &pair))
            return r->mem.rc;
        *out = pair != NULL;
        return 0;
    case J_RANGE:
        *out = in_range(v, in.range);
        return 0;
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
    case J_ITERATOR:
        for (size_t i = in.kind == J_ITERATOR ? in.seq->cursor : 0; !*out && i < in.seq->count; i++) {
            if (soq__jequal(r, in.seq->items[i], v, out))
                return r->mem.rc;
            if (in.kind == J_ITERATOR)
                in.seq->cursor = i + 1;
        }
        return 0;
    default:
        return soq__jfail(&r->mem, SOQ_EINVAL, "a value of type %s cannot be searched with `in`", soq__jtype_name(in));
    }
}

int soq__jcompare(struct jrun *r, enum jop op, struct jvalue a, struct jvalue b, bool *out)
{
    bool unordered = false;
    int c = 0, rc;

    switch (op) {
    case JOP_IN:
    case JOP_NOT_IN:
        rc = contains(r, a, b, out);
        *out = *out == (op == JOP_IN);
        return rc;
    case JOP_EQ:
    case JOP_NE:
        rc = soq__jequal(r, a, b, out);
        *out = *out == (op == JOP_EQ);
        return rc;
    default:
        break;
    }
    rc = order(r, a, b, &c, &unordered);
    *out = !unordered && (op == JOP_LT ? c < 0 : op == JOP_LE ? c <= 0 : op == JOP_GT ? c > 0 : c >= 0);
    return rc;
}

/* ---- dictionaries with any key ---- */

bool soq__jhashable(struct jvalue v)
{
    if (v.kind == J_TUPLE) {
        for (size_t i = 0; i < v.seq->count; i++)
            if (v.seq->items[i].kind == J_LIST || v.seq->items[i].kind == J_DICT)
                return false;
    }
    return v.kind != J_LIST && v.kind != J_DICT && v.kind != J_OMITTED;
}

int soq__jdict_find(struct jrun *r, const struct jdict *d, struct jvalue key, const struct jpair **out)
{
    *out = NULL;
    if (!soq__jhashable(key))
        return soq__jfail(&r->mem, SOQ_EINVAL, "a %s cannot be a key of a dict", soq__jtype_name(key));
    for (size_t i = 0; i < d->count; i++) {
        bool equal;

        if (soq__jequal(r, d->pairs[i].key, key, &equal))
            return r->mem.rc;
        if (equal) {
            *out = &d->pairs[i];
            return 0;
        }
    }
    return 0;
}

int soq__jdict_put(struct jrun *r, struct jdict *d, struct jvalue key, struct jvalue value)
{
    const struct jpair *p;

    if (soq__jdict_find(r, d, key, &p))
        return r->mem.rc;
    if (p)
        d->pairs[p - d->pairs].value = value;
    else
        soq__jdict_add(&r->mem, d, key, value);
    return r->mem.rc;
}

/* ---- sorting ---- */

struct keyed {
    struct jvalue key, item;
};

/* Whether b must stand before a: Python asks only `<`. */
static bool precedes(struct jrun *r, const struct keyed *b, const struct keyed *a, bool reverse)
{
    bool less = false;

    soq__jcompare(r, JOP_LT, reverse ? a->key : b->key, reverse ? b->key : a->key, &less);
    return less;
}

/* Merges the sorted from[0..half) and from[half..n) into to. */
static void merge(struct jrun *r, const struct keyed *from, size_t half, size_t n, struct keyed *to, bool reverse)
{
    size_t a = 0, b = half;

    for (size_t i = 0; i < n; i++)
        to[i] = b < n && (a == half || precedes(r, &from[b], &from[a], reverse)) ? from[b++] : from[a++];
}

int soq__jsort(struct jrun *r, struct jvalue *keys, struct jvalue *items, size_t n, bool reverse)
{
    struct keyed *from = soq__jmem_array(&r->mem, n, sizeof *from), *to = soq__jmem_array(&r->mem, n, sizeof *to), *swap;

    if (!from || !to)
        return r->mem.rc;
    for (size_t i = 0; i < n; i++)
        from[i] = (struct keyed){.key = keys[i], .item = items[i]};
    for (size_t width = 1; width < n && !r->mem.rc; width *= 2) {
        for (size_t i = 0; i < n; i += 2 * width) {
            size_t count = n - i < 2 * width ? n - i : 2 * width;

            merge(r, from + i, width < count ? width : count, count, to + i, reverse);
        }
        swap = from;
        from = to;
        to = swap;
    }
    for (size_t i = 0; i < n; i++) {
        keys[i] = from[i].key;
        items[i] = from[i].item;
    }
    return r->mem.rc;
}
