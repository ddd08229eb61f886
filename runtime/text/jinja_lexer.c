/* Template text to tokens. White space control is settled here: trim_blocks (the newline after a block tag or comment goes),
 * lstrip_blocks (blanks between the line's start and a block tag or comment go), "-" (all white space goes), "+" (nothing
 * goes). */
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_ast.h"
#include "text/jinja_string.h"
#include "text/jinja_unicode.h"

struct lexer {
    struct jmem *m;
    const char *src;
    size_t n, at;
    uint32_t line;
    bool line_starting; /* the last match ended with a newline, or this is the beginning */
    struct jtoken *tokens;
    size_t count, cap;
    char *closers; /* stack of the brackets that are open */
    size_t open, closers_cap;
};

static int fail(struct lexer *x, const char *what, const char *p, size_t n)
{
    const struct jstr quoted = {.p = p, .n = n};

    return soq__jfail(x->m, SOQ_EINVAL, "template line %u: %s%.*s", x->line, what, soq__jclip(&quoted), p);
}

static struct jtoken *add(struct lexer *x, enum jtoken_type type, const char *p, size_t n)
{
    struct jtoken *t;

    if (x->count == x->cap) {
        struct jtoken *tokens = soq__jmem_grow(x->m, x->tokens, x->count, 1, &x->cap, sizeof *tokens);

        if (!tokens)
            return NULL;
        x->tokens = tokens;
    }
    t = &x->tokens[x->count++];
    *t = (struct jtoken){.type = type, .line = x->line, .text = {.p = p, .n = n}};
    return t;
}

/* Moves on to `to`, counting lines. */
static void advance(struct lexer *x, size_t to)
{
    for (size_t i = x->at; i < to; i++)
        x->line += x->src[i] == '\n';
    if (to > x->at)
        x->line_starting = x->src[to - 1] == '\n';
    x->at = to;
}

