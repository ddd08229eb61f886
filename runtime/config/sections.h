/* What settings are made of: sections of keys. Between the files of settings.
 *
 * A section is known (its keys are its option table's) or raw (its keys are those that somebody wrote, as text). A key keeps
 * what the file and the flag said, and settle() derives the effective value; so the order of load, override and add_schema
 * does not matter, and a wrong value is an error even where a flag overrides it. */
#ifndef SOQ_CONFIG_SECTIONS_H
#define SOQ_CONFIG_SECTIONS_H

#include "config/settings.h"

#define SOQ__SECTIONS_MAX 128

struct soq__section {
    char *name;
    char *origin; /* where it was first written; NULL for sections that came with a schema */
    bool known;
    bool claimed; /* raw, but some plugin's */
    struct soq__setting *keys;
    size_t count;
};

struct soq__settings {
    char *file; /* what messages and relative paths refer to; NULL until load */
    struct soq__section *sections;
    size_t count;
};

int soq__settings_no_memory(struct soq_error *err);
/* Says whose value the message is about; returns rc. */
int soq__settings_blame(int rc, const char *origin, bool is_flag, const char *section, const char *key, const char *text,
                        struct soq_error *err);

/* ---- Keys */

int soq__given_set(struct soq__given *given, const char *text, const char *origin, struct soq_error *err);
/* Checks the default, the file's and the flag's text, and makes the last that is given the value. */
int soq__setting_settle(struct soq__setting *set, const char *file, struct soq_error *err);
/* Appends a key to the section; the option's strings are copied. */
int soq__section_add_key(struct soq__section *sec, const struct soq__spec *spec, struct soq__setting **set_out,
                         struct soq_error *err);
/* NULL: there is none. */
struct soq__setting *soq__section_find_key(const struct soq__section *sec, const char *key);
/* The key of that name; in a raw section it is made. */
int soq__section_open_key(struct soq__section *sec, const char *key, struct soq__setting **set_out, struct soq_error *err);

/* ---- Sections */

void soq__section_done(struct soq__section *sec);
/* NULL: there is none. */
struct soq__section *soq__sections_find(const struct soq__settings *s, const char *name);
/* Appends a section without keys; origin may be NULL. */
int soq__sections_add(struct soq__settings *s, const char *name, const char *origin, struct soq__section **sec_out,
                      struct soq_error *err);
/* Whether the name is FAMILY.NAME and may belong to a plugin. */
int soq__sections_check_name(const struct soq__settings *s, const char *name, struct soq_error *err);
/* The section of that name; a plugin's is made, raw. */
int soq__sections_open(struct soq__settings *s, const char *name, const char *origin, struct soq__section **sec_out,
                       struct soq_error *err);

/* The core's tables to sections of their own: at the beginning. */
int soq__settings_add_core(struct soq__settings *s, struct soq_error *err);

#endif
