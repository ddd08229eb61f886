#include "cli/trace_read.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* ---- One line */

/* Where in the file, for messages. */
struct place {
    const char *path;
    size_t line;
};

SOQ_PRINTF(3, 4) static int fail_at(const struct place *at, struct soq_error *err, const char *fmt, ...)
{
    char text[SOQ_ERROR_TEXT_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return soq__fail(err, SOQ_ECORRUPT, "%s:%zu: %s", at->path, at->line, text);
}

static int take_number(const struct place *at, const json_t *json, const char *key, uint64_t max, uint64_t *out,
                       struct soq_error *err)
{
    const json_t *value = json_object_get(json, key);
    json_int_t number = json_integer_value(value);

    if (!value)
        return fail_at(at, err, "the key \"%s\" is missing", key);
    if (!json_is_integer(value) || number < 0 || (uint64_t)number > max)
        return fail_at(at, err, "\"%s\" is no integer from 0 to %llu", key, (unsigned long long)max);
    *out = (uint64_t)number;
    return 0;
}

static int take_kept(const struct place *at, const json_t *json, struct soq__trace_line *line, struct soq_error *err)
{
    const json_t *list = json_object_get(json, "kept");
    size_t n = json_array_size(list);
    json_int_t before = -1;

    if (!json_is_array(list))
        return fail_at(at, err, "%s", list ? "\"kept\" is no array" : "the key \"kept\" is missing");
    line->kept = soq__alloc_zero(n + 1, sizeof *line->kept);
    if (!line->kept)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t position = json_integer_value(value);

        if (!json_is_integer(value) || position < 0 || position >= (json_int_t)line->position)
            return fail_at(at, err, "\"kept\"[%zu] is no position below %u", i, line->position);
        if (position <= before)
            return fail_at(at, err, "\"kept\"[%zu] = %lld does not come after %lld: positions must ascend", i,
                           (long long)position, (long long)before);
        before = position;
        line->kept[i] = (uint32_t)position;
    }
    line->n_kept = (uint32_t)n;
    return 0;
}

static int take_fields(const struct place *at, const json_t *json, struct soq__trace_line *line, struct soq_error *err)
{
    const char *event = json_string_value(json_object_get(json, "event"));
    uint64_t position = 0, layer = 0, head = 0;
    int rc;

    if (!json_is_object(json) || !event)
        return fail_at(at, err, "the key \"event\" is missing; is it a file that --kv.trace wrote?");
    if (strcmp(event, "keep") != 0)
        return fail_at(at, err, "\"event\" is \"%s\"; expected \"keep\"", event);
    rc = take_number(at, json, "sequence", INT64_MAX, &line->sequence, err);
    if (!rc)
        rc = take_number(at, json, "position", INT32_MAX, &position, err);
    if (!rc)
        rc = take_number(at, json, "layer", 9999, &layer, err);
    if (!rc)
        rc = take_number(at, json, "head", 9999, &head, err);
    if (!rc)
        rc = take_number(at, json, "bytes", INT64_MAX, &line->bytes, err);
    line->position = (uint32_t)position;
    line->layer = (uint32_t)layer;
    line->head = (uint32_t)head;
    return rc ? rc : take_kept(at, json, line, err);
}

static int parse_line(const struct place *at, const char *text, size_t n, struct soq__trace_line *line, struct soq_error *err)
{
    json_error_t why;
    json_t *json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    int rc;

    if (!json)
        return fail_at(at, err, "no JSON: %s (column %d)", why.text, why.column);
    rc = take_fields(at, json, line, err);
    json_decref(json);
    return rc;
}

/* ---- The file */

static bool is_wanted(const struct soq__trace_filter *f, const struct soq__trace_line *line)
{
    return (f->sequence < 0 || (uint64_t)f->sequence == line->sequence) && (f->position < 0 || f->position == line->position) &&
           (f->layer < 0 || f->layer == line->layer) && (f->head < 0 || f->head == line->head);
}

static int add_line(struct soq__trace_lines *lines, const struct soq__trace_line *line, struct soq_error *err)
{
    if (lines->count == lines->capacity) {
        size_t capacity = lines->capacity ? 2 * lines->capacity : 256;
        struct soq__trace_line *items = soq__realloc_array(lines->items, capacity, sizeof *items);

        if (!items)
            return soq__fail(err, SOQ_ENOMEM, "out of memory");
        lines->items = items;
        lines->capacity = capacity;
    }
    lines->items[lines->count++] = *line;
    return 0;
}

static int read_lines(FILE *file, const char *path, const struct soq__trace_filter *filter, struct soq__trace_lines *lines,
                      struct soq_error *err)
{
    struct place at = {path, 0};
    char *text = NULL;
    size_t size = 0;
    ssize_t n;
    int rc = 0;

    while (!rc && (n = getline(&text, &size, file)) >= 0) {
        struct soq__trace_line line = {.kept = NULL};

        at.line++;
        rc = parse_line(&at, text, (size_t)n, &line, err);
        if (!rc && is_wanted(filter, &line)) {
            rc = add_line(lines, &line, err);
            line.kept = rc ? line.kept : NULL;
        }
        soq__free(line.kept);
    }
    free(text);
    if (!rc && ferror(file))
        rc = soq__fail(err, SOQ_EIO, "%s: %s", path, strerror(errno));
    if (!rc && !at.line)
        rc = soq__fail(err, SOQ_ECORRUPT, "%s is empty: nothing was kept or evicted while it was written", path);
    return rc;
}

int soq__trace_read(const char *path, const struct soq__trace_filter *filter, struct soq__trace_lines *lines_out,
                    struct soq_error *err)
{
    bool std = strcmp(path, "-") == 0;
    FILE *file = std ? stdin : fopen(path, "re");
    struct soq__trace_lines lines = {0};
    int rc;

    if (!file)
        return soq__fail(err, errno == ENOENT ? SOQ_ENOTFOUND : SOQ_EIO, "%s: %s", path, strerror(errno));
    rc = read_lines(file, path, filter, &lines, err);
    if (!std)
        fclose(file);
    if (rc)
        soq__trace_lines_done(&lines);
    else
        *lines_out = lines;
    return rc;
}

void soq__trace_lines_done(struct soq__trace_lines *lines)
{
    for (size_t i = 0; i < lines->count; i++)
        soq__free(lines->items[i].kept);
    soq__free(lines->items);
    *lines = (struct soq__trace_lines){0};
}

struct soq__trace_event soq__trace_event_at(const struct soq__trace_lines *lines, size_t first)
{
    const struct soq__trace_line *line = lines->items + first;
    size_t n = first < lines->count;

    while (n && first + n < lines->count && line[n].sequence == line->sequence && line[n].position == line->position)
        n++;
    return (struct soq__trace_event){line, n};
}
