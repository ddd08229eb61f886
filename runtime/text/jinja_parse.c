/* Statements: tags and the text between them. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/nearest.h"
#include "base/utf8.h"
#include "text/jinja_run.h"

#define SOURCE_MAX ((size_t)4 << 20) /* bytes */
#define PARSE_MEMORY ((size_t)1 << 30)
#define DEPTH_MAX 200 /* nested expressions and blocks; each costs a dozen small stack frames */

/* ---- tools ---- */

struct jnode *soq__jparse_node(struct jparser *p, enum jnode_kind kind, uint32_t line)
{
    struct jnode *n = soq__jmem_zero(p->m, sizeof *n);

    if (n) {
        n->kind = kind;
        n->line = line;
    }
    return n;
}

const struct jstr *soq__jparse_name(struct jparser *p, const struct jstr *text)
{
    struct jstr *s = soq__jmem_alloc(p->m, sizeof *s);

    if (s)
        *s = *text;
    return s;
}

int soq__jparse_fail(struct jparser *p, uint32_t line, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return soq__jfail(p->m, SOQ_EINVAL, "template line %u: %s", line, text);
}

bool soq__jparse_enter(struct jparser *p)
{
    if (p->depth >= DEPTH_MAX) {
        soq__jfail(p->m, SOQ_ELIMIT, "template line %u: nested more than %d levels deep", p->at->line, DEPTH_MAX);
        return false;
    }
    p->depth++;
    return true;
}

void soq__jparse_leave(struct jparser *p)
{
    p->depth--;
}

bool soq__jtoken_is(const struct jtoken *t, enum jtoken_type type, const char *text)
{
    return t->type == type && (!text || jstr_is(&t->text, text, strlen(text)));
}

bool soq__jparse_skip(struct jparser *p, enum jtoken_type type, const char *text)
{
    bool is = soq__jtoken_is(p->at, type, text);

    p->at += is;
    return is;
}

int soq__jparse_unexpected(struct jparser *p, const char *wanted)
{
    const struct jtoken *t = p->at;

    if (t->type == JT_EOF)
        return soq__jparse_fail(p, t->line, "the template ends where %s was expected", wanted);
    return soq__jparse_fail(p, t->line, "expected %s, got %s%.*s", wanted, t->type == JT_STRING ? "the string " : "",
                            soq__jclip(&t->text), t->text.p);
}

bool soq__jparse_expect(struct jparser *p, enum jtoken_type type, const char *text)
{
    static const char *const names[] = {
        [JT_VAR_CLOSE] = "}}", [JT_BLOCK_CLOSE] = "%}", [JT_NAME] = "a name", [JT_OPERATOR] = "an operator"};

    if (soq__jparse_skip(p, type, text))
        return true;
    soq__jparse_unexpected(p, text ? text : names[type]);
    return false;
}

/* ---- statements ---- */

typedef struct jnode *statement_fn(struct jparser *p, uint32_t line);

static bool parse_list(struct jparser *p, const char *const *ends, struct jnode **out);

/* From behind a tag's head over its body to one of the tags that end it, which becomes the current token. */
static bool parse_body(struct jparser *p, const char *const *ends, struct jnode **out)
{
    bool ok;

    soq__jparse_skip(p, JT_OPERATOR, ":");
    if (!soq__jparse_expect(p, JT_BLOCK_CLOSE, NULL) || !soq__jparse_enter(p))
        return false;
    ok = parse_list(p, ends, out);
    soq__jparse_leave(p);
    return ok;
}

/* The same where only one tag can end it; that is consumed. */
static bool parse_whole_body(struct jparser *p, const char *end, struct jnode **out)
{
    const char *const ends[] = {end, NULL};

    if (!parse_body(p, ends, out))
        return false;
    p->at++;
    return true;
}

/* A name, or a tuple of such; the parser's depth limit bounds the recursion. */
static bool is_assignable(const struct jnode *n)
{
    if (n->kind != JN_TUPLE)
        return n->kind == JN_NAME;
    for (const struct jnode *i = n->items; i; i = i->next)
        if (!is_assignable(i))
            return false;
    return true;
}

struct jnode *soq__jparse_target(struct jparser *p, const char *end_name, bool namespaces)
{
    struct jnode *n;

