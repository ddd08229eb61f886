/* One option's text -> typed value, checked against what the option allows. Knows nothing of files, sections or origins. */
#ifndef SOQ_CONFIG_VALUE_H
#define SOQ_CONFIG_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "soquete/plugin.h"

/* What a value must be: the option table's row, and two properties that only the core's own keys have. */
struct soq__spec {
    struct soq_option option;
    bool list; /* elements between commas, each of the option's type, which is STRING or PATH; the empty text is the empty list
                */
    const char *(*problem)(const char *text); /* NULL, or: what the table cannot say; returns NULL or "must be ..." */
};

struct soq__value {
    char *text; /* owned; as written, but paths resolved; never NULL once parsed */
    union {
        int64_t integer; /* INT */
        uint64_t size;   /* SIZE, bytes, at most INT64_MAX */
        double real;     /* FLOAT */
        bool flag;       /* BOOL */
        unsigned choice; /* ENUM: index into the option's choices */
    } as;
    char **items; /* list: `count` elements and a NULL, owned; else NULL */
    size_t count;
};

/* Parses text. A relative PATH is taken from the directory of the file `from`, or left alone when `from` is NULL. The message
 * says what is wrong with the text and what is allowed, but not whose text it is. */
int soq__value_parse(const struct soq__spec *spec, const char *text, const char *from, struct soq__value *value_out,
                     struct soq_error *err);
void soq__value_done(struct soq__value *value);

/* Appends what the option takes: "integer, 8 to 256", "one of error|warn|info|debug". */
void soq__option_describe(const struct soq_option *option, struct soq_buf *out);

/* Refuses a row that no host can use (a plugin's mistake): key, type, choices, struct_size. */
int soq__option_check(const struct soq_option *option, struct soq_error *err);

#endif
