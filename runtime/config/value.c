/* Typed values: one parser per option type, and the text that says what an option takes. */
#include "config/value.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/nearest.h"

#define CHOICES_MAX 64

static bool is_limited(const struct soq_option *o)
{
    return o->min <= o->max;
}

static const char *const type_names[] = {
    [SOQ_OPT_INT] = "an integer", [SOQ_OPT_FLOAT] = "a number",
    [SOQ_OPT_BOOL] = "yes or no", [SOQ_OPT_STRING] = "text",
    [SOQ_OPT_ENUM] = "one of",    [SOQ_OPT_SIZE] = "a size in bytes (suffixes KiB, MiB, GiB, TiB, kB, MB, GB, TB)",
    [SOQ_OPT_PATH] = "a path",
};

void soq__option_describe(const struct soq_option *option, struct soq_buf *out)
{
    bool is_number = option->type == SOQ_OPT_INT || option->type == SOQ_OPT_FLOAT || option->type == SOQ_OPT_SIZE;

    soq__buf_puts(out, type_names[option->type]);
    if (option->type == SOQ_OPT_ENUM)
        soq__buf_printf(out, " %s", option->choices);
    if (!is_number || !is_limited(option))
        return;
    if (option->max >= (double)INT64_MAX)
        soq__buf_printf(out, ", at least %.16g", option->min);
    else if (option->min <= (double)INT64_MIN)
        soq__buf_printf(out, ", at most %.16g", option->max);
    else
        soq__buf_printf(out, ", %.16g to %.16g", option->min, option->max);
}

static int fail_expected(const struct soq_option *o, const char *problem, struct soq_error *err)
{
    struct soq_buf text = SOQ_BUF_INIT;
    int rc;

    soq__option_describe(o, &text);
    rc = soq__fail(err, SOQ_EINVAL, "%s; expected %s", problem, soq__buf_str(&text));
    soq__buf_done(&text);
    return rc;
}

static int check_range(const struct soq_option *o, double number, struct soq_error *err)
{
    if (is_limited(o) && !(number >= o->min && number <= o->max))
        return fail_expected(o, "out of range", err);
    return 0;
}

static int parse_int(const struct soq_option *o, const char *text, int64_t *out, struct soq_error *err)
{
    size_t sign = text[0] == '-' || text[0] == '+';
    long long number;

    if (!text[sign] || text[sign + strspn(text + sign, "0123456789")])
        return fail_expected(o, "not an integer", err);
    errno = 0;
    number = strtoll(text, NULL, 10);
    if (errno)
        return fail_expected(o, "out of range", err);
    *out = number;
    return check_range(o, (double)number, err);
}

/* strtod reads the decimal point of the embedding program's locale, an INI file always has a full stop. */
static int parse_float(const struct soq_option *o, const char *text, double *out, struct soq_error *err)
{
    locale_t c_locale;
    char *end;

    if (!text[0] || text[strspn(text, "0123456789+-.eE")])
        return fail_expected(o, "not a finite decimal number", err);
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    *out = strtod_l(text, &end, c_locale);
    freelocale(c_locale);
    if (*end || end == text)
        return fail_expected(o, "not a finite decimal number", err);
    if (!isfinite(*out))
        return fail_expected(o, "out of range", err);
    return check_range(o, *out, err);
}

static int parse_bool(const struct soq_option *o, const char *text, bool *out, struct soq_error *err)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i % 2;
            return 0;
        }
    }
    return fail_expected(o, "neither yes nor no", err);
}

static int parse_size(const struct soq_option *o, const char *text, uint64_t *out, struct soq_error *err)
{
    static const struct {
        const char *suffix;
        uint64_t unit;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", UINT64_C(1) << 10},
        {"MiB", UINT64_C(1) << 20},
        {"GiB", UINT64_C(1) << 30},
        {"TiB", UINT64_C(1) << 40},
        {"kB", UINT64_C(1000)},
        {"MB", UINT64_C(1000000)},
        {"GB", UINT64_C(1000000000)},
        {"TB", UINT64_C(1000000000000)},
    };
    size_t digits = strspn(text, "0123456789"), i = 0;
    const char *suffix = text + digits + strspn(text + digits, " ");
    unsigned long long number;

    while (i < sizeof units / sizeof *units && strcasecmp(suffix, units[i].suffix) != 0)
        i++;
    if (!digits || i == sizeof units / sizeof *units)
        return fail_expected(o, "not a size", err);
    errno = 0;
    number = strtoull(text, NULL, 10);
    if (errno || __builtin_mul_overflow(number, units[i].unit, out) || *out > INT64_MAX)
        return fail_expected(o, "out of range", err);
    return check_range(o, (double)*out, err);
}

/* Splits choices "a|b|c" in place: `copy` holds the words, names[] point to them. */
static size_t split_choices(char *copy, const char *names[CHOICES_MAX])
{
    size_t count = 0;

    for (char *word; count < CHOICES_MAX && (word = strsep(&copy, "|"));)
        names[count++] = word;
    return count;
}

