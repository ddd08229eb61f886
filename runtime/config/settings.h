/* Settings: what an INI file and the command line say, checked against option tables, with the origin of every value.
 *
 * A value comes from the command line, else from the file, else from the option's default; all that are given are checked.
 * The core's sections ([runtime], [model], [engine], [backend], [kv], [decoding]) are checked as they are read. The section of
 * a plugin, [FAMILY.NAME], is kept as text until its table is known:
 *
 *     soq__settings_create(&settings, &err);
 *     soq__settings_locate(config_flag, &path, &err);            path may be NULL: defaults
 *     soq__settings_load(settings, path, &err);                  with the path, if any
 *     soq__settings_override(settings, "--kv.policy=window", &err);          for each such flag
 *     soq__settings_add_schema(settings, "kv.window", options, count, stride, &err);    for each loaded plugin
 *     soq__settings_claim(settings, "backend.cuda", &err);       for each plugin that is installed but not loaded
 *     soq__settings_check_unclaimed(settings, &err);             no section is left over
 *
 * Messages name the file and line or the flag, the key, the value, and the nearest valid name. After a failed load or override
 * the settings are only good to be freed; a failed add_schema changes nothing. Not thread-safe while it is being filled;
 * afterwards any number of threads may read. Pointers to settings stay valid until add_schema names their section, their
 * values until the next load, override or set. */
#ifndef SOQ_CONFIG_SETTINGS_H
#define SOQ_CONFIG_SETTINGS_H

#include "config/value.h"

struct soq__settings;

/* A value that somebody wrote. */
struct soq__given {
    char *text;   /* NULL: not given */
    char *origin; /* "FILE:LINE" or "command line" */
};

/* One key with its effective value. For readers all of it is read-only. */
struct soq__setting {
    const char *section;
    bool known;            /* its option table is known; otherwise only spec.option.key and value.text mean something */
    struct soq__spec spec; /* owns its strings */
    struct soq__value value;
    const char *origin; /* "default", "etc/soquete.ini:12", "command line" */
    struct soq__given file, flag;
};

int soq__settings_create(struct soq__settings **settings_out, struct soq_error *err);
void soq__settings_free(struct soq__settings *settings);

/* Which file to load: `config` (--config; may be NULL), else soquete/soquete.ini in the user's configuration directory
 * ($XDG_CONFIG_HOME or ~/.config), else in the system's. NULL if there is none. The caller frees the path. */
int soq__settings_locate(const char *config, char **path_out, struct soq_error *err);
/* Reads the file, "-" for standard input; a second file is refused. */
int soq__settings_load(struct soq__settings *settings, const char *path, struct soq_error *err);
/* The same from memory, as if it were the contents of the file `name`. */
int soq__settings_parse(struct soq__settings *settings, const char *name, const char *text, size_t size, struct soq_error *err);

/* True for an argument that is meant for override: `--SECTION.KEY...`. */
bool soq__settings_is_flag(const char *arg);
/* `section.key=value`, with or without `--` in front; the last of several wins. Relative paths are left to the current
 * directory. */
int soq__settings_override(struct soq__settings *settings, const char *arg, struct soq_error *err);
/* The same in parts, for flags with a name of their own (-m FILE sets "model", "path"). */
int soq__settings_set(struct soq__settings *settings, const char *section, const char *key, const char *value,
                      struct soq_error *err);

/* Gives the section FAMILY.NAME its options (copied), checks what was written for it and takes it from then on like a section
 * of the core. `stride` is the distance of two options in bytes. Adding the same table again does nothing. */
int soq__settings_add_schema(struct soq__settings *settings, const char *section, const struct soq_option *options,
                             size_t count, size_t stride, struct soq_error *err);
/* Accepts the section FAMILY.NAME, unchecked. */
int soq__settings_claim(struct soq__settings *settings, const char *section, struct soq_error *err);
int soq__settings_check_unclaimed(const struct soq__settings *settings, struct soq_error *err);

/* The file that was loaded, NULL if none. */
const char *soq__settings_file(const struct soq__settings *settings);
/* NULL if there is no such key. */
const struct soq__setting *soq__settings_find(const struct soq__settings *settings, const char *section, const char *key);
/* The i-th setting, sections in the order of the schema, then plugins'; NULL after the last. */
const struct soq__setting *soq__settings_at(const struct soq__settings *settings, size_t i);

/* Values of keys that the caller knows to exist with that type; anything else is a programming error and asserted. */
int64_t soq__settings_int(const struct soq__settings *settings, const char *section, const char *key);
double soq__settings_float(const struct soq__settings *settings, const char *section, const char *key);
bool soq__settings_bool(const struct soq__settings *settings, const char *section, const char *key);
uint64_t soq__settings_size(const struct soq__settings *settings, const char *section, const char *key);
/* ENUM: the index of the choice. */
unsigned soq__settings_choice(const struct soq__settings *settings, const char *section, const char *key);
/* STRING, PATH and ENUM; a list as one text, its elements joined with ", ". */
const char *soq__settings_string(const struct soq__settings *settings, const char *section, const char *key);
/* Lists; NULL-terminated. */
const char *const *soq__settings_list(const struct soq__settings *settings, const char *section, const char *key,
                                      size_t *count_out);

#endif
