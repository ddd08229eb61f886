/* The template interpreter against what Python's jinja2 rendered (tests/tools/make_jinja_cases.py), its limits, its messages,
 * and every allocation failing in turn. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "support.h"
#include "text/jinja.h"

/* Parses and renders; every string of the context is untrusted. */
static int render_n(const char *src, size_t n, const json_t *context, int64_t now, const struct soq__jinja_limits *limits,
                    struct soq__rendered *out, struct soq_error *err)
{
    struct soq__jinja_context c = {.untrusted = context, .now = now};
    struct soq__jinja *tpl;
    int rc = soq__jinja_parse(src, n, &tpl, err);

    if (rc)
        return rc;
    rc = soq__jinja_render(tpl, &c, limits, out, err);
    soq__jinja_free(tpl);
    return rc;
}

static int render(const char *src, const json_t *context, struct soq__rendered *out, struct soq_error *err)
{
    return render_n(src, strlen(src), context, 0, NULL, out, err);
}

static void expect_text(const char *src, const char *wanted)
{
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect_eq(render(src, NULL, &out, &err), 0, "%s: %s", src, err.text);
    cr_expect_str_eq(soq__buf_str(&out.text), wanted, "%s", src);
    soq__rendered_done(&out);
}

static void expect_error(const char *src, int code, const char *message)
{
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect_eq(render(src, NULL, &out, &err), code, "%s: %s", src, err.text);
    cr_expect_eq(err.code, code);
    cr_expect_str_eq(err.text, message);
    cr_expect_eq(out.text.data, NULL, "out is left alone");
    cr_expect_eq(soq__alloc_live(), 0);
}

/* ---- the oracle ---- */

static json_t *load_cases(void)
{
    json_error_t why;
    json_t *all = json_load_file(soq__test_data("jinja/cases.json"), JSON_ALLOW_NUL, &why);

    cr_assert(all, "%s: %s", soq__test_data("jinja/cases.json"), why.text);
    return all;
}

static void load_template(const char *name, struct soq_buf *out)
{
    struct soq_error err = SOQ_ERROR_INIT;
    char path[256];

    snprintf(path, sizeof path, "jinja/templates/%s.jinja", name);
    cr_assert_eq(soq__file_read(soq__test_data(path), 1 << 20, out, &err), 0, "%s", err.text);
}

static void check_outcome(const json_t *c, int rc, const struct soq__rendered *out, const struct soq_error *err)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    const json_t *output = json_object_get(c, "output"), *raises = json_object_get(c, "raises");

    if (output) {
        cr_expect_eq(rc, 0, "%s: %s", name, err->text);
        cr_expect(out->text.len == json_string_length(output) &&
                      memcmp(soq__buf_str(&out->text), json_string_value(output), out->text.len) == 0,
                  "%s\nwanted: %s\ngot:    %s", name, json_string_value(output), soq__buf_str(&out->text));
    } else if (raises) {
        cr_expect_eq(rc, -SOQ_EINVAL, "%s", name);
        cr_expect_str_eq(err->text, json_string_value(raises), "%s", name);
    } else {
        cr_expect(rc == -SOQ_EINVAL || rc == -SOQ_ELIMIT, "%s rendered as: %s", name, soq__buf_str(&out->text));
        cr_expect(strlen(err->text) > 0);
    }
}

Test(jinja, renders_what_python_renders)
{
    json_t *all = load_cases(), *cases = json_object_get(all, "cases"), *contexts = json_object_get(all, "contexts");
    int64_t now = json_integer_value(json_object_get(all, "now"));
    size_t chats = 0;

    setenv("TZ", "UTC0", 1);
    tzset();
    cr_assert_gt(json_array_size(cases), 2000);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *chat = json_object_get(c, "chat"), *text = json_object_get(c, "template");
        const json_t *context = json_array_get(contexts, (size_t)json_integer_value(json_object_get(c, "context")));
        struct soq_buf src = SOQ_BUF_INIT;
        struct soq__rendered out = SOQ__RENDERED_INIT;
        struct soq_error err = SOQ_ERROR_INIT;

        if (chat)
            load_template(json_string_value(chat), &src);
        else
            soq__buf_append(&src, json_string_value(text), json_string_length(text));
        check_outcome(c, render_n(soq__buf_str(&src), src.len, context, now, NULL, &out, &err), &out, &err);
        chats += chat != NULL;
        soq__rendered_done(&out);
        soq__buf_done(&src);
    }
    cr_expect_gt(chats, 600);
    json_decref(all);
    cr_expect_eq(soq__alloc_live(), 0);
}

