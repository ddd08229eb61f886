/* INI text -> (section, key, value, line), used by the settings and by plugin manifests.
 *
 * The dialect:
 *   - `[section]`, then `key = value` or `key: value`; a value ends with its line: there are no continuation lines, no quotes
 *     and no escapes, and indentation means nothing;
 *   - a line that begins with ; or # is a comment; inside a line a comment is ` ;` (blank, semicolon);
 *   - UTF-8, with or without a byte order mark; lines end in LF or CRLF; a section may be opened again;
 *   - lines up to SOQ_INI_LINE_MAX bytes, names up to SOQ_INI_NAME_MAX, files up to SOQ_INI_FILE_MAX.
 * Whatever else occurs is an error that names the file and the line. What keys mean, and whether they repeat, is the handler's
 * matter. Any number of threads may parse at once. */
#ifndef SOQ_CONFIG_INI_H
#define SOQ_CONFIG_INI_H

#include <stddef.h>

#include "base/error.h"

#define SOQ_INI_LINE_MAX (64u * 1024)
#define SOQ_INI_NAME_MAX 64u
#define SOQ_INI_FILE_MAX (1024u * 1024)

/* Valid during the handler's call only. */
struct soq__ini_entry {
    const char *section;
    const char *key;   /* NULL: the line is the section's header */
    const char *value; /* without surrounding blanks and comment, perhaps ""; NULL with key */
    unsigned line;     /* counted from 1 */
};

/* Returns 0 to go on; any other value ends the parse and is returned by it. */
typedef int (*soq__ini_handler)(void *user, const struct soq__ini_entry *entry, struct soq_error *err);

/* Parses text[0..size), which messages call `name`. */
int soq__ini_parse(const char *name, const char *text, size_t size, soq__ini_handler handler, void *user,
                   struct soq_error *err);
/* Parses a file; "-" is standard input. */
int soq__ini_read(const char *path, soq__ini_handler handler, void *user, struct soq_error *err);

#endif
