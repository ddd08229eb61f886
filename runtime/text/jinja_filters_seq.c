/* Filters over sequences and mappings as wholes. */
#include "text/jinja_run.h"

/* ---- shared: keys of sort, unique, min, max ---- */

/* Strings compare without case unless asked otherwise. */
static int fold(struct jrun *r, struct jvalue v, bool case_sensitive, struct jvalue *out)
{
    *out = v;
    return v.kind == J_STRING && !case_sensitive ? soq__jtext_case(r, v.s, JMODE_LOWER, out) : 0;
}

static int key_of(struct jrun *r, struct jvalue item, struct jvalue attribute, bool case_sensitive, struct jvalue *out)
{
    if (attribute.kind != J_OMITTED && attribute.kind != J_NONE && soq__jget_path(r, item, attribute, NULL, &item))
        return r->mem.rc;
    return fold(r, item, case_sensitive, out);
}

static struct jseq *copy_of(struct jrun *r, const struct jseq *s)
{
    struct jseq *copy = soq__jseq_new(&r->mem, s->count);

    for (size_t i = 0; copy && i < s->count; i++)
        copy->items[copy->count++] = s->items[i];
    return copy;
}

/* ---- ends and length ---- */

static int length(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    int64_t n;

    if (soq__jlength(r, c->self, &n))
        return r->mem.rc;
    *out = jv_int(n);
    return 0;
}

static int empty(struct jrun *r, const char *which, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem};

    soq__jb_printf(&b, "No %s item, sequence was empty.", which);
    *out = (struct jvalue){.kind = J_UNDEFINED, .s = soq__jb_done(&b)};
    return r->mem.rc;
}

static int first(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = NULL;

    if (c->self.kind == J_ITERATOR && c->self.seq->cursor < c->self.seq->count) {
        *out = c->self.seq->items[c->self.seq->cursor++];
        return 0;
    }
    if (soq__jlist_of(r, c->self, &s))
        return r->mem.rc;
    if (s->count == 0)
        return empty(r, "first", out);
    *out = s->items[0];
    return 0;
}

static int last(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = NULL;

    if (c->self.kind == J_ITERATOR)
        return soq__jfail_type(r, c->self, "read from its end; use |list first");
    if (soq__jlist_of(r, c->self, &s))
        return r->mem.rc;
    if (s->count == 0)
        return empty(r, "last", out);
    *out = s->items[s->count - 1];
    return 0;
}

/* ---- the same elements in another form ---- */

static int list(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = NULL;

    if (soq__jlist_of(r, c->self, &s))
        return r->mem.rc;
    *out = jv_seq(J_LIST, copy_of(r, s));
    return r->mem.rc;
}

static int reverse(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    static const struct jvalue backwards[3] = {{.kind = J_OMITTED}, {.kind = J_OMITTED}, {.kind = J_INT, .i = -1}};
    struct jseq *s = NULL, *turned;

    if (c->self.kind == J_STRING)
        return soq__jget_slice(r, c->self, backwards, out);
    if (soq__jlist_of(r, c->self, &s) || !(turned = copy_of(r, s)))
        return r->mem.rc;
    for (size_t i = 0; i < s->count; i++)
        turned->items[i] = s->items[s->count - 1 - i];
    *out = jv_seq(c->self.kind == J_ITERATOR ? J_LIST : J_ITERATOR, turned);
    return 0;
}

static struct jseq *pair(struct jrun *r, struct jvalue a, struct jvalue b)
{
    struct jseq *s = soq__jseq_new(&r->mem, 2);

    if (s) {
        s->items[0] = a;
        s->items[1] = b;
        s->count = 2;
    }
    return s;
}

static struct jseq *pairs_of(struct jrun *r, const struct jdict *d)
{
    struct jseq *s = soq__jseq_new(&r->mem, d->count);

    for (size_t i = 0; s && i < d->count; i++) {
        struct jseq *p = pair(r, d->pairs[i].key, d->pairs[i].value);

        if (!p)
            return NULL;
        s->items[s->count++] = jv_seq(J_TUPLE, p);
    }
    return s;
}

static int items(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    static const struct jdict none;

    if (c->self.kind != J_DICT && c->self.kind != J_UNDEFINED)
        return soq__jfail_type(r, c->self, "taken apart into items: it is no mapping");
    *out = jv_seq(J_ITERATOR, pairs_of(r, c->self.kind == J_DICT ? c->self.dict : &none));
    return r->mem.rc;
}

