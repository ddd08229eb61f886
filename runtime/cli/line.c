/* Lines, by libedit or getline. */
#include "cli/line.h"

#include <errno.h>
#include <histedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/term.h"

#define HISTORY_LINES 1000
#define LINE_MAX_BYTES ((size_t)16 << 20)

struct soq__line {
    EditLine *edit;   /* NULL: plain */
    History *history; /* with edit */
    char *file;       /* of the history, or NULL */
    char *plain;      /* getline's buffer: malloc's own, not base/alloc.h's */
    size_t plain_cap;
};

/* ---- History */

/* $XDG_STATE_HOME/soquete/history, or ~/.local/state/...; the directories are made. NULL if that is not possible. */
static char *history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    struct soq_buf path = SOQ_BUF_INIT;

    if (state && state[0] == '/')
        soq__buf_puts(&path, state);
    else if (home && home[0] == '/')
        soq__buf_printf(&path, "%s/.local/state", home);
    else
        return NULL;
    soq__buf_puts(&path, "/soquete/history");
    for (char *slash = path.data; soq__buf_ok(&path) && (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(path.data, 0700);
        *slash = '/';
    }
    return soq__buf_steal(&path);
}

static void remember(struct soq__line *line, const char *text)
{
    HistEvent event;

    if (*text && *text != '\n')
        history(line->history, &event, H_ENTER, text);
}

static void save_history(struct soq__line *line)
{
    HistEvent event;
    mode_t old = umask(0077);

    if (line->file)
        history(line->history, &event, H_SAVE, line->file);
    umask(old);
}

/* ---- Editing */

static char *prompt(EditLine *edit)
{
    static char bold[] = "\1\033[1m\1>\1\033[0m\1 ", plain[] = "> ";

    (void)edit;
    return *soq__term_bold(stdout) ? bold : plain;
}

static int start_editing(struct soq__line *line, bool keep, struct soq_error *err)
{
    HistEvent event;

    line->edit = el_init("soquete", stdin, stdout, stderr);
    line->history = history_init();
    if (!line->edit || !line->history)
        return soq__fail(err, SOQ_ENOMEM, "cannot set up line editing");
    history(line->history, &event, H_SETSIZE, HISTORY_LINES);
    history(line->history, &event, H_SETUNIQUE, 1);
    line->file = keep ? history_path() : NULL;
    if (line->file)
        history(line->history, &event, H_LOAD, line->file);
    el_set(line->edit, EL_HIST, history, line->history);
    el_set(line->edit, EL_PROMPT_ESC, prompt, '\1');
    el_set(line->edit, EL_EDITOR, "emacs");
    el_set(line->edit, EL_SIGNAL, 1);
    el_source(line->edit, NULL);
    return 0;
}

/* Ctrl-C ends the read: libedit passes the signal on and gives the line up. */
static enum soq__line_event read_edited(struct soq__line *line, struct soq_buf *text)
{
    const char *got;
    int n;

    el_resize(line->edit);
    soq__interrupt_idle(true);
    got = el_gets(line->edit, &n);
    soq__interrupt_idle(false);
    if (got && n > 0) {
        remember(line, got);
        soq__buf_append(text, got, (size_t)n);
        return SOQ__LINE_TEXT;
    }
    fputs(soq__interrupted() ? "^C\n" : "\n", stdout);
    fflush(stdout);
    return soq__interrupted() ? SOQ__LINE_INTERRUPT : SOQ__LINE_END;
}

/* ---- Both */

int soq__line_create(bool history, struct soq__line **line_out, struct soq_error *err)
{
    struct soq__line *line = soq__alloc_zero(1, sizeof *line);
    int rc = 0;

    if (!line)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (isatty(STDIN_FILENO) && soq__term_is(stdout))
        rc = start_editing(line, history, err);
    if (rc) {
        soq__line_free(line);
        return rc;
    }
    *line_out = line;
    return 0;
}

void soq__line_free(struct soq__line *line)
{
    if (!line)
        return;
    if (line->history) {
        save_history(line);
        history_end(line->history);
    }
    if (line->edit)
        el_end(line->edit);
    soq__free(line->file);
    free(line->plain);
    soq__free(line);
}

bool soq__line_is_edited(const struct soq__line *line)
{
    return line->edit != NULL;
}

static int read_plain(struct soq__line *line, struct soq_buf *text, enum soq__line_event *event_out, struct soq_error *err)
{
    ssize_t n;

    errno = 0;
    n = getline(&line->plain, &line->plain_cap, stdin);
    *event_out = SOQ__LINE_TEXT;
    if (n >= 0 && (size_t)n > LINE_MAX_BYTES)
        return soq__fail(err, SOQ_ELIMIT, "a line of %zd bytes; at most %zu are read", n, LINE_MAX_BYTES);
    if (n >= 0)
        soq__buf_append(text, line->plain, (size_t)n);
    else if (ferror(stdin) && errno != EINTR)
        return soq__fail(err, SOQ_EIO, "cannot read standard input: %s", strerror(errno));
    else
        *event_out = soq__interrupted() ? SOQ__LINE_INTERRUPT : SOQ__LINE_END;
    return 0;
}

int soq__line_read(struct soq__line *line, struct soq_buf *text, enum soq__line_event *event_out, struct soq_error *err)
{
    enum soq__line_event event = SOQ__LINE_TEXT;
    int rc = 0;

    soq__buf_clear(text);
    if (soq__interrupted())
        event = SOQ__LINE_INTERRUPT;
    else if (line->edit)
        event = read_edited(line, text);
    else
        rc = read_plain(line, text, &event, err);
    soq__interrupt_clear();
    if (!rc && !soq__buf_ok(text))
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory for a line");
    while (text->len && strchr("\r\n", text->data[text->len - 1]))
        text->data[--text->len] = '\0';
    if (!rc)
        *event_out = event;
    return rc;
}