    if (namespaces && p->at->type == JT_NAME && soq__jtoken_is(p->at + 1, JT_OPERATOR, ".")) {
        struct jnode *of = soq__jparse_node(p, JN_NAME, p->at->line);

        n = soq__jparse_node(p, JN_ATTR, p->at->line);
        if (!n || !of || !(of->name = soq__jparse_name(p, &p->at->text)))
            return NULL;
        p->at += 2;
        n->attr.of = of;
        n->attr.name = soq__jparse_name(p, &p->at->text);
        return n->attr.name && soq__jparse_expect(p, JT_NAME, NULL) ? n : NULL;
    }
    n = soq__jparse_tuple(p, JTUPLE_SIMPLE, end_name);
    if (!n)
        return NULL;
    if (!is_assignable(n)) {
        soq__jparse_fail(p, n->line, "only names can be assigned to");
        return NULL;
    }
    return n;
}

static struct jnode *parse_set(struct jparser *p, uint32_t line)
{
    struct jnode *n = soq__jparse_node(p, JN_SET, line);

    if (!n || !(n->set.target = soq__jparse_target(p, NULL, true)))
        return NULL;
    if (soq__jparse_skip(p, JT_OPERATOR, "=")) {
        n->set.value = soq__jparse_tuple(p, JTUPLE_COND, NULL);
        return n->set.value ? n : NULL;
    }
    n->kind = JN_SET_BLOCK;
    n->set.filter = soq__jparse_filters(p, NULL, false);
    return p->m->rc == 0 && parse_whole_body(p, "endset", &n->set.body) ? n : NULL;
}

static struct jnode *parse_for(struct jparser *p, uint32_t line)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct jnode *n = soq__jparse_node(p, JN_FOR, line);

    if (!n || !(n->loop.target = soq__jparse_target(p, "in", false)) || !soq__jparse_expect(p, JT_NAME, "in") ||
        !(n->loop.over = soq__jparse_tuple(p, 0, "recursive")))
        return NULL;
    if (soq__jparse_skip(p, JT_NAME, "if") && !(n->loop.test = soq__jparse_expression(p)))
        return NULL;
    if (soq__jtoken_is(p->at, JT_NAME, "recursive")) {
        soq__jparse_fail(p, line, "recursive loops are not supported; use a macro that calls itself");
        return NULL;
    }
    p->loops++;
    if (!parse_body(p, ends, &n->loop.body))
        return NULL;
    p->loops--;
    if (soq__jparse_skip(p, JT_NAME, "else"))
        return parse_whole_body(p, "endfor", &n->loop.otherwise) ? n : NULL;
    p->at++;
    return n;
}

static struct jnode *parse_if(struct jparser *p, uint32_t line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jnode *first = soq__jparse_node(p, JN_IF, line), *n = first;

    p->conditional++;
    while (n) {
        if (!(n->cond.test = soq__jparse_tuple(p, 0, NULL)) || !parse_body(p, ends, &n->cond.yes))
            return NULL;
        if (!soq__jparse_skip(p, JT_NAME, "elif"))
            break;
        n->cond.elif = soq__jparse_node(p, JN_IF, p->at->line);
        n = n->cond.elif;
    }
    if (!n)
        return NULL;
    if (!soq__jparse_skip(p, JT_NAME, "else"))
        p->at++;
    else if (!parse_whole_body(p, "endif", &n->cond.no))
        return NULL;
    p->conditional--;
    return first;
}

bool soq__jparse_signature(struct jparser *p, struct jnode **params_out)
{
    struct jnode **end = params_out;
    bool defaults = false;

    if (!soq__jparse_expect(p, JT_OPERATOR, "("))
        return false;
    while (!soq__jtoken_is(p->at, JT_OPERATOR, ")")) {
        struct jnode *n = soq__jparse_node(p, JN_PARAM, p->at->line);

        if (!n || (*params_out && !soq__jparse_expect(p, JT_OPERATOR, ",")) ||
            !(n->param.name = soq__jparse_name(p, &p->at->text)) || !soq__jparse_expect(p, JT_NAME, NULL))
            return false;
        if (soq__jparse_skip(p, JT_OPERATOR, "=")) {
            n->param.value = soq__jparse_expression(p);
            defaults = true;
            if (!n->param.value)
                return false;
        } else if (defaults) {
            soq__jparse_fail(p, n->line, "a parameter without default follows one with a default");
            return false;
        }
        *end = n;
        end = &n->next;
    }
    return soq__jparse_expect(p, JT_OPERATOR, ")");
}

