/* Sessions in files. The note in the file is the conversation: role, text, role, text, ... each with its NUL, so that what a
 * model said stays as it was, valid UTF-8 or not. */
#include "cli/session_file.h"

#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/error.h"

static int read_note(struct soq__transcript *t, const char *path, const char *note, size_t n, struct soq_error *err)
{
    const char *end = note + n;
    int rc = 0;

    while (!rc && note < end) {
        const char *role_end = memchr(note, 0, (size_t)(end - note));
        const char *content_end = role_end ? memchr(role_end + 1, 0, (size_t)(end - role_end - 1)) : NULL;

        if (!content_end)
            return soq__fail(err, SOQ_EINVAL, "%s: its note is no conversation; another program wrote it", path);
        rc = soq__transcript_add(t, note, role_end + 1, err);
        note = content_end + 1;
    }
    return rc;
}

int soq__session_file_open(struct soq_model *model, const char *path, struct soq__transcript *transcript,
                           struct soq_session **session_out, struct soq_error *err)
{
    struct soq_session *session;
    const char *note;
    size_t n;
    int rc;

    if (!path || access(path, F_OK))
        return soq_session_create(model, session_out, err);
    rc = soq_session_load(model, NULL, path, &session, err);
    if (rc)
        return rc;
    note = soq_session_note(session, &n);
    rc = read_note(transcript, path, note, n, err);
    if (rc)
        soq_session_free(session);
    else
        *session_out = session;
    return rc;
}

int soq__session_file_save(struct soq_session *session, const char *path, const struct soq__transcript *transcript,
                           struct soq_error *err)
{
    struct soq_buf note = SOQ_BUF_INIT;
    int rc;

    if (!path)
        return 0;
    for (uint32_t i = 0; i < transcript->n; i++) {
        soq__buf_append(&note, transcript->messages[i].role, strlen(transcript->messages[i].role) + 1);
        soq__buf_append(&note, transcript->messages[i].content, strlen(transcript->messages[i].content) + 1);
    }
    rc = soq__buf_ok(&note) ? soq_session_save(session, path, note.data, note.len, err)
                            : soq__fail(err, SOQ_ENOMEM, "out of memory for the conversation");
    soq__buf_done(&note);
    return rc;
}
