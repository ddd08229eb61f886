/* Conversations. */
#include "cli/transcript.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/json_out.h"

#define FILE_MAX ((size_t)64 << 20) /* bytes */

static void free_message(struct soq_message *m)
{
    soq__free((char *)(uintptr_t)m->role);
    soq__free((char *)(uintptr_t)m->content);
}

void soq__transcript_cut(struct soq__transcript *t, uint32_t n)
{
    while (t->n > n)
        free_message(&t->messages[--t->n]);
}

void soq__transcript_done(struct soq__transcript *t)
{
    soq__transcript_cut(t, 0);
    soq__free(t->messages);
    *t = (struct soq__transcript){0};
}

int soq__transcript_add(struct soq__transcript *t, const char *role, const char *content, struct soq_error *err)
{
    struct soq_message m;

    if (t->n == t->cap) {
        uint32_t cap = t->cap ? 2 * t->cap : 16;
        struct soq_message *grown = soq__realloc_array(t->messages, cap, sizeof *grown);

        if (!grown)
            return soq__fail(err, SOQ_ENOMEM, "out of memory for the conversation");
        t->messages = grown;
        t->cap = cap;
    }
    m = (struct soq_message){soq__strdup(role), soq__strdup(content)};
    if (!m.role || !m.content) {
        free_message(&m);
        return soq__fail(err, SOQ_ENOMEM, "out of memory for the conversation");
    }
    t->messages[t->n++] = m;
    return 0;
}

uint32_t soq__transcript_preamble(const struct soq__transcript *t)
{
    uint32_t n = 0;

    while (n < t->n && strcmp(t->messages[n].role, "system") == 0)
        n++;
    return n;
}

/* ---- Files */

static int add_json(struct soq__transcript *t, const char *path, size_t index, const json_t *entry, struct soq_error *err)
{
    const char *role = json_string_value(json_object_get(entry, "role"));
    const char *content = json_string_value(json_object_get(entry, "content"));

    if (!role || !content)
        return soq__fail(err, SOQ_EINVAL, "%s: entry %zu is no object with the strings \"role\" and \"content\"", path, index);
    if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0)
        return soq__fail(err, SOQ_EINVAL, "%s: entry %zu: role \"%.40s\"; expected system, user or assistant", path, index,
                         role);
    return soq__transcript_add(t, role, content, err);
}

int soq__transcript_load(struct soq__transcript *t, const char *path, struct soq_error *err)
{
    struct soq_buf text = SOQ_BUF_INIT;
    uint32_t before = t->n;
    json_error_t where;
    json_t *all = NULL;
    int rc = soq__file_read(path, FILE_MAX, &text, err);

    if (!rc) {
        all = json_loadb(soq__buf_str(&text), text.len, 0, &where);
        if (!all)
            rc = soq__fail(err, SOQ_EINVAL, "%s:%d: %s", path, where.line, where.text);
        else if (!json_is_array(all))
            rc = soq__fail(err, SOQ_EINVAL, "%s: expected an array of messages", path);
    }
    for (size_t i = 0; !rc && i < json_array_size(all); i++)
        rc = add_json(t, path, i, json_array_get(all, i), err);
    if (rc)
        soq__transcript_cut(t, before);
    json_decref(all);
    soq__buf_done(&text);
    return rc;
}

int soq__transcript_save(const struct soq__transcript *t, const char *path, struct soq_error *err)
{
    json_t *all = json_array();
    FILE *file;
    int rc = 0;

    for (uint32_t i = 0; i < t->n && !rc; i++) {
        const struct soq_message *m = &t->messages[i];

        rc = json_array_append_new(
            all, json_pack("{ss so}", "role", m->role, "content", soq__json_text(m->content, strlen(m->content))));
    }
    if (!all || rc) {
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory for the conversation");
    } else {
        errno = 0;
        file = fopen(path, "we");
        if (!file || (json_dumpf(all, file, JSON_INDENT(2)) | (putc('\n', file) == EOF) | fclose(file)))
            rc = soq__fail(err, SOQ_EIO, "%s: cannot write: %s", path, strerror(errno));
    }
    json_decref(all);
    return rc;
}