/* A body that runs on its own: loops and conditions around it do not count inside. n is the innermost macro meanwhile. */
static bool parse_macro_body(struct jparser *p, struct jnode *n, const char *end)
{
    unsigned loops = p->loops, conditional = p->conditional;
    bool ok;

    p->loops = p->conditional = 0;
    n->next = p->macro;
    p->macro = n;
    ok = parse_whole_body(p, end, &n->macro.body);
    p->macro = n->next;
    n->next = NULL;
    p->loops = loops;
    p->conditional = conditional;
    return ok;
}

static struct jnode *parse_macro(struct jparser *p, uint32_t line)
{
    struct jnode *n = soq__jparse_node(p, JN_MACRO, line);

    if (!n || !(n->macro.name = soq__jparse_name(p, &p->at->text)) || !soq__jparse_expect(p, JT_NAME, NULL) ||
        !soq__jparse_signature(p, &n->macro.params))
        return NULL;
    return parse_macro_body(p, n, "endmacro") ? n : NULL;
}

static struct jnode *parse_call_block(struct jparser *p, uint32_t line)
{
    struct jnode *n = soq__jparse_node(p, JN_CALL_BLOCK, line);

    if (!n || (soq__jtoken_is(p->at, JT_OPERATOR, "(") && !soq__jparse_signature(p, &n->macro.params)))
        return NULL;
    n->macro.call = soq__jparse_expression(p);
    if (!n->macro.call)
        return NULL;
    if (n->macro.call->kind != JN_CALL) {
        soq__jparse_fail(p, line, "a call block needs a call, such as {%% call name() %%}");
        return NULL;
    }
    return parse_macro_body(p, n, "endcall") ? n : NULL;
}

static struct jnode *parse_filter_block(struct jparser *p, uint32_t line)
{
    struct jnode *n = soq__jparse_node(p, JN_FILTER_BLOCK, line);

    if (!n || !(n->set.filter = soq__jparse_filters(p, NULL, true)))
        return NULL;
    return parse_whole_body(p, "endfilter", &n->set.body) ? n : NULL;
}

static struct jnode *parse_with(struct jparser *p, uint32_t line)
{
    struct jnode *n = soq__jparse_node(p, JN_WITH, line), **end = n ? &n->with.vars : NULL;

    while (n && p->at->type != JT_BLOCK_CLOSE) {
        struct jnode *set = soq__jparse_node(p, JN_SET, p->at->line);

        if (!set || (n->with.vars && !soq__jparse_expect(p, JT_OPERATOR, ",")) ||
            !(set->set.target = soq__jparse_target(p, NULL, false)) || !soq__jparse_expect(p, JT_OPERATOR, "=") ||
            !(set->set.value = soq__jparse_expression(p)))
            return NULL;
        *end = set;
        end = &set->next;
    }
    return n && parse_whole_body(p, "endwith", &n->with.body) ? n : NULL;
}

/* {% generation %}: what the assistant said, for training masks; here just a scope. */
static struct jnode *parse_generation(struct jparser *p, uint32_t line)
{
    struct jnode *n = soq__jparse_node(p, JN_SCOPE, line);

    return n && parse_whole_body(p, "endgeneration", &n->items) ? n : NULL;
}

static struct jnode *parse_print(struct jparser *p, uint32_t line)
{
    struct jnode *n = soq__jparse_node(p, JN_PRINT, line), **end = n ? &n->items : NULL;

    while (n && p->at->type != JT_BLOCK_CLOSE) {
        if (n->items && !soq__jparse_expect(p, JT_OPERATOR, ","))
            return NULL;
        *end = soq__jparse_expression(p);
        if (!*end)
            return NULL;
        end = &(*end)->next;
    }
    return n;
}

static struct jnode *parse_jump(struct jparser *p, uint32_t line)
{
    bool is_break = soq__jtoken_is(p->at - 1, JT_NAME, "break");

    if (p->loops == 0) {
        soq__jparse_fail(p, line, "%s outside of a for loop", is_break ? "break" : "continue");
        return NULL;
    }
    return soq__jparse_node(p, is_break ? JN_BREAK : JN_CONTINUE, line);
}

static const struct {
    const char *name;
    statement_fn *parse;
} statements[] = {
    {"set", parse_set},         {"for", parse_for},
    {"if", parse_if},           {"macro", parse_macro},
    {"call", parse_call_block}, {"filter", parse_filter_block},
    {"with", parse_with},       {"generation", parse_generation},
    {"print", parse_print},     {"break", parse_jump},
    {"continue", parse_jump},
};

