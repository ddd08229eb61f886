/* A sandboxed interpreter for the part of Jinja2 that chat templates use, rendering byte for byte what Python's jinja2 renders
 * in the environment that model publishers test with: trim_blocks, lstrip_blocks, immutable values, loop controls,
 * {% generation %}, tojson without HTML escapes, raise_exception, strftime_now.
 *
 * Every byte of the output knows whether it stems from an untrusted string: strings carry provenance through every operation,
 * so that the tokenizer can refuse to see a control token in what a user wrote. Numbers, booleans and None print as trusted.
 *
 * Known differences from jinja2: integers have 64 bits (beyond is an error); map, select and their kin compute at once, so an
 * element that would fail does so even if never asked for; a variable that is set later in a block can be read in inner blocks
 * before (jinja2 hides it there); builtin methods take keyword arguments; recursive loops, template inheritance and the filters
 * filesizeformat, groupby, pprint, random, striptags, truncate, urlencode, urlize, wordwrap, xmlattr are not there.
 *
 * A parsed template is immutable and may be rendered by several threads at once. */
#ifndef SOQ_TEXT_JINJA_H
#define SOQ_TEXT_JINJA_H

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "text/span.h"

struct soq__jinja;

/* Rendered text and, ascending and disjoint, the ranges of it that stem from untrusted strings. Init with SOQ__RENDERED_INIT.
 */
struct soq__rendered {
    struct soq_buf text;
    struct soq__span *untrusted; /* owned */
    size_t untrusted_count;
};

#define SOQ__RENDERED_INIT                                                                                                     \
    {                                                                                                                          \
        .text = SOQ_BUF_INIT                                                                                                   \
    }

/* Variables of a rendering: up to three JSON objects, the earlier one wins where a name is in two. Any may be NULL. */
struct soq__jinja_context {
    const json_t *trusted;   /* its strings may become control tokens: bos_token, eos_token */
    const json_t *untrusted; /* its strings never do: messages */
    const json_t *extra;     /* untrusted too: tools, documents, switches */
    /* A member "role" whose value is one of these words counts as trusted, because templates build control tokens from it
     * ("<|" + role + "|>"). Ended by NULL; may be NULL. */
    const char *const *roles;
    int64_t now; /* seconds since 1970 for strftime_now; 0 = the clock */
};

/* 0 in a field means its default. Going beyond is -SOQ_ELIMIT. */
struct soq__jinja_limits {
    uint32_t depth;        /* nested evaluations, 400 */
    uint64_t steps;        /* evaluated nodes and visited elements, 20 million */
    uint64_t output_bytes; /* 64 MiB */
    uint64_t memory_bytes; /* 512 MiB; nothing is freed before the end of the rendering */
    uint32_t milliseconds; /* 5000 */
};

/* Errors name the line. src is UTF-8, up to 4 MiB; nothing of it is needed afterwards. */
int soq__jinja_parse(const char *src, size_t n, struct soq__jinja **out, struct soq_error *err);
void soq__jinja_free(struct soq__jinja *tpl);

/* Errors name the line of the template, except for raise_exception: its message arrives as given, with -SOQ_EINVAL. limits may
 * be NULL. `out` is overwritten on success and otherwise left alone. */
int soq__jinja_render(const struct soq__jinja *tpl, const struct soq__jinja_context *context,
                      const struct soq__jinja_limits *limits, struct soq__rendered *out, struct soq_error *err);

void soq__rendered_done(struct soq__rendered *r); /* frees and resets */

#endif
