/* What `soquete new` writes: examples/anyname.mk and the files of examples/new-kvpolicy/ and new-kvcodec/ as text, made by
 * templates.sh. */
#ifndef SOQ_CLI_TEMPLATES_H
#define SOQ_CLI_TEMPLATES_H

#include <stddef.h>

struct soq__template {
    const char *file; /* "heaviest.c", "anyname.mk" */
    const char *text; /* in which the plugin is called as the file is */
};

extern const struct soq__template soq__templates[];
extern const size_t soq__template_count;

#endif