static bool looking_at(const struct lexer *x, size_t at, const char *text)
{
    size_t n = strlen(text);

    return x->n - at >= n && memcmp(x->src + at, text, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    while (at < x->n) {
        uint32_t cp;
        size_t size = soq__utf8_decode(x->src + at, x->n - at, &cp);

        if (!size || !soq__ju_space(cp))
            break;
        at += size;
    }
    return at;
}

/* End of [from, to) without trailing white space. */
static size_t strip_right(const struct lexer *x, size_t from, size_t to)
{
    while (to > from) {
        size_t start = to - 1;
        uint32_t cp;

        while (start > from && to - start < 4 && ((unsigned char)x->src[start] & 0xC0) == 0x80)
            start--;
        if (soq__utf8_decode(x->src + start, to - start, &cp) != to - start || !soq__ju_space(cp))
            break;
        to = start;
    }
    return to;
}

/* Where text [from, to) ends that stands before a tag with the given sign; is_variable: lstrip_blocks does not apply. */
static size_t strip_text(const struct lexer *x, size_t from, size_t to, char sign, bool is_variable)
{
    size_t line = to, stripped = strip_right(x, from, to);

    if (sign == '-')
        return stripped;
    if (sign == '+' || is_variable)
        return to;
    while (line > from && x->src[line - 1] != '\n')
        line--;
    return (line > from || x->line_starting) && stripped <= line ? line : to;
}

/* The length of an end tag at `at` with what it strips, or 0. `trim`: a newline goes after it, and "+" is allowed. */
static size_t end_tag(const struct lexer *x, size_t at, const char *tag, bool trim)
{
    bool minus = at < x->n && x->src[at] == '-', plus = trim && at < x->n && x->src[at] == '+';
    size_t end = at + (minus || plus);

    if (!looking_at(x, end, tag))
        return 0;
    end += 2;
    if (minus)
        end = skip_space(x, end);
    else if (trim && !plus && end < x->n && x->src[end] == '\n')
        end++;
    return end - at;
}

static char sign_at(const struct lexer *x, size_t at)
{
    return at < x->n && (x->src[at] == '-' || x->src[at] == '+') ? x->src[at] : '\0';
}

static int emit_text(struct lexer *x, size_t to, char sign, bool is_variable)
{
    size_t end = strip_text(x, x->at, to, sign, is_variable);

    if (end > x->at)
        add(x, JT_DATA, x->src + x->at, end - x->at);
    advance(x, to);
    return x->m->rc;
}

static int lex_comment(struct lexer *x)
{
    size_t at = x->at + 2;

    at += sign_at(x, at) != '\0';
    if (at >= x->n) { /* jinja2 lets an empty one at the very end pass */
        advance(x, at);
        return 0;
    }
    for (; at < x->n; at++) {
        const char *p = memchr(x->src + at, '#', x->n - at);
        size_t length;

        if (!p)
            break;
        if (p > x->src + at && (p[-1] == '-' || p[-1] == '+'))
            p--;
        at = (size_t)(p - x->src);
        length = end_tag(x, at, "#}", true);
        if (length) {
            advance(x, at + length);
            return 0;
        }
        at += *p != '#';
    }
    return fail(x, "this comment has no end (#})", "", 0);
}

/* "{%" sign? space* "raw" space* ("-%}" space* | "%}"): the end of it, or 0. No newline is trimmed here. */
static size_t raw_begin(const struct lexer *x)
{
    size_t at = x->at + 2, length;

    at = skip_space(x, at + (sign_at(x, at) != '\0'));
    if (!looking_at(x, at, "raw"))
        return 0;
    at = skip_space(x, at + 3);
    length = end_tag(x, at, "%}", false);
    return length ? at + length : 0;
}

static int lex_raw(struct lexer *x, size_t begin_end)
{
    uint32_t line = x->line;

    advance(x, begin_end);
    if (x->at >= x->n) /* as with comments */
        return 0;
    for (size_t at = x->at; at < x->n; at++) {
        const char *p = memmem(x->src + at, x->n - at, "{%", 2);
        size_t end, length;

        if (!p)
            break;
        at = (size_t)(p - x->src);
        end = skip_space(x, at + 2 + (sign_at(x, at + 2) != '\0'));
        if (!looking_at(x, end, "endraw"))
            continue;
        end = skip_space(x, end + 6);
        length = end_tag(x, end, "%}", true);
        if (length) {
            if (emit_text(x, at, sign_at(x, at + 2), false))
                return x->m->rc;
            advance(x, end + length);
            return 0;
        }
    }
    x->line = line;
    return fail(x, "this raw block has no end ({% endraw %})", "", 0);
}

/* ---- inside tags ---- */

static bool is_in(const struct lexer *x, size_t at, const char *set)
{
    return at < x->n && x->src[at] && strchr(set, x->src[at]);
}

/* Length of digits, single underscores between them. */
static size_t digits(const struct lexer *x, size_t at, const char *set)
{
    size_t end = at;

    while (is_in(x, end, set)) {
        end++;
        if (end < x->n && x->src[end] == '_' && is_in(x, end + 1, set))
            end++;
    }
    return end - at;
}

#define DECIMAL "0123456789"

/* Length of a float literal at x->at, or 0. */
static size_t float_length(const struct lexer *x)
{
    size_t whole = digits(x, x->at, DECIMAL), end = x->at + whole, fraction = 0, exponent;

    if (!whole || (x->at > 0 && x->src[x->at - 1] == '.'))
        return 0;
    if (end < x->n && x->src[end] == '.' && (fraction = digits(x, end + 1, DECIMAL)) > 0)
        end += 1 + fraction;
    if (end < x->n && (x->src[end] == 'e' || x->src[end] == 'E')) {
        size_t from = end + 1 + (sign_at(x, end + 1) != '\0');

        exponent = from < x->n ? digits(x, from, DECIMAL) : 0;
        if (exponent)
            return from + exponent - x->at;
    }
    return fraction ? end - x->at : 0;
}

static size_t without_underscores(const char *p, size_t n, char *out, size_t cap)
{
    size_t length = 0;

    for (size_t i = 0; i < n && length < cap; i++)
        if (p[i] != '_')
            out[length++] = p[i];
    return length;
}

static int lex_float(struct lexer *x, size_t n)
{
    char text[400];
    size_t length = without_underscores(x->src + x->at, n, text, sizeof text);
    struct jtoken *t = add(x, JT_FLOAT, x->src + x->at, n);

    if (t && (length == sizeof text || !soq__jparse_double(text, length, &t->f)))
        return fail(x, "not a number: ", x->src + x->at, n);
    advance(x, x->at + n);
    return x->m->rc;
}

static unsigned digit_value(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 0x20) - 'a' + 10);
}

