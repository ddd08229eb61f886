/* --session FILE: a sequence with its cache, and the conversation that it belongs to, beyond the program's end. */
#ifndef SOQ_CLI_SESSION_FILE_H
#define SOQ_CLI_SESSION_FILE_H

#include "cli/transcript.h"

#define SOQ__SESSION_OPTION(struct_)                                                                                           \
    SOQ__VALUE(SOQ__OPT_TEXT, struct_, session, "session", 0, "FILE",                                                          \
               "Go on with the session in FILE, if it exists, cache and all; save it there at the end.")

/* The session in the file and, appended to the transcript, its conversation; a new session if path is NULL or there is no such
 * file. */
int soq__session_file_open(struct soq_model *model, const char *path, struct soq__transcript *transcript,
                           struct soq_session **session_out, struct soq_error *err);
/* A no-op if path is NULL. */
int soq__session_file_save(struct soq_session *session, const char *path, const struct soq__transcript *transcript,
                           struct soq_error *err);

#endif
