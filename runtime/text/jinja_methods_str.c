/* Methods of str that make strings or lists of strings. */
#include <string.h>

#include "text/jinja_run.h"
#include "text/jinja_unicode.h"

/* ---- case, stripping, padding ---- */

#define CASE_METHOD(name, mode)                                                                                                \
    static int name(struct jrun *r, const struct jcall *c, struct jvalue *out)                                                 \
    {                                                                                                                          \
        return soq__jtext_case(r, c->self.s, mode, out);                                                                       \
    }

CASE_METHOD(upper, JMODE_UPPER)
CASE_METHOD(lower, JMODE_LOWER)
CASE_METHOD(capitalize, JMODE_CAPITALIZE)
CASE_METHOD(title, JMODE_TITLE)
CASE_METHOD(swapcase, JMODE_SWAP)

static int strip(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return soq__jtext_strip(r, c->self.s, c->arg[0], true, true, out);
}

static int lstrip(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return soq__jtext_strip(r, c->self.s, c->arg[0], true, false, out);
}

static int rstrip(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return soq__jtext_strip(r, c->self.s, c->arg[0], false, true, out);
}

static int pad(struct jrun *r, const struct jcall *c, int align, struct jvalue *out)
{
    const struct jstr *fill;
    int64_t width;

    if (soq__jarg_int(r, c, 0, 0, &width) || soq__jarg_str(r, c, 1, &fill))
        return r->mem.rc;
    if (fill && (fill->n != 1 || (fill->p[0] & 0x80)))
        return soq__jfail(&r->mem, SOQ_EINVAL, "%s(): the fill character must be one ASCII character", c->builtin->name);
    return soq__jtext_pad(r, c->self.s, width, align, fill, out);
}

static int center(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return pad(r, c, 0, out);
}

static int ljust(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return pad(r, c, -1, out);
}

static int rjust(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return pad(r, c, 1, out);
}

static int zfill(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max};
    const struct jstr *s = c->self.s;
    size_t sign = s->n > 0 && (s->p[0] == '-' || s->p[0] == '+');
    int64_t width, length = (int64_t)soq__jstr_chars(s);

    if (soq__jarg_int(r, c, 0, 0, &width))
        return r->mem.rc;
    soq__jb_slice(&b, s, 0, sign);
    soq__jb_repeat(&b, '0', width > length ? (size_t)(width - length) : 0, false);
    soq__jb_slice(&b, s, sign, s->n);
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

static int removeprefix(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = c->self.s, *end;

    if (soq__jarg_str(r, c, 0, &end))
        return r->mem.rc;
    *out =
        jv_str(soq__jstr_find(s, end, 0, end->n < s->n ? end->n : s->n) == 0 ? soq__jstr_slice(&r->mem, s, end->n, s->n) : s);
    return r->mem.rc;
}

static int removesuffix(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *s = c->self.s, *end;

    if (soq__jarg_str(r, c, 0, &end))
        return r->mem.rc;
    *out = c->self;
    if (end->n && end->n <= s->n && memcmp(s->p + s->n - end->n, end->p, end->n) == 0)
        *out = jv_str(soq__jstr_slice(&r->mem, s, 0, s->n - end->n));
    return r->mem.rc;
}

static int replace(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *old, *new;
    int64_t count;

    if (soq__jarg_str(r, c, 0, &old) || soq__jarg_str(r, c, 1, &new) || soq__jarg_int(r, c, 2, -1, &count))
        return r->mem.rc;
    return soq__jtext_replace(r, c->self.s, old, new, count, out);
}

static int join(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *items = NULL;

    return soq__jlist_of(r, c->arg[0], &items) ? r->mem.rc : soq__jtext_join(r, c->self.s, items, false, out);
}

static int format(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return soq__jformat_braces(r, c->self.s, c->raw, out);
}

/* ---- splitting ---- */