static int lex_integer(struct lexer *x)
{
    static const struct {
        char letter;
        unsigned base;
        const char *set;
    } bases[] = {{'b', 2, "01"}, {'o', 8, "01234567"}, {'x', 16, "0123456789abcdefABCDEF"}};
    size_t from = x->at, n = 0;
    unsigned base = 10;
    int64_t value = 0;
    struct jtoken *t;

    for (size_t i = 0; x->src[from] == '0' && from + 1 < x->n && i < 3; i++) {
        if ((x->src[from + 1] | 0x20) != bases[i].letter)
            continue;
        n = digits(x, from + 2 + (from + 2 < x->n && x->src[from + 2] == '_'), bases[i].set);
        if (!n)
            break;
        base = bases[i].base;
        from += 2;
        n += x->src[from] == '_';
        break;
    }
    if (base == 10)
        n = digits(x, from, x->src[from] == '0' ? "0" : DECIMAL);
    for (size_t i = 0; i < n; i++) {
        if (x->src[from + i] == '_')
            continue;
        if (__builtin_mul_overflow(value, (int64_t)base, &value) ||
            __builtin_add_overflow(value, (int64_t)digit_value(x->src[from + i]), &value))
            return fail(x, "integer beyond 64 bits: ", x->src + x->at, n);
    }
    t = add(x, JT_INTEGER, x->src + x->at, from + n - x->at);
    if (t)
        t->i = value;
    advance(x, from + n);
    return x->m->rc;
}

static int lex_string(struct lexer *x)
{
    char quote = x->src[x->at];
    size_t end = x->at + 1;
    struct jtoken *t;

    while (end < x->n && x->src[end] != quote)
        end += x->src[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return fail(x, "this string has no end: ", x->src + x->at, x->n - x->at);
    t = add(x, JT_STRING, NULL, 0);
    if (!t || soq__jinja_unescape(x->m, x->line, x->src + x->at + 1, end - x->at - 1, &t->text))
        return x->m->rc;
    advance(x, end + 1);
    return 0;
}

static size_t name_length(const struct lexer *x)
{
    size_t at = x->at;

    while (at < x->n) {
        uint32_t cp;
        size_t size = soq__utf8_decode(x->src + at, x->n - at, &cp);

        if (!size || !soq__ju_word(cp))
            break;
        at += size;
    }
    return at - x->at;
}

static int push_closer(struct lexer *x, char closer)
{
    if (x->open == x->closers_cap) {
        char *closers = soq__jmem_grow(x->m, x->closers, x->open, 1, &x->closers_cap, 1);

        if (!closers)
            return x->m->rc;
        x->closers = closers;
    }
    x->closers[x->open++] = closer;
    return 0;
}

static int lex_operator(struct lexer *x)
{
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    static const char openers[] = "([{", closers[] = ")]}";
    const struct jstr rest = {.p = x->src + x->at, .n = x->n - x->at};
    char c = x->src[x->at];
    const char *opener = c ? strchr(openers, c) : NULL;

    if (opener && push_closer(x, closers[opener - openers]))
        return x->m->rc;
    if (c && strchr(closers, c)) {
        if (x->open == 0 || x->closers[x->open - 1] != c)
            return fail(x, "unexpected ", &c, 1);
        x->open--;
    }
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (looking_at(x, x->at, operators[i])) {
            add(x, JT_OPERATOR, operators[i], strlen(operators[i]));
            advance(x, x->at + strlen(operators[i]));
            return x->m->rc;
        }
    }
    return fail(x, "unexpected character ", x->src + x->at, soq__jstr_offset(&rest, 1));
}