static struct jnode *unknown_tag(struct jparser *p, const char *const *ends)
{
    const char *names[JTABLE_COUNT(statements) + 4], *near;
    char name[65];
    size_t count = 0, n = (size_t)soq__jclip(&p->at->text);

    memcpy(name, p->at->text.p, n);
    name[n] = '\0';
    for (size_t i = 0; i < JTABLE_COUNT(statements); i++)
        names[count++] = statements[i].name;
    for (; ends && *ends; ends++)
        names[count++] = *ends;
    near = soq__nearest(name, names, count);
    if (p->at->type != JT_NAME)
        soq__jparse_unexpected(p, "the name of a tag");
    else if (near)
        soq__jparse_fail(p, p->at->line, "unknown tag {%% %s %%}; did you mean %s?", name, near);
    else
        soq__jparse_fail(p, p->at->line, "unknown or misplaced tag {%% %s %%}", name);
    return NULL;
}

static struct jnode *parse_statement(struct jparser *p, const char *const *ends)
{
    const struct jtoken *t = p->at;
    struct jnode *n;

    for (size_t i = 0; i < JTABLE_COUNT(statements); i++) {
        if (!soq__jtoken_is(t, JT_NAME, statements[i].name))
            continue;
        p->at++;
        n = statements[i].parse(p, t->line);
        return n && soq__jparse_expect(p, JT_BLOCK_CLOSE, NULL) ? n : NULL;
    }
    return unknown_tag(p, ends);
}

static struct jnode *parse_output(struct jparser *p)
{
    struct jnode *n = soq__jparse_node(p, JN_PRINT, p->at->line);

    p->at++;
    if (!n || !(n->items = soq__jparse_tuple(p, JTUPLE_COND, NULL)))
        return NULL;
    return soq__jparse_expect(p, JT_VAR_CLOSE, NULL) ? n : NULL;
}

static struct jnode *parse_text(struct jparser *p)
{
    struct jnode *n = soq__jparse_node(p, JN_TEXT, p->at->line);
    const struct jstr *s = n ? soq__jparse_name(p, &p->at->text) : NULL;

    if (!s)
        return NULL;
    n->value = jv_str(s);
    p->at++;
    return n;
}

static bool at_end_tag(const struct jparser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (soq__jtoken_is(p->at, JT_NAME, *ends))
            return true;
    return false;
}

/* Text, outputs and statements up to one of the tags (ends = NULL: the template's end). */
static bool parse_list(struct jparser *p, const char *const *ends, struct jnode **out)
{
    struct jnode **end = out;

    while (p->at->type != JT_EOF) {
        if (p->at->type == JT_DATA) {
            *end = parse_text(p);
        } else if (p->at->type == JT_VAR_OPEN) {
            *end = parse_output(p);
        } else {
            p->at++;
            if (at_end_tag(p, ends))
                return true;
            *end = parse_statement(p, ends);
        }
        if (!*end)
            return false;
        end = &(*end)->next;
    }
    if (ends)
        soq__jparse_fail(p, p->at->line, "the template ends where {%% %s %%} was expected", ends[0]);
    return ends == NULL;
}

int soq__jinja_parse(const char *src, size_t n, struct soq__jinja **out, struct soq_error *err)
{
    struct soq__jinja *tpl;
    struct jtoken *tokens;
    struct jparser p;
    int rc;

    if (n > SOURCE_MAX)
        return soq__fail(err, SOQ_ELIMIT, "the template has %zu bytes; at most %zu are allowed", n, SOURCE_MAX);
    if (!soq__utf8_valid(src, n))
        return soq__fail(err, SOQ_EINVAL, "the template is not valid UTF-8");
    tpl = soq__alloc_zero(1, sizeof *tpl);
    if (!tpl)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    tpl->mem = (struct jmem){.limit = PARSE_MEMORY, .err = err};
    if (!soq__jinja_lex(&tpl->mem, src, n, &tokens)) {
        p = (struct jparser){.m = &tpl->mem, .at = tokens};
        parse_list(&p, NULL, &tpl->body);
    }
    rc = tpl->mem.rc;
    if (rc) {
        soq__jinja_free(tpl);
        return rc;
    }
    tpl->mem.err = NULL;
    *out = tpl;
    return 0;
}

void soq__jinja_free(struct soq__jinja *tpl)
{
    if (!tpl)
        return;
    soq__jmem_done(&tpl->mem);
    soq__free(tpl);
}
