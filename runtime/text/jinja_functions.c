/* Global functions, and the methods of the objects that they and loops make. */
#include <string.h>
#include <time.h>

#include "text/jinja_run.h"

#define RANGE_MAX 100000 /* elements, as in jinja2's sandbox */

/* ---- range, dict, namespace ---- */

static int range(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jrange *q = soq__jmem_alloc(&r->mem, sizeof *q);
    uint64_t span, step;

    if (!q || soq__jarg_int(r, c, 0, 0, &q->start) || soq__jarg_int(r, c, 1, 0, &q->stop) ||
        soq__jarg_int(r, c, 2, 1, &q->step))
        return r->mem.rc;
    if (c->arg[1].kind == J_OMITTED) {
        q->stop = q->start;
        q->start = 0;
    }
    if (q->step == 0)
        return soq__jfail(&r->mem, SOQ_EINVAL, "range(): the step cannot be zero");
    span = q->step > 0 ? (uint64_t)q->stop - (uint64_t)q->start : (uint64_t)q->start - (uint64_t)q->stop;
    step = q->step > 0 ? (uint64_t)q->step : 0 - (uint64_t)q->step;
    if (q->step > 0 ? q->stop <= q->start : q->stop >= q->start)
        span = 0;
    span = span ? (span - 1) / step + 1 : 0;
    if (span > RANGE_MAX)
        return soq__jfail(&r->mem, SOQ_ELIMIT, "range() has more than %d elements", RANGE_MAX);
    q->count = (int64_t)span;
    *out = (struct jvalue){.kind = J_RANGE, .range = q};
    return 0;
}

static int put_pairs(struct jrun *r, struct jdict *d, struct jvalue from)
{
    struct jseq *s = NULL, *pair = NULL;

    if (from.kind == J_DICT) {
        for (size_t i = 0; i < from.dict->count; i++)
            if (soq__jdict_put(r, d, from.dict->pairs[i].key, from.dict->pairs[i].value))
                return r->mem.rc;
        return 0;
    }
    if (soq__jlist_of(r, from, &s))
        return r->mem.rc;
    for (size_t i = 0; i < s->count; i++) {
        if (soq__jlist_of(r, s->items[i], &pair))
            return r->mem.rc;
        if (pair->count != 2)
            return soq__jfail(&r->mem, SOQ_EINVAL, "dict() needs pairs");
        if (soq__jdict_put(r, d, pair->items[0], pair->items[1]))
            return r->mem.rc;
    }
    return 0;
}

static int make_dict(struct jrun *r, const struct jcall *c, enum jkind kind, struct jvalue *out)
{
    struct jdict *d = soq__jdict_new(&r->mem, 0);

    if (!d)
        return r->mem.rc;
    if (c->raw->count > 1)
        return soq__jfail(&r->mem, SOQ_EINVAL, "%s() takes one mapping and keyword arguments", c->builtin->name);
    if (c->raw->count == 1 && put_pairs(r, d, c->raw->positional[0]))
        return r->mem.rc;
    for (size_t i = 0; c->raw->keywords && i < c->raw->keywords->count; i++)
        if (soq__jdict_put(r, d, c->raw->keywords->pairs[i].key, c->raw->keywords->pairs[i].value))
            return r->mem.rc;
    *out = (struct jvalue){.kind = kind, .dict = d};
    return 0;
}

static int dict(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return make_dict(r, c, J_DICT, out);
}

static int namespace(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    return make_dict(r, c, J_NAMESPACE, out);
}

/* ---- cycler, joiner, loop ---- */

static struct jseq *positional(struct jrun *r, const struct jcall *c)
{
    struct jseq *s = soq__jseq_new(&r->mem, c->raw->count);

    for (size_t i = 0; s && i < c->raw->count; i++)
        s->items[s->count++] = c->raw->positional[i];
    return s;
}

static int cycler(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jcycler *cycle = soq__jmem_zero(&r->mem, sizeof *cycle);

    if (!cycle || !(cycle->items = positional(r, c)))
        return r->mem.rc;
    if (cycle->items->count == 0)
        return soq__jfail(&r->mem, SOQ_EINVAL, "cycler() needs at least one item");
    *out = (struct jvalue){.kind = J_CYCLER, .cycler = cycle};
    return 0;
}

static int cycler_next(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jcycler *cycle = c->self.cycler;

    (void)r;
    *out = cycle->items->items[cycle->at];
    cycle->at = (cycle->at + 1) % cycle->items->count;
    return 0;
}

