/* A rendering from start to end: limits, the root scope, handing over the result. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "text/jinja_run.h"

#define CLOCK_EVERY 2000 /* steps between two looks at the clock */

bool soq__jstep(struct jrun *r, size_t n)
{
    if (r->mem.rc)
        return false;
    r->steps += n;
    if (r->steps > r->steps_max) {
        soq__jfail(&r->mem, SOQ_ELIMIT, "more than %llu steps are needed", (unsigned long long)r->steps_max);
        return false;
    }
    if (r->steps >= r->next_clock) {
        r->next_clock = r->steps + CLOCK_EVERY;
        if (soq__clock_now() > r->deadline) {
            soq__jfail(&r->mem, SOQ_ELIMIT, "rendering takes too long");
            return false;
        }
    }
    return true;
}

bool soq__jenter(struct jrun *r)
{
    if (r->mem.rc)
        return false;
    if (r->depth >= r->depth_max) {
        soq__jfail(&r->mem, SOQ_ELIMIT, "nested more than %u levels deep", r->depth_max);
        return false;
    }
    r->depth++;
    return true;
}

void soq__jleave(struct jrun *r)
{
    r->depth--;
}

static uint64_t limit(uint64_t wanted, uint64_t fallback)
{
    return wanted ? wanted : fallback;
}

static void init(struct jrun *r, const struct soq__jinja_limits *limits, int64_t now, struct soq_error *err)
{
    static const struct soq__jinja_limits defaults;
    const struct soq__jinja_limits *l = limits ? limits : &defaults;

    memset(r, 0, sizeof *r);
    r->mem = (struct jmem){.limit = (size_t)limit(l->memory_bytes, UINT64_C(512) << 20), .err = err};
    r->output_max = (size_t)limit(l->output_bytes, UINT64_C(64) << 20);
    r->steps_max = limit(l->steps, 20000000);
    r->depth_max = (uint32_t)limit(l->depth, 400);
    r->deadline = soq__clock_now() + 1e-3 * (double)limit(l->milliseconds, 5000);
    r->now = now ? now : (int64_t)time(NULL);
}

/* Adds a JSON object's members to a scope. */
static bool add_variables(struct jrun *r, struct jscope *scope, const json_t *object, bool untrusted)
{
    struct jvalue v;

    if (!object)
        return true;
    if (!json_is_object(object)) {
        soq__jfail(&r->mem, SOQ_EINVAL, "the variables of a template must be a JSON object");
        return false;
    }
    if (soq__jfrom_json(r, object, untrusted, &v))
        return false;
    scope->vars = *v.dict;
    return true;
}

/* extra <- untrusted <- trusted <- the template's own. */
static int run(struct jrun *r, const struct soq__jinja *tpl, const struct soq__jinja_context *c)
{
    struct jscope extra = {0}, untrusted = {.parent = &extra}, trusted = {.parent = &untrusted}, top = {.parent = &trusted};

    r->scope = &top;
    r->roles = c ? c->roles : NULL;
    if (c && (!add_variables(r, &extra, c->extra, true) || !add_variables(r, &untrusted, c->untrusted, true) ||
              !add_variables(r, &trusted, c->trusted, false)))
        return r->mem.rc;
    return soq__jexec(r, tpl->body);
}

static int hand_over(struct jrun *r, const struct jbuild *b, struct soq__rendered *out)
{
    struct soq__rendered result = SOQ__RENDERED_INIT;

    soq__buf_append(&result.text, b->p, b->n);
    if (b->span_count)
        result.untrusted = soq__alloc_array(b->span_count, sizeof *result.untrusted);
    if (!soq__buf_ok(&result.text) || (b->span_count && !result.untrusted)) {
        soq__rendered_done(&result);
        return soq__jfail(&r->mem, SOQ_ENOMEM, "out of memory");
    }
    if (b->span_count)
        memcpy(result.untrusted, b->spans, b->span_count * sizeof *b->spans);
    result.untrusted_count = b->span_count;
    soq__rendered_done(out);
    *out = result;
    return 0;
}

int soq__jinja_render(const struct soq__jinja *tpl, const struct soq__jinja_context *context,
                      const struct soq__jinja_limits *limits, struct soq__rendered *out, struct soq_error *err)
{
    struct jbuild text = {0};
    struct jrun r;
    int rc;

    init(&r, limits, context ? context->now : 0, err);
    text.m = &r.mem;
    text.max = r.output_max;
    r.out = &text;
    rc = run(&r, tpl, context);
    if (!rc)
        rc = r.mem.rc;
    if (!rc)
        rc = hand_over(&r, &text, out);
    if (rc && r.line && !r.raised)
        soq__fail_prefix(err, "template line %u", r.line);
    soq__jmem_done(&r.mem);
    return rc;
}

void soq__rendered_done(struct soq__rendered *r)
{
    soq__buf_done(&r->text);
    soq__free(r->untrusted);
    *r = (struct soq__rendered)SOQ__RENDERED_INIT;
}