static bool add_slice(struct jrun *r, struct jseq *to, const struct jstr *s, size_t from, size_t end)
{
    const struct jstr *part = soq__jstep(r, 1) ? soq__jstr_slice(&r->mem, s, from, end) : NULL;

    return part && soq__jseq_add(&r->mem, to, jv_str(part));
}

/* At white space; the rest behind the last split keeps its trailing white space. */
static bool split_space(struct jrun *r, struct jseq *to, const struct jstr *s, int64_t max)
{
    struct jiter it = {.s = s};
    size_t from = 0;
    bool inside = false;
    struct jchar c;

    while (soq__jiter_next(&it, &c)) {
        bool space = soq__ju_space(c.cp);

        if (inside && space) {
            if (!add_slice(r, to, s, from, c.at))
                return false;
            inside = false;
            max--;
        } else if (!inside && !space) {
            from = c.at;
            inside = true;
            if (max == 0)
                return add_slice(r, to, s, from, s->n);
        }
    }
    return !inside || add_slice(r, to, s, from, s->n);
}

static bool split_at(struct jrun *r, struct jseq *to, const struct jstr *s, const struct jstr *separator, int64_t max)
{
    size_t from = 0;

    for (; max != 0; max--) {
        size_t found = soq__jstr_find(s, separator, from, s->n);

        if (found == SIZE_MAX)
            break;
        if (!add_slice(r, to, s, from, found))
            return false;
        from = found + separator->n;
    }
    return add_slice(r, to, s, from, s->n);
}

static void turn(struct jseq *s)
{
    for (size_t i = 0; i < s->count / 2; i++) {
        struct jvalue v = s->items[i];

        s->items[i] = s->items[s->count - 1 - i];
        s->items[s->count - 1 - i] = v;
    }
}

/* From the right: pieces arrive backwards. */
static bool rsplit_at(struct jrun *r, struct jseq *to, const struct jstr *s, const struct jstr *separator, int64_t max)
{
    size_t end = s->n;
    bool ok;

    for (; max != 0; max--) {
        size_t found = soq__jstr_rfind(s, separator, 0, end);

        if (!soq__jstep(r, 1 + (found == SIZE_MAX ? end : end - found) / 16))
            return false;
        if (found == SIZE_MAX)
            break;
        if (!add_slice(r, to, s, found + separator->n, end))
            return false;
        end = found;
    }
    ok = add_slice(r, to, s, 0, end);
    turn(to);
    return ok;
}

/* Number of words, so that rsplit(none, max) can be told by the position from the left. */
static bool rsplit_space(struct jrun *r, struct jseq *to, const struct jstr *s, int64_t max)
{
    struct jvalue stripped;
    struct jseq *words = soq__jseq_new(&r->mem, 0);
    const struct jstr *first_kept;
    size_t keep, end;

    if (!words || !split_space(r, words, s, -1))
        return false;
    if (max < 0 || (uint64_t)max >= words->count) {
        *to = *words;
        return true;
    }
    keep = words->count - (size_t)max; /* so many words stay together at the left */
    first_kept = keep < words->count ? words->items[keep].s : NULL;
    end = first_kept ? (size_t)(first_kept->p - s->p) : s->n;
    if (soq__jtext_strip(r, soq__jstr_slice(&r->mem, s, 0, end), (struct jvalue){.kind = J_OMITTED}, false, true, &stripped) ||
        !soq__jseq_add(&r->mem, to, stripped))
        return false;
    for (size_t i = keep; i < words->count; i++)
        if (!soq__jseq_add(&r->mem, to, words->items[i]))
            return false;
    return true;
}

