/* What Python's str can do and both filters and methods need: case, stripping, replacing, lines, joining, padding. */
#include <string.h>

#include "text/jinja_run.h"
#include "text/jinja_unicode.h"

/* ---- case ---- */

static void map_char(struct jbuild *b, const struct jstr *s, const struct jchar *c, enum jcase to)
{
    uint32_t mapped[3];
    size_t n = soq__ju_map(c->cp, to, mapped);

    if (n == 1 && mapped[0] == c->cp) {
        soq__jb_slice(b, s, c->at, c->at + c->size);
        return;
    }
    for (size_t i = 0; i < n; i++)
        soq__jb_cp(b, mapped[i], c->untrusted);
}

/* Whether a cased character stands next to [at, end), case-ignorable ones skipped; forward: behind it. */
static bool cased_beside(const struct jstr *s, size_t at, size_t end, bool forward)
{
    struct jiter it = {.s = s, .at = forward ? end : 0};
    struct jchar c;
    bool cased = false;

    while (soq__jiter_next(&it, &c) && (forward || c.at < at)) {
        if (soq__ju_case_ignorable(c.cp))
            continue;
        cased = soq__ju_cased(c.cp);
        if (forward)
            break;
    }
    return cased;
}

/* Lower case of a sigma depends on where it stands; everything else maps alone. */
static void lower_char(struct jbuild *b, const struct jstr *s, const struct jchar *c)
{
    bool is_final = c->cp == 0x3A3 && cased_beside(s, c->at, c->at, false) && !cased_beside(s, c->at, c->at + c->size, true);

    if (is_final)
        soq__jb_cp(b, 0x3C2, c->untrusted);
    else
        map_char(b, s, c, JCASE_LOWER);
}

static void swap_char(struct jbuild *b, const struct jstr *s, const struct jchar *c)
{
    if (soq__ju_upper(c->cp))
        lower_char(b, s, c);
    else
        map_char(b, s, c, JCASE_UPPER);
}

int soq__jtext_case(struct jrun *r, const struct jstr *s, enum jcase_mode mode, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem};
    struct jiter it = {.s = s};
    bool after_cased = false;
    struct jchar c;

    while (soq__jiter_next(&it, &c) && soq__jstep(r, c.cp == 0x3A3 ? 1 + s->n / 16 : 0)) {
        if (mode == JMODE_UPPER)
            map_char(&b, s, &c, JCASE_UPPER);
        else if (mode == JMODE_SWAP)
            swap_char(&b, s, &c);
        else if ((mode == JMODE_CAPITALIZE && c.at == 0) || (mode == JMODE_TITLE && !after_cased))
            map_char(&b, s, &c, JCASE_TITLE);
        else
            lower_char(&b, s, &c);
        after_cased = soq__ju_cased(c.cp);
    }
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

/* ---- stripping ---- */

static bool strippable(const struct jchar *c, const struct jstr *s, const struct jstr *chars)
{
    struct jiter it = {.s = chars};
    struct jchar other;

    if (!chars)
        return soq__ju_space(c->cp);
    while (soq__jiter_next(&it, &other))
        if (other.size == c->size && memcmp(chars->p + other.at, s->p + c->at, c->size) == 0)
            return true;
    return false;
}

int soq__jtext_strip(struct jrun *r, const struct jstr *s, struct jvalue chars, bool left, bool right, struct jvalue *out)
{
    const struct jstr *set = chars.kind == J_STRING ? chars.s : NULL;
    size_t from = 0, to = 0;
    struct jiter it = {.s = s};
    bool inside = !left;
    struct jchar c;

    if (!set && chars.kind != J_OMITTED && chars.kind != J_NONE)
        return soq__jfail_type(r, chars, "stripped: pass a string or none");
    while (soq__jiter_next(&it, &c) && soq__jstep(r, set ? set->n / 16 : 0)) {
        bool strip = strippable(&c, s, set);

        if (!inside && !strip) {
            inside = true;
            from = c.at;
        }
        if (inside && (!strip || !right))
            to = c.at + c.size;
    }
    *out = jv_str(soq__jstr_slice(&r->mem, s, from, to));
    return r->mem.rc;
}

/* ---- replacing ---- */

int soq__jtext_replace(struct jrun *r, const struct jstr *s, const struct jstr *old, const struct jstr *new, int64_t count,
                       struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max};
    size_t at = 0;

    while (count != 0 && soq__jstep(r, 1)) {
        size_t found = soq__jstr_find(s, old, at, s->n);

        if (found == SIZE_MAX)
            break;
        count--;
        soq__jb_slice(&b, s, at, found);
        soq__jb_str(&b, new);
        at = found + old->n;
        if (old->n == 0) {
            size_t next = at + soq__jstr_offset(&(struct jstr){.p = s->p + at, .n = s->n - at}, 1);

            if (next == at)
                break;
            soq__jb_slice(&b, s, at, next);
            at = next;
        }
    }
    soq__jb_slice(&b, s, at, s->n);
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

/* ---- lines and joining ---- */

struct jseq *soq__jtext_lines(struct jrun *r, const struct jstr *s, bool keep_ends)
{
    struct jseq *lines = soq__jseq_new(&r->mem, 0);
    struct jiter it = {.s = s};
    size_t start = 0;
    struct jchar c;

    while (lines && soq__jiter_next(&it, &c)) {
        const struct jstr *line;

        if (!soq__ju_linebreak(c.cp))
            continue;
        if (c.cp == '\r' && it.at < s->n && s->p[it.at] == '\n')
            it.at++;
        line = soq__jstep(r, 1) ? soq__jstr_slice(&r->mem, s, start, keep_ends ? it.at : c.at) : NULL;
        if (!line || !soq__jseq_add(&r->mem, lines, jv_str(line)))
            return NULL;
        start = it.at;
    }
    if (lines && start < s->n) {
        const struct jstr *line = soq__jstr_slice(&r->mem, s, start, s->n);

        if (!line || !soq__jseq_add(&r->mem, lines, jv_str(line)))
            return NULL;
    }
    return lines;
}

int soq__jtext_join(struct jrun *r, const struct jstr *separator, const struct jseq *items, bool convert, struct jvalue *out)
{
    struct jbuild b = {.m = &r->mem, .max = r->output_max};

    for (size_t i = 0; i < items->count && soq__jstep(r, 1); i++) {
        if (!convert && items->items[i].kind != J_STRING)
            return soq__jfail(&r->mem, SOQ_EINVAL, "join(): element %zu is no string but %s", i,
                              soq__jtype_name(items->items[i]));
        if (i)
            soq__jb_str(&b, separator);
        soq__jprint(r, &b, items->items[i]);
    }
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

/* align: -1 text to the left, 1 to the right, 0 centred as Python does. fill: one ASCII character, NULL = a blank. */
int soq__jtext_pad(struct jrun *r, const struct jstr *s, int64_t width, int align, const struct jstr *fill, struct jvalue *out)
{
    int64_t length = (int64_t)soq__jstr_chars(s), margin = width > length ? width - length : 0;
    int64_t left = align < 0 ? 0 : align > 0 ? margin : margin / 2 + (margin & width & 1);
    struct jbuild b = {.m = &r->mem, .max = r->output_max};
    bool untrusted = fill && fill->taint_count > 0;
    char c = fill ? fill->p[0] : ' ';

    soq__jb_repeat(&b, c, (size_t)left, untrusted);
    soq__jb_str(&b, s);
    soq__jb_repeat(&b, c, (size_t)(margin - left), untrusted);
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}
