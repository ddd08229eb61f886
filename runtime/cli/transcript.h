/* A conversation: messages that own their texts, kept in files as a JSON array of {"role", "content"}. */
#ifndef SOQ_CLI_TRANSCRIPT_H
#define SOQ_CLI_TRANSCRIPT_H

#include <stddef.h>

#include "soquete/soquete.h"

/* Zero-initialise. */
struct soq__transcript {
    struct soq_message *messages; /* [n] owned, with their strings */
    uint32_t n, cap;
};

void soq__transcript_done(struct soq__transcript *t);
int soq__transcript_add(struct soq__transcript *t, const char *role, const char *content, struct soq_error *err);
/* Drops the messages behind the first n. */
void soq__transcript_cut(struct soq__transcript *t, uint32_t n);
/* How many messages in front are the system's. */
uint32_t soq__transcript_preamble(const struct soq__transcript *t);

/* Appends the file's messages. Messages name the file and the entry that is wrong. */
int soq__transcript_load(struct soq__transcript *t, const char *path, struct soq_error *err);
/* Text that is not valid UTF-8 is written with U+FFFD in its place. */
int soq__transcript_save(const struct soq__transcript *t, const char *path, struct soq_error *err);

#endif
