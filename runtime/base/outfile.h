/* A file that is either there as a whole or not at all: written beside its place under another name, then renamed. A link stays
 * one: it is the file behind it that is written. */
#ifndef SOQ_BASE_OUTFILE_H
#define SOQ_BASE_OUTFILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

struct soq__outfile {
    FILE *stream;
    char *path, *target, *temporary; /* owned; target: path, or where the link points */
};

/* Messages name the path and the reason. After a failure of any call, discard. */
int soq__outfile_open(struct soq__outfile *file, const char *path, struct soq_error *err);
int soq__outfile_write(struct soq__outfile *file, const void *data, size_t n, struct soq_error *err);
/* The file takes its place, replacing what is there, once it is safe on the disk. */
int soq__outfile_commit(struct soq__outfile *file, struct soq_error *err);
/* Frees everything and removes what was not committed. */
void soq__outfile_discard(struct soq__outfile *file);

#endif