static int dictsort(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    bool case_sensitive = jarg_truth(c, 0), by_value;
    const struct jstr *by;
    struct jvalue *keys;
    struct jseq *s;

    if (c->self.kind != J_DICT)
        return soq__jfail_type(r, c->self, "sorted as a dict");
    if (soq__jarg_str(r, c, 1, &by))
        return r->mem.rc;
    by_value = by && jstr_is(by, "value", 5);
    if (by && !by_value && !jstr_is(by, "key", 3))
        return soq__jfail(&r->mem, SOQ_EINVAL, "dictsort(): 'by' must be 'key' or 'value'");
    s = pairs_of(r, c->self.dict);
    keys = soq__jmem_array(&r->mem, c->self.dict->count, sizeof *keys);
    if (!s || !keys)
        return r->mem.rc;
    for (size_t i = 0; i < s->count; i++)
        if (fold(r, s->items[i].seq->items[by_value], case_sensitive, &keys[i]))
            return r->mem.rc;
    *out = jv_seq(J_LIST, s);
    return soq__jsort(r, keys, s->items, s->count, jarg_truth(c, 2));
}

/* ---- sorting and comparing ---- */

/* The key for "a,b": a tuple of both. */
static int sort_key(struct jrun *r, struct jvalue item, struct jvalue attribute, bool case_sensitive, struct jvalue *out)
{
    const struct jstr comma = {.p = ",", .n = 1};
    struct jseq *parts;
    size_t at = 0, end;

    if (attribute.kind != J_STRING || soq__jstr_find(attribute.s, &comma, 0, attribute.s->n) == SIZE_MAX)
        return key_of(r, item, attribute, case_sensitive, out);
    parts = soq__jseq_new(&r->mem, 0);
    do {
        const struct jstr *name;
        struct jvalue v;

        end = soq__jstr_find(attribute.s, &comma, at, attribute.s->n);
        name = soq__jstr_slice(&r->mem, attribute.s, at, end == SIZE_MAX ? attribute.s->n : end);
        if (!name || key_of(r, item, jv_str(name), case_sensitive, &v) || !soq__jseq_add(&r->mem, parts, v))
            return r->mem.rc;
        at = end + 1;
    } while (end != SIZE_MAX);
    *out = jv_seq(J_LIST, parts);
    return 0;
}

static int sort(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    bool case_sensitive = jarg_truth(c, 1);
    struct jseq *s = NULL, *sorted;
    struct jvalue *keys;
    int64_t reversed;

    if (soq__jarg_int(r, c, 0, 0, &reversed) || soq__jlist_of(r, c->self, &s) || !(sorted = copy_of(r, s)) ||
        !(keys = soq__jmem_array(&r->mem, s->count, sizeof *keys)))
        return r->mem.rc;
    for (size_t i = 0; i < s->count; i++)
        if (sort_key(r, s->items[i], c->arg[2], case_sensitive, &keys[i]))
            return r->mem.rc;
    *out = jv_seq(J_LIST, sorted);
    return soq__jsort(r, keys, sorted->items, s->count, reversed != 0);
}

static int unique(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = NULL, *kept = soq__jseq_new(&r->mem, 0);
    struct jdict *seen = soq__jdict_new(&r->mem, 0);

    if (!kept || !seen || soq__jlist_of(r, c->self, &s))
        return r->mem.rc;
    for (size_t i = 0; i < s->count; i++) {
        const struct jpair *known;
        struct jvalue key;

        if (key_of(r, s->items[i], c->arg[1], jarg_truth(c, 0), &key) || soq__jdict_find(r, seen, key, &known))
            return r->mem.rc;
        if (!known && (!soq__jdict_add(&r->mem, seen, key, key) || !soq__jseq_add(&r->mem, kept, s->items[i])))
            return r->mem.rc;
    }
    *out = jv_seq(J_ITERATOR, kept);
    return 0;
}

static int extreme(struct jrun *r, const struct jcall *c, enum jop better, struct jvalue *out)
{
    struct jseq *s = NULL;
    struct jvalue best = {0}, key;

    if (soq__jlist_of(r, c->self, &s))
        return r->mem.rc;
    if (s->count == 0)
        return empty(r, "aggregated", out);
    for (size_t i = 0; i < s->count; i++) {
        bool take = i == 0;

        if (key_of(r, s->items[i], c->arg[1], jarg_truth(c, 0), &key) || (i > 0 && soq__jcompare(r, better, key, best, &take)))
            return r->mem.rc;
        if (take) {
            best = key;
            *out = s->items[i];
        }
    }
    return 0;
}

static int min(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return extreme(r, c, JOP_LT, out);
}

static int max(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return extreme(r, c, JOP_GT, out);
}