/* ---- provenance ---- */

/* A copy of j in which every character of every string value is U+0416, except for the words that templates compare with. */
static json_t *masked(const json_t *j)
{
    static const char *const keep[] = {"role", "type", "id", "tool_call_id"};
    const char *key;
    json_t *v, *copy;
    size_t i;

    if (json_is_string(j)) {
        struct soq_buf b = SOQ_BUF_INIT;

        for (i = 0; i < json_string_length(j); i++)
            soq__buf_puts(&b, "\xD0\x96");
        copy = json_string(soq__buf_str(&b));
        soq__buf_done(&b);
        return copy;
    }
    copy = json_is_object(j) ? json_object() : json_is_array(j) ? json_array() : json_deep_copy(j);
    if (json_is_object(j)) {
        json_object_foreach((json_t *)(uintptr_t)j, key, v)
        {
            bool kept = false;

            for (size_t k = 0; k < 4; k++)
                kept |= strcmp(key, keep[k]) == 0;
            json_object_set_new(copy, key, kept ? json_deep_copy(v) : masked(v));
        }
    } else if (json_is_array(j)) {
        json_array_foreach(j, i, v) json_array_append_new(copy, masked(v));
    }
    return copy;
}

static bool is_untrusted(const struct soq__rendered *r, size_t at)
{
    for (size_t i = 0; i < r->untrusted_count; i++)
        if (at >= r->untrusted[i].start && at < r->untrusted[i].end)
            return true;
    return false;
}

/* Every masked character is in a span, and spans are ascending, disjoint and within the text. */
static size_t check_spans(const struct soq__rendered *r, const char *name)
{
    size_t end = 0, found = 0;

    for (size_t i = 0; i < r->untrusted_count; i++) {
        cr_expect_lt(r->untrusted[i].start, r->untrusted[i].end, "%s", name);
        cr_expect(r->untrusted[i].start >= end && r->untrusted[i].end <= r->text.len, "%s", name);
        end = r->untrusted[i].end;
    }
    for (size_t i = 0; i + 1 < r->text.len; i++) {
        if (memcmp(r->text.data + i, "\xD0\x96", 2) != 0)
            continue;
        found++;
        cr_expect(is_untrusted(r, i) && is_untrusted(r, i + 1), "%s: byte %zu in: %s", name, i, r->text.data);
    }
    return found;
}

Test(jinja, whatever_comes_from_the_context_is_marked)
{
    json_t *all = load_cases(), *cases = json_object_get(all, "cases"), *contexts = json_object_get(all, "contexts");
    size_t found = 0;

    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *chat = json_object_get(c, "chat"), *text = json_object_get(c, "template");
        const char *name = json_string_value(json_object_get(c, "name"));
        json_t *context = masked(json_array_get(contexts, (size_t)json_integer_value(json_object_get(c, "context"))));
        struct soq_buf src = SOQ_BUF_INIT;
        struct soq__rendered out = SOQ__RENDERED_INIT;

        if (chat)
            load_template(json_string_value(chat), &src);
        else
            soq__buf_append(&src, json_string_value(text), json_string_length(text));
        if (render_n(soq__buf_str(&src), src.len, context, 1, NULL, &out, NULL) == 0)
            found += check_spans(&out, name);
        soq__rendered_done(&out);
        soq__buf_done(&src);
        json_decref(context);
    }
    cr_expect_gt(found, 10000);
    json_decref(all);
    cr_expect_eq(soq__alloc_live(), 0);
}

