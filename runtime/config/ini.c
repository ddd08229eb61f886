/* The INI reader: inih, fed line by line.
 *
 * inih splits lines into key and value and knows the comments. It has limits of its own, set when the distribution compiled
 * it: 200 bytes a line, 50 a section name, no line numbers for handlers, text after `]` ignored, indented lines taken as
 * continuations. None of them may reach the user, therefore the reader below
 *   - counts lines, checks their bytes, and strips indentation;
 *   - reads section headers itself;
 *   - hands inih `key=@` for a line that inih cannot hold, and keeps the value for the handler;
 *   - knows for each line whether inih must answer with a key, so the first malformed line is reported at once. */
#include "config/ini.h"

#include <ini.h>
#include <stdbool.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"

struct slice {
    const char *at;
    size_t n;
};

struct parser {
    const char *name;
    struct slice rest; /* text not yet read */
    unsigned line;     /* of the line that inih has */
    bool awaiting;     /* that line must give a key */
    bool held;         /* its value did not fit into inih's buffer and lies in `value` */
    struct soq_buf value;
    char section[SOQ_INI_NAME_MAX + 1];
    soq__ini_handler handler;
    void *user;
    struct soq_error *err;
    int rc; /* the first failure; ends the parse */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_comment(struct slice s)
{
    return s.n == 0 || s.at[0] == ';' || s.at[0] == '#';
}

static struct slice skip(struct slice s, size_t n)
{
    return (struct slice){s.at + n, s.n - n};
}

static struct slice trim(struct slice s)
{
    while (s.n && is_blank(s.at[0]))
        s = skip(s, 1);
    while (s.n && is_blank(s.at[s.n - 1]))
        s.n--;
    return s;
}

/* s up to an inline comment: a semicolon after a blank. */
static struct slice before_comment(struct slice s)
{
    for (size_t i = 1; i < s.n; i++) {
        if (s.at[i] == ';' && is_blank(s.at[i - 1]))
            return (struct slice){s.at, i};
    }
    return s;
}

static int fail_line(struct parser *p, enum soq_error_code code, const char *what)
{
    p->rc = soq__fail(p->err, code, "%s:%u: %s", p->name, p->line, what);
    return p->rc;
}

/* Copies a section's or key's name with its terminator. */
static int take_name(struct parser *p, struct slice s, char out[SOQ_INI_NAME_MAX + 1])
{
    if (s.n == 0)
        return fail_line(p, SOQ_EINVAL, "the name is missing; expected [section] or key = value");
    if (s.n > SOQ_INI_NAME_MAX)
        return fail_line(p, SOQ_ELIMIT, "a section or key has at most 64 bytes");
    memcpy(out, s.at, s.n);
    out[s.n] = '\0';
    return 0;
}

static int check_bytes(struct parser *p, struct slice s)
{
    if (s.n > SOQ_INI_LINE_MAX)
        return fail_line(p, SOQ_ELIMIT, "the line is longer than 64 KiB");
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.at[i];

        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return fail_line(p, SOQ_EINVAL, "control character; the file must be plain UTF-8 text");
    }
    if (!soq__utf8_valid(s.at, s.n))
        return fail_line(p, SOQ_EINVAL, "not valid UTF-8");
    return 0;
}

/* The next line without its end and without surrounding blanks; false at the end of the text. */
static bool next_line(struct parser *p, struct slice *line_out)
{
    const char *newline;
    struct slice line = p->rest;

    if (!p->rest.n)
        return false;
    newline = memchr(line.at, '\n', line.n);
    if (newline)
        line.n = (size_t)(newline - line.at);
    p->rest = skip(p->rest, line.n + (newline != NULL));
    if (line.n && line.at[line.n - 1] == '\r')
        line.n--;
    p->line++;
    *line_out = line;
    return true;
}

static int read_header(struct parser *p, struct slice s)
{
    struct soq__ini_entry entry = {.section = p->section, .line = p->line};
    const char *close = memchr(s.at, ']', s.n);
    size_t n = close ? (size_t)(close - s.at) : 0;

    if (!close)
        return fail_line(p, SOQ_EINVAL, "the section's ']' is missing");
    if (!is_comment(trim(skip(s, n + 1))))
        return fail_line(p, SOQ_EINVAL, "text after the section's ']'");
    if (take_name(p, trim((struct slice){s.at + 1, n - 1}), p->section))
        return p->rc;
    p->rc = p->handler(p->user, &entry, p->err);
    return p->rc;
}