static int lex_one(struct lexer *x)
{
    char c = x->src[x->at];
    size_t n;

    if (c >= '0' && c <= '9') {
        n = float_length(x);
        return n ? lex_float(x, n) : lex_integer(x);
    }
    if (c == '"' || c == '\'')
        return lex_string(x);
    n = name_length(x);
    if (n) {
        add(x, JT_NAME, x->src + x->at, n);
        advance(x, x->at + n);
        return x->m->rc;
    }
    return lex_operator(x);
}

/* A tag's tokens from behind its opening to behind its end. */
static int lex_tag(struct lexer *x, bool is_variable)
{
    x->open = 0;
    for (;;) {
        size_t length = 0, space;

        if (x->at >= x->n) /* the parser says what is missing */
            return 0;
        if (x->open == 0)
            length = end_tag(x, x->at, is_variable ? "}}" : "%}", !is_variable);
        if (length) {
            add(x, is_variable ? JT_VAR_CLOSE : JT_BLOCK_CLOSE, x->src + x->at, length);
            advance(x, x->at + length);
            return x->m->rc;
        }
        space = skip_space(x, x->at);
        if (space > x->at)
            advance(x, space);
        else if (lex_one(x))
            return x->m->rc;
    }
}

/* The next "{{", "{%" or "{#" from `at`, or x->n. */
static size_t find_tag(const struct lexer *x, size_t at)
{
    while (at + 1 < x->n) {
        const char *p = memchr(x->src + at, '{', x->n - at - 1);

        if (!p)
            break;
        if (p[1] == '{' || p[1] == '%' || p[1] == '#')
            return (size_t)(p - x->src);
        at = (size_t)(p - x->src) + 1;
    }
    return x->n;
}

static int lex_all(struct lexer *x)
{
    while (x->at < x->n && !x->m->rc) {
        size_t tag = find_tag(x, x->at), raw;
        char kind, sign;

        if (tag == x->n) {
            add(x, JT_DATA, x->src + x->at, x->n - x->at);
            break;
        }
        kind = x->src[tag + 1];
        sign = sign_at(x, tag + 2);
        if (emit_text(x, tag, sign, kind == '{'))
            break;
        if (kind == '#') {
            lex_comment(x);
        } else if (kind == '%' && (raw = raw_begin(x)) > 0) {
            lex_raw(x, raw);
        } else {
            add(x, kind == '{' ? JT_VAR_OPEN : JT_BLOCK_OPEN, x->src + tag, 2);
            advance(x, tag + 2 + (sign != '\0'));
            lex_tag(x, kind == '{');
        }
    }
    add(x, JT_EOF, "", 0);
    return x->m->rc;
}

/* A copy with "\r\n" and "\r" made "\n" and without one trailing newline, as jinja2 reads its source. */
static char *normalise(struct jmem *m, const char *src, size_t n, size_t *n_out)
{
    char *copy = soq__jmem_alloc(m, n + 1);
    size_t out = 0;

    if (!copy)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        if (src[i] == '\r' && i + 1 < n && src[i + 1] == '\n')
            continue;
        copy[out++] = src[i] == '\r' ? '\n' : src[i];
    }
    if (out > 0 && copy[out - 1] == '\n')
        out--;
    *n_out = out;
    return copy;
}

int soq__jinja_lex(struct jmem *m, const char *src, size_t n, struct jtoken **tokens_out)
{
    struct lexer x = {.m = m, .line = 1, .line_starting = true};

    x.src = normalise(m, src, n, &x.n);
    if (!x.src || lex_all(&x))
        return m->rc;
    *tokens_out = x.tokens;
    return 0;
}