/* Renders with x = "aXb" (untrusted) and compares the untrusted bytes, each range in brackets. */
static void expect_marked(const char *src, const char *wanted)
{
    json_t *context = json_pack("{s:s,s:[s,s],s:{s:s}}", "x", "aXb", "l", "p", "q<", "d", "k", "v");
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_buf b = SOQ_BUF_INIT;
    size_t at = 0;

    cr_expect_eq(render(src, context, &out, &err), 0, "%s: %s", src, err.text);
    for (size_t i = 0; i < out.untrusted_count; i++) {
        soq__buf_append(&b, out.text.data + at, out.untrusted[i].start - at);
        soq__buf_putc(&b, '[');
        soq__buf_append(&b, out.text.data + out.untrusted[i].start, out.untrusted[i].end - out.untrusted[i].start);
        soq__buf_putc(&b, ']');
        at = out.untrusted[i].end;
    }
    soq__buf_puts(&b, soq__buf_str(&out.text) + at);
    cr_expect_str_eq(soq__buf_str(&b), wanted, "%s", src);
    soq__buf_done(&b);
    soq__rendered_done(&out);
    json_decref(context);
}

Test(jinja, provenance_is_exact)
{
    expect_marked("a{{ x }}b", "a[aXb]b");
    expect_marked("{{ '<' + x + '>' }}{{ '<' ~ x ~ '>' }}", "<[aXb]><[aXb]>");
    expect_marked("{{ ('<' + x + '>')[::-1] }}", ">[bXa]<");
    expect_marked("{{ ('<' + x + '>')[1:3] }}{{ ('<' + x + '>')[:2] }}", "[aX]<[a]");
    expect_marked("{{ ('  ' + x + ' ') | trim }}|{{ (x + 'ab').strip('ab') }}", "[aXb]|[X]");
    expect_marked("{{ ('c' ~ x) | upper }}{{ x | title }}{{ ('é' ~ x).capitalize() }}", "C[AXBAxb]É[axb]");
    expect_marked("{{ x.replace('X', '<tag>') }}{{ '<X>'.replace('X', x) }}", "[a]<tag>[b]<[aXb]>");
    expect_marked("{{ l | join('+') }}{{ ['u', 'v'] | join(x) }}", "[p]+[q<]u[aXb]v");
    expect_marked("{{ l }}{{ d }}{{ d | tojson }}", "['[p]', '[q<]']{'[k]': '[v]'}{\"[k]\": \"[v]\"}");
    expect_marked("{{ l | tojson(indent=1) }}", "[\n \"[p]\",\n \"[q<]\"\n]");
    expect_marked("{{ x.split('X') }}{{ x.partition('X') }}", "['[a]', '[b]']('[a]', '[X]', '[b]')");
    expect_marked("{{ l[1] | e }}{{ (l[1] | safe) + '<' }}", "[q&lt;q<]&lt;");
    expect_marked("{{ '%s-%5s' % (x, x) }}{{ '%s{}'.format(x) }}", "[aXb]-  [aXb]%s[aXb]");
    expect_marked("{{ ('<\n' ~ x ~ '\n>') | indent(2) }}", "<\n  [aXb]\n  >");
    expect_marked("{% set y %}<{{ x }}>{% endset %}{{ y * 2 }}", "<[aXb]><[aXb]>");
    expect_marked("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x) }}{% filter upper %}{{ x }}y{% endfilter %}",
                  "<[aXb]>[AXB]Y");
    expect_marked("{% set ns = namespace(t='') %}{% for c in x %}{% set ns.t = ns.t + c + '.' %}{% endfor %}{{ ns.t }}",
                  "[a].[X].[b].");
    expect_marked("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}{{ l | map('upper') | join }}", "[k]=[vPQ<]");
    expect_marked("{{ x | length }}{{ x == 'aXb' }}{{ [x, 1][1] }}{{ {x: 2} }}", "3True1{'[aXb]': 2}");
    expect_marked("{{ '%c' % 60 }}{{ 'ab'.center(6, x[0]) }}{{ strftime_now(x) }}", "[<aa]ab[aaaXb]");
    expect_marked("{{ x | list | reverse | join }}{{ l | sort(reverse=true) | first }}", "[bXaq<]");
    cr_expect_eq(soq__alloc_live(), 0);
}

