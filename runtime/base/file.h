/* Whole files: mapped read-only (models) or read into memory (configuration, templates). */
#ifndef SOQ_BASE_FILE_H
#define SOQ_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

struct soq_map {
    const unsigned char *data; /* NULL for an empty file */
    size_t size;               /* bytes */
};

/* Maps a regular file read-only and private. The message names the path and the reason. */
int soq__map_open(const char *path, struct soq_map *map_out, struct soq_error *err);
void soq__map_done(struct soq_map *map);
/* Tells the kernel that [offset, offset + bytes) will not be read again soon (weights that a backend repacked). */
void soq__map_drop(const struct soq_map *map, size_t offset, size_t bytes);

/* Reads all of path, "-" for standard input, and appends it to out. Fails beyond max bytes. */
int soq__file_read(const char *path, size_t max, struct soq_buf *out, struct soq_error *err);

/* dirname(from) + "/" + path when path is relative, else a copy of path; "~/" is expanded. The caller frees. */
char *soq__path_resolve(const char *from, const char *path);
bool soq__path_is_file(const char *path);

#endif
