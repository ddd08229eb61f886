/* `soquete trace`: what [kv] trace wrote, as a table, as JSON and as a picture. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "cli/json_out.h"
#include "cli/options.h"
#include "cli/out.h"
#include "cli/trace_read.h"
#include "cli/trace_svg.h"

struct trace_options {
    struct soq__trace_filter filter;
    const char *svg;
    bool lines, json;
};

#define FILTER(field_, name_, help_, max_)                                                                                     \
    SOQ__VALUE(SOQ__OPT_INT, struct trace_options, filter.field_, name_, 0, "N", help_, .min = 0, .max = max_)

static const struct soq__opt opts[] = {
    FILTER(sequence, "sequence", "This sequence only.", 9e15),
    FILTER(position, "position", "What was decided after so many tokens only.", INT32_MAX),
    FILTER(layer, "layer", "This layer only.", 9999),
    FILTER(head, "head", "This KV head only.", 9999),
    SOQ__FLAG(struct trace_options, lines, "lines", 0,
              "A line for each layer and KV head, with a picture of where its entries lie."),
    SOQ__VALUE(SOQ__OPT_TEXT, struct trace_options, svg, "svg", 0, "OUT",
               "Draw the last decision into OUT: positions from left to right, a line for each KV head of each layer. With "
               "- it goes to standard output, instead of the table."),
    SOQ__FLAG(struct trace_options, json, "json", 0, "One JSON object for each decision."),
};

static const struct soq__usage usage = {
    .command = "trace",
    .args = "FILE",
    .about = "Shows what KV policies kept: FILE is what the key trace of [kv] named while a model ran, - is standard\n"
             "input. One line for each decision, at the end of a prompt or later.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

/* ---- A decision in figures */

struct summary {
    uint64_t kept, bytes;
    uint32_t least, most; /* entries of a KV head */
    size_t n_layers;
    double share; /* of all entries that there would be */
};

static struct summary summarise(const struct soq__trace_event *event)
{
    struct summary s = {.least = UINT32_MAX};

    for (size_t i = 0; i < event->n_lines; i++) {
        const struct soq__trace_line *line = &event->lines[i];

        s.kept += line->n_kept;
        s.bytes += line->bytes;
        s.least = line->n_kept < s.least ? line->n_kept : s.least;
        s.most = line->n_kept > s.most ? line->n_kept : s.most;
        s.n_layers += i == 0 || line->layer != line[-1].layer;
    }
    if (event->lines->position)
        s.share = (double)s.kept / ((double)event->lines->position * (double)event->n_lines);
    return s;
}

static void print_event(const struct soq__trace_event *event)
{
    struct summary s = summarise(event);
    char size[32], kept[40];

    snprintf(kept, sizeof kept, s.least == s.most ? "%u" : "%u to %u", s.least, s.most);
    soq__out_printf("%8" PRIu64 "  %8u  %6zu  %5zu  %16s  %5.1f%%  %10s\n", event->lines->sequence, event->lines->position,
                    s.n_layers, event->n_lines, kept, 100 * s.share, soq__size_text(s.bytes, size, sizeof size));
}

static int json_event(const struct soq__trace_event *event)
{
    struct summary s = summarise(event);

    return soq__json_line(json_pack("{sI si si si sI si si sf sI}", "sequence", (json_int_t)event->lines->sequence, "position",
                                    (int)event->lines->position, "layers", (int)s.n_layers, "heads", (int)event->n_lines,
                                    "kept", (json_int_t)s.kept, "kept_min", (int)s.least, "kept_max", (int)s.most, "share",
                                    s.share, "bytes", (json_int_t)s.bytes));
}

/* ---- Its layers and heads, each with a strip: the more of a stretch of the text is kept, the higher */

enum { STRIP = 64 };