static int split_from(struct jrun *r, const struct jcall *c, bool right, struct jvalue *out)
{
    struct jseq *to = soq__jseq_new(&r->mem, 0);
    const struct jstr *separator = NULL;
    int64_t max;

    if (!to || soq__jarg_int(r, c, 1, -1, &max) || (c->arg[0].kind != J_NONE && soq__jarg_str(r, c, 0, &separator)))
        return r->mem.rc;
    if (separator && separator->n == 0)
        return soq__jfail(&r->mem, SOQ_EINVAL, "%s(): the separator is empty", c->builtin->name);
    if (separator)
        (right ? rsplit_at : split_at)(r, to, c->self.s, separator, max);
    else
        (right ? rsplit_space : split_space)(r, to, c->self.s, max);
    *out = jv_seq(J_LIST, to);
    return r->mem.rc;
}

static int split(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return split_from(r, c, false, out);
}

static int rsplit(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return split_from(r, c, true, out);
}

static int splitlines(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    *out = jv_seq(J_LIST, soq__jtext_lines(r, c->self.s, jarg_truth(c, 0)));
    return r->mem.rc;
}

/* (before, separator, after); without a match all of it is at the end that the search began at. */
static int partition_from(struct jrun *r, const struct jcall *c, bool right, struct jvalue *out)
{
    struct jseq *to = soq__jseq_new(&r->mem, 3);
    const struct jstr *separator, *s = c->self.s;
    size_t found, end;

    if (!to || soq__jarg_str(r, c, 0, &separator))
        return r->mem.rc;
    if (separator->n == 0)
        return soq__jfail(&r->mem, SOQ_EINVAL, "%s(): the separator is empty", c->builtin->name);
    found = right ? soq__jstr_rfind(s, separator, 0, s->n) : soq__jstr_find(s, separator, 0, s->n);
    end = found == SIZE_MAX ? 0 : found + separator->n;
    if (found == SIZE_MAX)
        found = end = right ? 0 : s->n;
    if (add_slice(r, to, s, 0, found) && add_slice(r, to, s, found, end))
        add_slice(r, to, s, end, s->n);
    *out = jv_seq(J_TUPLE, to);
    return r->mem.rc;
}

static int partition(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return partition_from(r, c, false, out);
}

static int rpartition(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return partition_from(r, c, true, out);
}

static const struct jbuiltin table[] = {
    {.name = "strip", .fn = strip, .params = {"chars"}},
    {.name = "lstrip", .fn = lstrip, .params = {"chars"}},
    {.name = "rstrip", .fn = rstrip, .params = {"chars"}},
    {.name = "upper", .fn = upper},
    {.name = "lower", .fn = lower},
    {.name = "capitalize", .fn = capitalize},
    {.name = "title", .fn = title},
    {.name = "swapcase", .fn = swapcase},
    {.name = "center", .fn = center, .params = {"width", "fillchar"}, .required = 1},
    {.name = "ljust", .fn = ljust, .params = {"width", "fillchar"}, .required = 1},
    {.name = "rjust", .fn = rjust, .params = {"width", "fillchar"}, .required = 1},
    {.name = "zfill", .fn = zfill, .params = {"width"}, .required = 1},
    {.name = "removeprefix", .fn = removeprefix, .params = {"prefix"}, .required = 1},
    {.name = "removesuffix", .fn = removesuffix, .params = {"suffix"}, .required = 1},
    {.name = "replace", .fn = replace, .params = {"old", "new", "count"}, .required = 2},
    {.name = "join", .fn = join, .params = {"iterable"}, .required = 1},
    {.name = "format", .fn = format, .variadic = true},
    {.name = "split", .fn = split, .params = {"sep", "maxsplit"}},
    {.name = "rsplit", .fn = rsplit, .params = {"sep", "maxsplit"}},
    {.name = "splitlines", .fn = splitlines, .params = {"keepends"}},
    {.name = "partition", .fn = partition, .params = {"sep"}, .required = 1},
    {.name = "rpartition", .fn = rpartition, .params = {"sep"}, .required = 1},
};

const struct jbuiltin_table soq__jstr_methods = {.what = "method of str", .items = table, .count = JTABLE_COUNT(table)};