Test(jinja, trusted_variables_and_precedence)
{
    json_t *trusted = json_pack("{s:s}", "bos", "<s>"), *untrusted = json_pack("{s:s,s:s}", "bos", "evil", "m", "<s>");
    json_t *extra = json_pack("{s:s,s:s}", "m", "hidden", "e", "x");
    struct soq__jinja_context c = {.trusted = trusted, .untrusted = untrusted, .extra = extra};
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__jinja *tpl;

    cr_assert_eq(soq__jinja_parse("{{ bos }}{{ m }}{{ bos }}{{ e }}", 32, &tpl, &err), 0);
    cr_expect_eq(soq__jinja_render(tpl, &c, NULL, &out, &err), 0, "%s", err.text);
    cr_expect_str_eq(soq__buf_str(&out.text), "<s><s><s>x");
    cr_assert_eq(out.untrusted_count, 2);
    cr_expect(out.untrusted[0].start == 3 && out.untrusted[0].end == 6);
    cr_expect(out.untrusted[1].start == 9 && out.untrusted[1].end == 10);
    soq__jinja_free(tpl);
    soq__rendered_done(&out);
    json_decref(trusted);
    json_decref(untrusted);
    json_decref(extra);
    cr_expect_eq(soq__alloc_live(), 0);
}

/* ---- formats ---- */

#define ZEROS_49 "0000000000000000000000000000000000000000000000000"

/* As Python: '%.100d' % 7 and so on. */
Test(jinja, precision_and_width_of_numbers)
{
    expect_text("{{ '%.100d' % 7 }}", ZEROS_49 ZEROS_49 "07");
    expect_text("{{ '%+.99d|%#.100x' % (-7, 255) }}", "-" ZEROS_49 ZEROS_49 "7|0x" ZEROS_49 ZEROS_49 "ff");
    expect_text("{{ '%.*f %.*d' % (-1, 2.5, -3, 4) }}", "2 4");
    expect_text("{{ '%*d|' % (-4, 1) }}", "1   |");
    expect_error("{{ '%.301d' % 7 }}", -SOQ_EINVAL, "template line 1: format string: precision too large");
    expect_error("{{ '%*d' % (2147483648, 1) }}", -SOQ_EINVAL, "template line 1: format string: width or precision too large");
    expect_error("{{ '%*d' % (-9223372036854775807 - 1, 1) }}", -SOQ_EINVAL,
                 "template line 1: format string: width or precision too large");
}

/* ---- messages ---- */

Test(jinja, errors_name_line_and_nearest)
{
    expect_error("a\n{{ x|uper }}", -SOQ_EINVAL, "template line 2: unknown filter 'uper'; did you mean 'upper'?");
    expect_error("{% if true %}\n{{ 1|uper }}{% endif %}", -SOQ_EINVAL,
                 "template line 2: unknown filter 'uper'; did you mean 'upper'?");
    expect_error("{% if false %}{{ 1|uper }}{% endif %}{{ 1 is defnied }}", -SOQ_EINVAL,
                 "template line 1: unknown test 'defnied'; did you mean 'defined'?");
    expect_error("\n\n{{ rnage(3) }}", -SOQ_EINVAL, "template line 3: unknown function 'rnage'; did you mean 'range'?");
    expect_error("{{ 'a'.uper() }}", -SOQ_EINVAL, "template line 1: unknown method of str 'uper'; did you mean 'upper'?");
    expect_error("{% fro x in y %}", -SOQ_EINVAL, "template line 1: unknown tag {% fro %}; did you mean for?");
    expect_error("{% if x %}\n{% endfi %}", -SOQ_EINVAL, "template line 2: unknown tag {% endfi %}; did you mean endif?");
    expect_error("{% if x %}\n", -SOQ_EINVAL, "template line 1: the template ends where {% elif %} was expected");
    expect_error("\n{{ x.y }}", -SOQ_EINVAL, "template line 2: 'x' is undefined");
    expect_error("{{ {}.a.b }}", -SOQ_EINVAL, "template line 1: 'dict object' has no attribute 'a'");
    expect_error("{{ 1 +\n 'a' }}", -SOQ_EINVAL, "template line 2: int + str is not possible");
    expect_error("{{ 'a' | join(nope=1) }}", -SOQ_EINVAL, "template line 1: join() has no parameter 'nope'");
    expect_error(
        "{{ [].append(1) }}", -SOQ_EINVAL,
        "template line 1: access to attribute 'append' of 'list' object is unsafe: values cannot be changed; use a namespace");
    expect_error("{{ 9223372036854775807 + 1 }}", -SOQ_ELIMIT, "template line 1: the result of + is beyond 64 bits");
    expect_error("{{ 99999999999999999999 }}", -SOQ_EINVAL, "template line 1: integer beyond 64 bits: 99999999999999999999");
    expect_error("x\n{% macro m() %}\n{{ nope.x }}{% endmacro %}\n{{ m() }}", -SOQ_EINVAL,
                 "template line 3: 'nope' is undefined");
    expect_error("{{ \xff }}", -SOQ_EINVAL, "the template is not valid UTF-8");
}