static void append_strip(const struct soq__trace_line *line, struct soq_buf *out)
{
    static const char *const levels[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    uint32_t cells = line->position < STRIP ? line->position : STRIP;

    for (uint32_t c = 0, i = 0; c < cells; c++) {
        uint32_t first = (uint32_t)((uint64_t)c * line->position / cells),
                 last = (uint32_t)((uint64_t)(c + 1) * line->position / cells), n = 0;

        while (i < line->n_kept && line->kept[i] < last) {
            i++;
            n++;
        }
        soq__buf_puts(out, levels[(n * 8 + last - first - 1) / (last - first)]);
    }
}

static int print_lines(const struct soq__trace_event *event)
{
    struct soq_buf text = SOQ_BUF_INIT;
    bool ok;

    for (size_t i = 0; i < event->n_lines; i++) {
        const struct soq__trace_line *line = &event->lines[i];

        soq__buf_printf(&text, "%8" PRIu64 "  %8u  %5u  %4u  %7u  |", line->sequence, line->position, line->layer, line->head,
                        line->n_kept);
        append_strip(line, &text);
        soq__buf_puts(&text, "|\n");
    }
    ok = soq__buf_ok(&text);
    if (ok)
        soq__out_write(soq__buf_str(&text), text.len);
    soq__buf_done(&text);
    return ok ? 0 : -1;
}

static int print_all(const struct soq__trace_lines *lines, const struct trace_options *o, struct soq_error *err)
{
    struct soq__trace_event event;
    int rc = 0;

    if (o->lines && !o->json)
        soq__out_printf("SEQUENCE  POSITION  LAYER  HEAD     KEPT  WHERE\n");
    else if (!o->json)
        soq__out_printf("SEQUENCE  POSITION  LAYERS  HEADS     KEPT BY EACH   SHARE       BYTES\n");
    for (size_t i = 0; !rc && !soq__out_lost() && (event = soq__trace_event_at(lines, i)).n_lines; i += event.n_lines) {
        if (o->json)
            rc = json_event(&event);
        else if (o->lines)
            rc = print_lines(&event);
        else
            print_event(&event);
    }
    return rc && !soq__out_lost() ? soq__fail(err, SOQ_ENOMEM, "out of memory") : 0;
}

/* ---- The picture */

static bool to_output(const char *path)
{
    return strcmp(path, "-") == 0;
}

static int write_svg(const struct soq__trace_event *event, const char *path, struct soq_error *err)
{
    struct soq_buf text = SOQ_BUF_INIT;
    FILE *file = NULL;
    int rc = 0;

    soq__trace_svg(event, &text);
    if (!soq__buf_ok(&text))
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    else if (to_output(path))
        soq__out_write(soq__buf_str(&text), text.len);
    else if (!(file = fopen(path, "we")))
        rc = soq__fail(err, SOQ_EIO, "%s: %s", path, strerror(errno));
    if (file) {
        fwrite(soq__buf_str(&text), 1, text.len, file);
        if (ferror(file) | fclose(file))
            rc = soq__fail(err, SOQ_EIO, "%s: %s", path, strerror(errno));
    }
    soq__buf_done(&text);
    return rc;
}

static struct soq__trace_event last_event(const struct soq__trace_lines *lines)
{
    struct soq__trace_event event = soq__trace_event_at(lines, 0), next = event;

    for (size_t i = event.n_lines; (next = soq__trace_event_at(lines, i)).n_lines; i += next.n_lines)
        event = next;
    return event;
}

/* ---- The command */

static int show(const char *path, const struct trace_options *o, struct soq_error *err)
{
    struct soq__trace_lines lines = {0};
    int rc = soq__trace_read(path, &o->filter, &lines, err);

    if (!rc && !lines.count)
        rc = soq__fail(err, SOQ_ENOTFOUND, "%s: no line is of that sequence, position, layer and head", path);
    if (!rc && !(o->svg && to_output(o->svg)))
        rc = print_all(&lines, o, err);
    if (!rc && o->svg) {
        struct soq__trace_event event = last_event(&lines);

        rc = write_svg(&event, o->svg, err);
    }
    soq__trace_lines_done(&lines);
    return rc;
}

int soq__cmd_trace(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct trace_options options = {.filter = {-1, -1, -1, -1}};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON && args.n_words != 1) {
        soq__cli_say("trace", "expected one FILE; see --help");
        status = SOQ_EXIT_USAGE;
    }
    if (status == SOQ__GO_ON) {
        rc = show(args.words[0], &options, &err);
        status = rc ? soq__cli_fail("trace", rc, &err) : SOQ_EXIT_OK;
    }
    soq__args_done(&args);
    return soq__out_finish("trace", status);
}