static int sum(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = NULL;
    struct jvalue v;

    *out = c->arg[1].kind == J_OMITTED ? jv_int(0) : c->arg[1];
    if (out->kind == J_STRING)
        return soq__jfail(&r->mem, SOQ_EINVAL, "sum() cannot add strings; use join");
    if (soq__jlist_of(r, c->self, &s))
        return r->mem.rc;
    for (size_t i = 0; i < s->count; i++) {
        v = s->items[i];
        if (c->arg[0].kind != J_OMITTED && c->arg[0].kind != J_NONE && soq__jget_path(r, v, c->arg[0], NULL, &v))
            return r->mem.rc;
        if (soq__jbinary(r, JOP_ADD, *out, v, out))
            return r->mem.rc;
    }
    return 0;
}

/* ---- pieces ---- */

/* Elements [from, to) of s and then `fill` up to `size` elements. */
static bool add_piece(struct jrun *r, struct jseq *pieces, const struct jseq *s, size_t from, size_t to, size_t size,
                      struct jvalue fill)
{
    struct jseq *piece = soq__jseq_new(&r->mem, to - from);

    for (size_t i = from; piece && i < to; i++)
        piece->items[piece->count++] = s->items[i];
    while (piece && piece->count < size && fill.kind != J_OMITTED && fill.kind != J_NONE)
        if (!soq__jstep(r, 1) || !soq__jseq_add(&r->mem, piece, fill))
            return false;
    return piece && soq__jseq_add(&r->mem, pieces, jv_seq(J_LIST, piece));
}

static int batch(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = NULL, *pieces = soq__jseq_new(&r->mem, 0);
    int64_t count;

    if (!pieces || soq__jlist_of(r, c->self, &s) || soq__jarg_int(r, c, 0, 0, &count))
        return r->mem.rc;
    if (count == 0 && s->count && !add_piece(r, pieces, s, 0, 0, 0, c->arg[1])) /* what Python's loop makes of it */
        return r->mem.rc;
    for (size_t i = 0; i < s->count;) {
        size_t n = count > 0 && (uint64_t)count < s->count - i ? (size_t)count : s->count - i;

        if (!add_piece(r, pieces, s, i, i + n, count > 0 ? (size_t)count : n, c->arg[1]))
            return r->mem.rc;
        i += n;
    }
    *out = jv_seq(J_ITERATOR, pieces);
    return 0;
}

static int slice(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *s = NULL, *pieces = soq__jseq_new(&r->mem, 0);
    size_t at = 0, each, longer;
    int64_t count;

    if (!pieces || soq__jlist_of(r, c->self, &s) || soq__jarg_int(r, c, 0, 0, &count))
        return r->mem.rc;
    if (count == 0)
        return soq__jfail(&r->mem, SOQ_EINVAL, "slice(): 'slices' cannot be zero");
    each = count > 0 ? s->count / (size_t)count : 0;
    longer = count > 0 ? s->count % (size_t)count : 0;
    for (int64_t i = 0; i < count && soq__jstep(r, 1); i++) {
        size_t n = each + ((uint64_t)i < longer);

        if (!add_piece(r, pieces, s, at, at + n, (uint64_t)i < longer ? n : each + 1, c->arg[1]))
            return r->mem.rc;
        at += n;
    }
    *out = jv_seq(J_ITERATOR, pieces);
    return r->mem.rc;
}

static const struct jbuiltin table[] = {
    {.name = "length", .fn = length},
    {.name = "count", .fn = length},
    {.name = "first", .fn = first},
    {.name = "last", .fn = last},
    {.name = "list", .fn = list},
    {.name = "reverse", .fn = reverse},
    {.name = "items", .fn = items},
    {.name = "dictsort", .fn = dictsort, .params = {"case_sensitive", "by", "reverse"}},
    {.name = "sort", .fn = sort, .params = {"reverse", "case_sensitive", "attribute"}},
    {.name = "unique", .fn = unique, .params = {"case_sensitive", "attribute"}},
    {.name = "min", .fn = min, .params = {"case_sensitive", "attribute"}},
    {.name = "max", .fn = max, .params = {"case_sensitive", "attribute"}},
    {.name = "sum", .fn = sum, .params = {"attribute", "start"}},
    {.name = "batch", .fn = batch, .params = {"linecount", "fill_with"}, .required = 1},
    {.name = "slice", .fn = slice, .params = {"slices", "fill_with"}, .required = 1},
};

const struct jbuiltin_table soq__jfilters_seq = {.what = "filter", .items = table, .count = JTABLE_COUNT(table)};