Test(jinja, raise_exception_arrives_as_given)
{
    expect_error("{{ raise_exception('Only 100% \"user\"\nroles — ok?') }}", -SOQ_EINVAL, "Only 100% \"user\"\nroles — ok?");
}

Test(jinja, no_attribute_leads_out_of_the_sandbox)
{
    expect_text("{{ ''.__class__ }}|{{ [].__len__ is defined }}|{{ range.__globals__ }}|{{ {'_a': 1}._a }}", "|False||1");
    expect_error("{{ ''.__class__.__mro__ }}", -SOQ_EINVAL, "template line 1: 'str object' has no attribute '__class__'");
}

/* ---- limits ---- */

static void expect_limit(const char *src, size_t n, const struct soq__jinja_limits *limits)
{
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect_eq(render_n(src, n, NULL, 0, limits, &out, &err), -SOQ_ELIMIT, "%.60s: %s", src, err.text);
    cr_expect_eq(out.text.data, NULL);
    cr_expect_eq(soq__alloc_live(), 0);
}

/* A million times `piece` between head and tail. */
static void expect_nesting_limit(const char *head, const char *piece, const char *tail)
{
    struct soq_buf b = SOQ_BUF_INIT;

    soq__buf_puts(&b, head);
    for (size_t i = 0; i < 1000000 && b.len + strlen(piece) + 100 < 4 << 20; i++)
        soq__buf_puts(&b, piece);
    soq__buf_puts(&b, tail);
    cr_assert(soq__buf_ok(&b));
    {
        struct soq__rendered out = SOQ__RENDERED_INIT;
        struct soq_error err = SOQ_ERROR_INIT;

        cr_expect_eq(render_n(b.data, b.len, NULL, 0, NULL, &out, &err), -SOQ_ELIMIT, "%s...: %s", piece, err.text);
        soq__rendered_done(&out);
    }
    soq__buf_done(&b);
    cr_expect_eq(soq__alloc_live(), 0);
}

Test(jinja, nesting_is_bounded)
{
    expect_nesting_limit("{{ ", "(", "");
    expect_nesting_limit("{{ ", "[", "");
    expect_nesting_limit("{{ ", "-", "1 }}");
    expect_nesting_limit("{{ ", "not ", "1 }}");
    expect_nesting_limit("{{ ", "1 if 1 else ", "1 }}");
    expect_nesting_limit("{{ 1", "+1", " }}");
    expect_nesting_limit("{{ x", "|d", " }}");
    expect_nesting_limit("{{ 1", ".a", " }}");
    expect_nesting_limit("{{ 1", " and 1", " }}");
    expect_nesting_limit("{{ ", "{1:", "");
    expect_nesting_limit("", "{% if 1 %}", "");
    expect_nesting_limit("{{ ", "a(", "");
    expect_nesting_limit("{% set x", "|d", "%}{% endset %}");
    expect_nesting_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "", "");
    expect_nesting_limit(
        "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", "", "");
}

Test(jinja, deep_values_are_bounded)
{
    static const char deep[] = "{% set ns = namespace(x=[], y=[]) %}{% for i in range(5000) %}"
                               "{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}";
    static const char *const uses[] = {"{{ ns.x|tojson }}", "{{ ns.x == ns.y }}", "{{ ns.x < ns.y }}", "{{ '%s' % ns.x }}"};

    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        char src[400];

        snprintf(src, sizeof src, "%s%s", deep, uses[i]);
        expect_limit(src, strlen(src), NULL);
    }
}

