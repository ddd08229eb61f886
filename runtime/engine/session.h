/* Saved sequences: a file with everything that the continuation depends on.
 *
 * Little-endian: magic, version, length and a checksum of all that follows; the identity of the cache's contents, as text; the
 * tokens, and how many of them are computed; the sampler's state; a note of the program's; the cache (kv/image.h). The bytes
 * are put together in memory, between two steps; the file is then written beside its place and renamed, while all sequences may
 * go on. One that is truncated, corrupt, of another version, or of another model, codec, policy or sampler is refused, and
 * nothing has changed. */
#ifndef SOQ_ENGINE_SESSION_H
#define SOQ_ENGINE_SESSION_H

#include "base/cursor.h"
#include "engine/engine.h"

/* Appends the bytes of a session file. The sequence must be idle. */
int soq__sequence_store(struct soq__sequence *seq, const void *note, size_t n_note, struct soq_buf *out, struct soq_error *err);
/* Makes a fresh, empty sequence what the bytes say, and appends the note. After a failure it is empty. */
int soq__sequence_restore(struct soq__sequence *seq, const void *data, size_t n, struct soq_buf *note, struct soq_error *err);

/* The same to and from a file. */
int soq__sequence_save(struct soq__sequence *seq, const char *path, const void *note, size_t n_note, struct soq_error *err);
int soq__sequence_load(struct soq__sequence *seq, const char *path, struct soq_buf *note, struct soq_error *err);

/* The parts of a file, in its memory. */
struct soq__session_parts {
    struct soq__cursor identity, tokens, sampler, note, image;
    uint32_t n_computed;
};

/* Checks magic, version, length and checksum, and finds the parts, whose contents are not looked at. */
int soq__session_split(const void *data, size_t n, struct soq__session_parts *out, struct soq_error *err);

#endif