static int cycler_reset(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    (void)r;
    c->self.cycler->at = 0;
    *out = jv_none();
    return 0;
}

static int joiner(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jjoiner *j = soq__jmem_zero(&r->mem, sizeof *j);

    if (!j)
        return r->mem.rc;
    j->separator = c->arg[0].kind == J_OMITTED ? jv_str(soq__jstr_copy(&r->mem, ", ")) : c->arg[0];
    *out = (struct jvalue){.kind = J_JOINER, .joiner = j};
    return r->mem.rc;
}

static int loop_cycle(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    if (c->raw->count == 0)
        return soq__jfail(&r->mem, SOQ_EINVAL, "loop.cycle() needs at least one item");
    *out = c->raw->positional[c->self.loop->index % c->raw->count];
    return 0;
}

static int loop_changed(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    struct jseq *now = positional(r, c);
    bool same = false;

    if (!now)
        return r->mem.rc;
    if (c->self.loop->changed &&
        soq__jequal(r, jv_seq(J_TUPLE, now), jv_seq(J_TUPLE, (struct jseq *)(uintptr_t)c->self.loop->changed), &same))
        return r->mem.rc;
    c->self.loop->changed = now;
    *out = jv_bool(!same);
    return 0;
}

/* ---- what Hugging Face adds ---- */

static int raise_exception(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    const struct jstr *message = soq__jto_str(r, c->arg[0]);

    (void)out;
    if (!message)
        return r->mem.rc;
    r->raised = true;
    return soq__jfail(&r->mem, SOQ_EINVAL, "%.*s", message->n < SOQ_ERROR_TEXT_MAX ? (int)message->n : SOQ_ERROR_TEXT_MAX,
                      message->p);
}

static int strftime_now(struct jrun *r, const struct jcall *c, struct jvalue *out)
{
    time_t now = (time_t)r->now;
    const struct jstr *format;
    struct jbuild b = {.m = &r->mem};
    char pattern[256], text[1024];
    struct tm local;

    if (soq__jarg_str(r, c, 0, &format))
        return r->mem.rc;
    if (format->n >= sizeof pattern - 1 || memchr(format->p, '\0', format->n) || !localtime_r(&now, &local))
        return soq__jfail(&r->mem, SOQ_EINVAL, "strftime_now(): the format is too long or the time is out of range");
    memcpy(pattern, format->p, format->n);
    pattern[format->n] = '.'; /* so that an empty result can be told from one that is too long */
    pattern[format->n + 1] = '\0';
    now = (time_t)strftime(text, sizeof text, pattern, &local);
    if (now == 0)
        return soq__jfail(&r->mem, SOQ_EINVAL, "strftime_now(): the result is too long");
    soq__jb_add(&b, text, (size_t)now - 1, format->taint_count > 0);
    *out = jv_str(soq__jb_done(&b));
    return r->mem.rc;
}

static const struct jbuiltin function_table[] = {
    {.name = "range", .fn = range, .params = {"start", "stop", "step"}, .required = 1},
    {.name = "dict", .fn = dict, .variadic = true},
    {.name = "namespace", .fn = namespace, .variadic = true},
    {.name = "cycler", .fn = cycler, .variadic = true},
    {.name = "joiner", .fn = joiner, .params = {"sep"}},
    {.name = "raise_exception", .fn = raise_exception, .params = {"message"}, .required = 1},
    {.name = "strftime_now", .fn = strftime_now, .params = {"format"}, .required = 1},
};

const struct jbuiltin_table soq__jfunctions = {
    .what = "function", .items = function_table, .count = JTABLE_COUNT(function_table)};

static const struct jbuiltin loop_table[] = {
    {.name = "cycle", .fn = loop_cycle, .variadic = true},
    {.name = "changed", .fn = loop_changed, .variadic = true},
};

const struct jbuiltin_table soq__jloop_methods = {
    .what = "method of loop", .items = loop_table, .count = JTABLE_COUNT(loop_table)};

static const struct jbuiltin cycler_table[] = {
    {.name = "next", .fn = cycler_next},
    {.name = "reset", .fn = cycler_reset},
};

const struct jbuiltin_table soq__jcycler_methods = {
    .what = "method of cycler", .items = cycler_table, .count = JTABLE_COUNT(cycler_table)};