Test(jinja, work_is_bounded)
{
    static const struct soq__jinja_limits small = {.steps = 100000, .output_bytes = 1 << 16, .memory_bytes = 1 << 22};
    static const char *const greedy[] = {
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
        "{{ 'a\\nb' | indent(10**9) }}",
        "{{ [] | tojson(indent=10**9) }}{{ [1] | tojson(indent=10**9) }}",
        "{{ range(10) | slice(10**9) | list }}",
        "{{ [1] | batch(10**9, 0) | list }}",
        "{{ ('a' * 50000).replace('', 'b' * 50000) }}",
        "{{ range(3000) | map('string') | join('x' * 1000) }}",
        "{{ (range(100000) | list) | sum(start=[]) }}{{ range(100000) | list | unique | list | length }}",
        "{% for i in range(100000) %}aaaaaaaaaa{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{{ 'a' in 'b' * 1 and 2 ** 62 * 2 ** 62 }}{{ 2 ** 64 }}",
        /* memory ends at each of the three slices of a field */
        "{% set f = '{a}' * 20000 %}{{ f.format(a='') }}{{ f.format(a='') }}",
        "{% set f = '{a}' * 20000 %}{% set x = 'abc'[1:] %}{{ f.format(a='') }}{{ f.format(a='') }}",
        "{% set f = '{a}' * 20000 %}{% set x = 'abc'[1:][1:] %}{{ f.format(a='') }}{{ f.format(a='') }}",
    };

    for (size_t i = 0; i < sizeof greedy / sizeof greedy[0]; i++)
        expect_limit(greedy[i], strlen(greedy[i]), &small);
}

Test(jinja, time_is_bounded)
{
    static const struct soq__jinja_limits short_time = {
        .milliseconds = 50, .steps = UINT64_MAX, .memory_bytes = UINT64_C(1) << 40};
    static const char src[] =
        "{% for i in range(100000) %}{% for j in range(100000) %}{% if i == -1 %}{% endif %}{% endfor %}{% endfor %}";
    struct timespec before, after;

    clock_gettime(CLOCK_MONOTONIC, &before);
    expect_limit(src, sizeof src - 1, &short_time);
    clock_gettime(CLOCK_MONOTONIC, &after);
    cr_expect_lt(after.tv_sec - before.tv_sec, 5);
}

Test(jinja, defaults_are_generous_and_one_template_serves_many)
{
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__jinja *tpl;
    static const char src[] = "{% for m in range(50000) %}{{ m }}:{{ 'content' | trim }}\n{% endfor %}";

    cr_assert_eq(soq__jinja_parse(src, sizeof src - 1, &tpl, &err), 0);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(soq__jinja_render(tpl, NULL, NULL, &out, &err), 0, "%s", err.text);
        cr_expect_gt(out.text.len, 500000);
    }
    soq__rendered_done(&out);
    soq__jinja_free(tpl);
    cr_expect_eq(soq__alloc_live(), 0);
}

/* ---- every allocation fails once ---- */

Test(jinja, every_failed_allocation_is_reported)
{
    json_t *context = json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", "Grüße");
    struct soq_buf src = SOQ_BUF_INIT;
    uint64_t n;

    load_template("llama3.1", &src);
    soq__buf_puts(&src, "{% set x = 'a' * 3000000 %}{{ x }}");
    for (n = 1;; n++) {
        struct soq__rendered out = SOQ__RENDERED_INIT;
        struct soq_error err = SOQ_ERROR_INIT;
        int64_t live = soq__alloc_live();
        int rc;

        soq__alloc_fail_at(n, false);
        rc = render_n(src.data, src.len, context, 1, NULL, &out, &err);
        soq__alloc_fail_at(0, false);
        cr_expect_eq(soq__alloc_live(), live + (rc == 0 ? 2 : 0));
        soq__rendered_done(&out);
        if (rc == 0)
            break;
        cr_expect_eq(rc, -SOQ_ENOMEM, "%s", err.text);
        cr_expect(strstr(err.text, "out of memory") != NULL, "%s", err.text);
    }
    cr_expect_gt(n, 10, "only %llu allocations were tried", (unsigned long long)n);
    soq__buf_done(&src);
    json_decref(context);
}