static int parse_enum(const struct soq_option *o, const char *text, unsigned *out, struct soq_error *err)
{
    char *copy = soq__strdup(o->choices);
    const char *names[CHOICES_MAX], *near;
    size_t count, i = 0;
    int rc = 0;

    if (!copy)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    count = split_choices(copy, names);
    while (i < count && strcmp(text, names[i]) != 0)
        i++;
    near = i == count ? soq__nearest(text, names, count) : NULL;
    if (near)
        rc = soq__fail(err, SOQ_EINVAL, "not one of %s; did you mean '%s'?", o->choices, near);
    else if (i == count)
        rc = fail_expected(o, "no such choice", err);
    else
        *out = (unsigned)i;
    soq__free(copy);
    return rc;
}

static char *resolve(const struct soq__spec *spec, const char *from, const char *text)
{
    return spec->option.type == SOQ_OPT_PATH && text[0] ? soq__path_resolve(from, text) : soq__strdup(text);
}

/* The word without surrounding blanks, in place. */
static char *trim(char *word)
{
    size_t n;

    word += strspn(word, " \t");
    n = strlen(word);
    while (n && (word[n - 1] == ' ' || word[n - 1] == '\t'))
        n--;
    word[n] = '\0';
    return word;
}

/* Splits `copy` at commas into value->items, which has room for all. */
static int split_items(const struct soq__spec *spec, char *copy, const char *from, struct soq__value *value,
                       struct soq_error *err)
{
    for (char *rest = copy, *word; (word = strsep(&rest, ","));) {
        word = trim(word);
        if (!*word)
            return soq__fail(err, SOQ_EINVAL, "an element of the list is empty; expected elements between commas");
        value->items[value->count] = resolve(spec, from, word);
        if (!value->items[value->count])
            return soq__fail(err, SOQ_ENOMEM, "out of memory");
        value->count++;
    }
    return 0;
}

/* The elements to value->items, and joined again to value->text. */
static int parse_list(const struct soq__spec *spec, const char *text, const char *from, struct soq__value *value,
                      struct soq_error *err)
{
    char *copy = soq__strdup(text);
    struct soq_buf joined = SOQ_BUF_INIT;
    size_t room = 2;
    int rc = 0;

    for (const char *s = text; *s; s++)
        room += *s == ',';
    value->items = soq__alloc_zero(room, sizeof *value->items);
    if (!copy || !value->items)
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    else if (*text)
        rc = split_items(spec, copy, from, value, err);
    for (size_t i = 0; i < value->count; i++)
        soq__buf_printf(&joined, "%s%s", i ? ", " : "", value->items[i]);
    value->text = soq__buf_steal(&joined);
    soq__free(copy);
    return rc || value->text ? rc : soq__fail(err, SOQ_ENOMEM, "out of memory");
}

static int parse_scalar(const struct soq__spec *spec, const char *text, struct soq__value *value, struct soq_error *err)
{
    const struct soq_option *o = &spec->option;

    switch ((enum soq_option_type)o->type) {
    case SOQ_OPT_INT:
        return parse_int(o, text, &value->as.integer, err);
    case SOQ_OPT_FLOAT:
        return parse_float(o, text, &value->as.real, err);
    case SOQ_OPT_BOOL:
        return parse_bool(o, text, &value->as.flag, err);
    case SOQ_OPT_ENUM:
        return parse_enum(o, text, &value->as.choice, err);
    case SOQ_OPT_SIZE:
        return parse_size(o, text, &value->as.size, err);
    case SOQ_OPT_STRING:
    case SOQ_OPT_PATH:
        return 0;
    }
    return soq__fail(err, SOQ_EINTERNAL, "option '%s' has no known type", o->key);
}

int soq__value_parse(const struct soq__spec *spec, const char *text, const char *from, struct soq__value *value_out,
                     struct soq_error *err)
{
    struct soq__value value = {0};
    const char *problem = spec->problem ? spec->problem(text) : NULL;
    int rc;

    if (spec->list) {
        rc = parse_list(spec, text, from, &value, err);
    } else {
        rc = parse_scalar(spec, text, &value, err);
        value.text = rc ? NULL : resolve(spec, from, text);
        if (!rc && !value.text)
            rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    }
    if (!rc && problem)
        rc = soq__fail(err, SOQ_EINVAL, "%s", problem);
    if (rc)
        soq__value_done(&value);
    else
        *value_out = value;
    return rc;
}

void soq__value_done(struct soq__value *value)
{
    for (size_t i = 0; i < value->count; i++)
        soq__free(value->items[i]);
    soq__free(value->items);
    soq__free(value->text);
    *value = (struct soq__value){0};
}

int soq__option_check(const struct soq_option *option, struct soq_error *err)
{
    if (option->struct_size < sizeof *option)
        return soq__fail(err, SOQ_EABI, "an option's struct_size is %u, at least %zu is needed", option->struct_size,
                         sizeof *option);
    if (!option->key || !option->key[0] || option->key[strspn(option->key, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        return soq__fail(err, SOQ_EINVAL, "option key '%s': expected letters a-z, digits and _",
                         option->key ? option->key : "(null)");
    if (option->type < SOQ_OPT_INT || option->type > SOQ_OPT_PATH)
        return soq__fail(err, SOQ_EINVAL, "option '%s': unknown type %u", option->key, option->type);
    if (!option->default_value || !option->help)
        return soq__fail(err, SOQ_EINVAL, "option '%s': the default or the help text is missing", option->key);
    if (option->type == SOQ_OPT_ENUM && (!option->choices || !option->choices[0]))
        return soq__fail(err, SOQ_EINVAL, "option '%s': the choices are missing", option->key);
    return 0;
}