/* Keeps the value of a line that inih cannot hold and writes `key=@` in its place. */
static int hold_value(struct parser *p, struct slice s, char *out)
{
    char key[SOQ_INI_NAME_MAX + 1];
    struct slice head = before_comment(s), value;
    size_t n = 0;

    while (n < head.n && head.at[n] != '=' && head.at[n] != ':')
        n++;
    if (n == head.n)
        return 0; /* no key: the line stays unanswered */
    if (take_name(p, trim((struct slice){s.at, n}), key))
        return p->rc;
    value = trim(before_comment(skip(s, n + 1)));
    soq__buf_clear(&p->value);
    soq__buf_append(&p->value, value.at, value.n);
    if (!soq__buf_ok(&p->value))
        return fail_line(p, SOQ_ENOMEM, "out of memory");
    p->held = true;
    stpcpy(stpcpy(out, key), "=@\n");
    return 0;
}

/* Writes what inih shall see of the line to out[0..room): the line, a shorter stand-in, or nothing. */
static int feed(struct parser *p, struct slice line, char *out, size_t room)
{
    p->held = false;
    strcpy(out, "\n");
    if (check_bytes(p, line))
        return p->rc;
    line = trim(line);
    if (is_comment(line))
        return 0;
    if (line.at[0] == '[')
        return read_header(p, line);
    p->awaiting = true;
    if (line.n + 2 > room)
        return hold_value(p, line, out);
    memcpy(out, line.at, line.n);
    strcpy(out + line.n, "\n");
    return 0;
}

/* inih has read past a line that held no key. */
static int check_answered(struct parser *p)
{
    if (p->awaiting && !p->rc)
        fail_line(p, SOQ_EINVAL, "neither [section], key = value nor a comment (a value cannot continue on a second line)");
    return p->rc;
}

/* inih's ini_reader: fgets in its clothes. */
static char *read_line(char *out, int room, void *stream)
{
    struct parser *p = stream;
    struct slice line;

    if (check_answered(p) || !next_line(p, &line) || feed(p, line, out, (size_t)room))
        return NULL;
    return out;
}

/* inih's ini_handler: returns 0 on failure. */
static int take_entry(void *user, const char *section, const char *key, const char *value)
{
    struct parser *p = user;
    char name[SOQ_INI_NAME_MAX + 1];
    struct soq__ini_entry entry = {.section = p->section, .key = name, .line = p->line};

    (void)section;
    p->awaiting = !value; /* an inih that allows keys without a value */
    if (p->awaiting || take_name(p, (struct slice){key, strlen(key)}, name))
        return 0;
    if (!p->section[0]) {
        fail_line(p, SOQ_EINVAL, "key before the first [section]");
        return 0;
    }
    entry.value = p->held ? soq__buf_str(&p->value) : value;
    p->rc = p->handler(p->user, &entry, p->err);
    return !p->rc;
}

int soq__ini_parse(const char *name, const char *text, size_t size, soq__ini_handler handler, void *user, struct soq_error *err)
{
    struct parser p = {.name = name, .rest = {text, size}, .handler = handler, .user = user, .err = err};
    int status;

    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        p.rest = skip(p.rest, 3);
    status = ini_parse_stream(read_line, &p, take_entry, &p);
    if (!check_answered(&p) && status)
        p.rc = soq__fail(err, SOQ_ENOMEM, "%s: out of memory", name); /* inih compiled to use the heap */
    soq__buf_done(&p.value);
    return p.rc;
}

int soq__ini_read(const char *path, soq__ini_handler handler, void *user, struct soq_error *err)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    struct soq_buf text = SOQ_BUF_INIT;
    int rc = soq__file_read(path, SOQ_INI_FILE_MAX, &text, err);

    if (!rc)
        rc = soq__ini_parse(name, soq__buf_str(&text), text.len, handler, user, err);
    soq__buf_done(&text);
    return rc;
}
