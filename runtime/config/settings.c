/* Settings: sections of keys, filled by the schema, the file and the command line. See settings.h for the order of calls.
 *
 * A section is known (its keys are its option table's) or raw (its keys are those that somebody wrote, as text). A key keeps
 * what the file and the flag said, and settle() derives the effective value; so the order of load, override and add_schema
 * does not matter, and a wrong value is an error even where a flag overrides it. */
#include "config/settings.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/nearest.h"
#include "base/utf8.h"
#include "config/ini.h"
#include "config/schema.h"

#define SECTIONS_MAX 128
#define KEYS_MAX 256
#define SHOWN_MAX 60 /* bytes of a value that a message repeats */

struct section {
    char *name;
    char *origin; /* where it was first written; NULL for sections that came with a schema */
    bool known;
    bool claimed; /* raw, but some plugin's */
    struct soq__setting *keys;
    size_t count;
};

struct soq__settings {
    char *file; /* what messages and relative paths refer to; NULL until load */
    struct section *sections;
    size_t count;
};

static int fail_memory(struct soq_error *err)
{
    return soq__fail(err, SOQ_ENOMEM, "settings: out of memory");
}

/* Says whose value the message is about; returns rc. */
static int blame(int rc, const char *origin, bool is_flag, const char *section, const char *key, const char *text,
                 struct soq_error *err)
{
    size_t n = strlen(text);
    int shown = (int)(n > SHOWN_MAX ? soq__utf8_complete(text, SHOWN_MAX) : n);
    const char *more = n > SHOWN_MAX ? "..." : "";

    if (is_flag)
        soq__fail_prefix(err, "--%s.%s=%.*s%s", section, key, shown, text, more);
    else
        soq__fail_prefix(err, "%s: [%s] %s = %.*s%s", origin, section, key, shown, text, more);
    return rc;
}

/* ---- Keys */

static void given_done(struct soq__given *given)
{
    soq__free(given->text);
    soq__free(given->origin);
    *given = (struct soq__given){0};
}

static int given_set(struct soq__given *given, const char *text, const char *origin, struct soq_error *err)
{
    struct soq__given fresh = {soq__strdup(text), soq__strdup(origin)};

    if (!fresh.text || !fresh.origin) {
        given_done(&fresh);
        return fail_memory(err);
    }
    given_done(given);
    *given = fresh;
    return 0;
}

static void setting_done(struct soq__setting *set)
{
    soq__free((char *)(uintptr_t)set->spec.option.key);
    soq__free((char *)(uintptr_t)set->spec.option.default_value);
    soq__free((char *)(uintptr_t)set->spec.option.choices);
    soq__free((char *)(uintptr_t)set->spec.option.help);
    soq__value_done(&set->value);
    given_done(&set->file);
    given_done(&set->flag);
}

static int copy_string(const char **string, struct soq_error *err)
{
    if (!*string)
        return 0;
    *string = soq__strdup(*string);
    return *string ? 0 : fail_memory(err);
}

/* Appends a key to the section; the option's strings are copied. */
static int add_key(struct section *sec, const struct soq__spec *spec, struct soq__setting **set_out, struct soq_error *err)
{
    struct soq__setting set = {.section = sec->name, .known = sec->known, .spec = *spec};
    struct soq_option *o = &set.spec.option;
    const char **strings[] = {&o->key, &o->default_value, &o->choices, &o->help};
    struct soq__setting *keys;
    int rc = 0;

    if (sec->count == KEYS_MAX)
        return soq__fail(err, SOQ_ELIMIT, "more than %d keys in section '%s'", KEYS_MAX, sec->name);
    keys = soq__realloc_array(sec->keys, sec->count + 1, sizeof *keys);
    if (!keys)
        return fail_memory(err);
    sec->keys = keys;
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        if (rc)
            *strings[i] = NULL;
        else
            rc = copy_string(strings[i], err);
    }
    if (rc) {
        setting_done(&set);
        return rc;
    }
    keys[sec->count] = set;
    *set_out = &keys[sec->count++];
    return 0;
}

static struct soq__setting *find_key(const struct section *sec, const char *key)
{
    for (size_t i = 0; i < sec->count; i++) {
        if (strcmp(sec->keys[i].spec.option.key, key) == 0)
            return &sec->keys[i];
    }
    return NULL;
}

static int fail_unknown_key(const struct section *sec, const char *key, struct soq_error *err)
{
    const char *names[KEYS_MAX], *near;
    struct soq_buf all = SOQ_BUF_INIT;
    int rc;

    for (size_t i = 0; i < sec->count; i++) {
        names[i] = sec->keys[i].spec.option.key;
        soq__buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    near = soq__nearest(key, names, sec->count);
    if (near)
        rc = soq__fail(err, SOQ_EINVAL, "unknown key; did you mean '%s'?", near);
    else
        rc = soq__fail(err, SOQ_EINVAL, "unknown key; [%s] has: %s", sec->name, all.len ? all.data : "no keys");
    soq__buf_done(&all);
    return rc;
}

/* The key of that name; in a raw section it is made. */
static int open_key(struct section *sec, const char *key, struct soq__setting **set_out, struct soq_error *err)
{
    const struct soq__spec text = {.option = {.type = SOQ_OPT_STRING, .key = key}};
    struct soq__setting *set = find_key(sec, key);

    if (!set && sec->known)
        return fail_unknown_key(sec, key, err);
    if (!set)
        return add_key(sec, &text, set_out, err);
    *set_out = set;
    return 0;
}

/* A # behind a value is part of it. */
static void hint_comment(const char *text, struct soq_error *err)
{
    size_t n = err ? strlen(err->text) : 0;

    if (err && strstr(text, " #"))
        snprintf(err->text + n, sizeof err->text - n, "; behind a value a comment begins with ';'");
}

/* Checks the default, the file's and the flag's text, and makes the last that is given the value. */
static int settle(struct soq__setting *set, const char *file, struct soq_error *err)
{
    const struct soq_option *o = &set->spec.option;
    const char *const texts[] = {o->default_value, set->file.text, set->flag.text};
    const char *const origins[] = {"default", set->file.origin, set->flag.origin};
    const char *const froms[] = {NULL, file, NULL};

    for (size_t i = 0; i < 3; i++) {
        struct soq__value value;
        int rc;

        if (!texts[i])
            continue;
        rc = soq__value_parse(&set->spec, texts[i], froms[i], &value, err);
        if (rc) {
            blame(rc, origins[i], i == 2, set->section, o->key, texts[i], err);
            if (i == 1)
                hint_comment(texts[i], err);
            return rc;
        }
        soq__value_done(&set->value);
        set->value = value;
        set->origin = origins[i];
    }
    return 0;
}

/* ---- Sections */

static void section_done(struct section *sec)
{
    for (size_t i = 0; i < sec->count; i++)
        setting_done(&sec->keys[i]);
    soq__free(sec->keys);
    soq__free(sec->name);
    soq__free(sec->origin);
    *sec = (struct section){0};
}

static struct section *find_section(const struct soq__settings *s, const char *name)
{
    for (size_t i = 0; i < s->count; i++) {
        if (strcmp(s->sections[i].name, name) == 0)
            return &s->sections[i];
    }
    return NULL;
}

/* Appends a section without keys; origin may be NULL. */
static int add_section(struct soq__settings *s, const char *name, const char *origin, struct section **sec_out,
                       struct soq_error *err)
{
    struct section sec = {.name = soq__strdup(name), .origin = origin ? soq__strdup(origin) : NULL};
    struct section *sections = NULL;

    if (s->count < SECTIONS_MAX && sec.name && (sec.origin || !origin))
        sections = soq__realloc_array(s->sections, s->count + 1, sizeof *sections);
    if (!sections) {
        section_done(&sec);
        return s->count < SECTIONS_MAX ? fail_memory(err) : soq__fail(err, SOQ_ELIMIT, "more than %d sections", SECTIONS_MAX);
    }
    s->sections = sections;
    sections[s->count] = sec;
    *sec_out = &sections[s->count++];
    return 0;
}

/* Suggests a core section, or for FAMILY.NAME the right family. */
static int fail_unknown_section(const struct soq__settings *s, const char *name, struct soq_error *err)
{
    const char *names[SECTIONS_MAX], *near, *dot = strchrnul(name, '.');
    const char *rest = dot[0] && dot[1] ? dot : ""; /* ".NAME" */
    char family[SOQ_INI_NAME_MAX + 1] = "";
    struct soq_buf all = SOQ_BUF_INIT;
    size_t count = 0;
    int rc;

    if ((size_t)(dot - name) < sizeof family)
        memcpy(family, name, (size_t)(dot - name));
    for (size_t i = 0; i < s->count && !strchr(s->sections[i].name, '.'); i++) {
        names[count++] = s->sections[i].name;
        soq__buf_printf(&all, "%s, ", s->sections[i].name);
    }
    for (size_t i = 0; i < soq__plugin_family_count; i++)
        soq__buf_printf(&all, "%s%s.NAME", i ? ", " : "", soq__plugin_families[i]);
    near = *rest ? soq__nearest(family, soq__plugin_families, soq__plugin_family_count) : soq__nearest(family, names, count);
    rc = near ? soq__fail(err, SOQ_EINVAL, "unknown section; did you mean [%s%s]?", near, rest)
              : soq__fail(err, SOQ_EINVAL, "unknown section; there are %s", soq__buf_str(&all));
    soq__buf_done(&all);
    return rc;
}

/* Whether the name is FAMILY.NAME and may belong to a plugin. */
static int check_plugin_section(const struct soq__settings *s, const char *name, struct soq_error *err)
{
    for (size_t i = 0; i < soq__free_section_count; i++) {
        if (strcmp(name, soq__free_sections[i]) == 0)
            return soq__fail(err, SOQ_EINVAL, "the section is the core's, so no plugin can have this name");
    }
    for (size_t i = 0; i < soq__plugin_family_count; i++) {
        size_t n = strlen(soq__plugin_families[i]);

        if (strncmp(name, soq__plugin_families[i], n) == 0 && name[n] == '.' && name[n + 1])
            return 0;
    }
    return fail_unknown_section(s, name, err);
}

/* The section of that name; a plugin's is made, raw. */
static int open_section(struct soq__settings *s, const char *name, const char *origin, struct section **sec_out,
                        struct soq_error *err)
{
    struct section *sec = find_section(s, name);
    int rc;

    if (sec) {
        *sec_out = sec;
        return 0;
    }
    rc = check_plugin_section(s, name, err);
    return rc ? rc : add_section(s, name, origin, sec_out, err);
}

/* ---- Filling */

static int assign(struct soq__settings *s, const char *section, const char *key, const char *text, const char *origin,
                  bool is_flag, struct soq_error *err)
{
    struct section *sec;
    struct soq__setting *set;
    struct soq__given *given = NULL;
    int rc = open_section(s, section, origin, &sec, err);

    if (!rc)
        rc = open_key(sec, key, &set, err);
    if (!rc) {
        given = is_flag ? &set->flag : &set->file;
        rc = !is_flag && given->text ? soq__fail(err, SOQ_EINVAL, "the key was already set at %s", given->origin)
                                     : given_set(given, text, origin, err);
    }
    return rc ? blame(rc, origin, is_flag, section, key, text, err) : settle(set, s->file, err);
}

/* A line of the file. */
static int take_entry(void *user, const struct soq__ini_entry *entry, struct soq_error *err)
{
    struct soq__settings *s = user;
    struct soq_buf origin = SOQ_BUF_INIT;
    struct section *sec;
    int rc;

    soq__buf_printf(&origin, "%s:%u", s->file, entry->line);
    if (!soq__buf_ok(&origin)) {
        rc = fail_memory(err);
    } else if (entry->key) {
        rc = assign(s, entry->section, entry->key, entry->value, origin.data, false, err);
    } else {
        rc = open_section(s, entry->section, origin.data, &sec, err);
        if (rc)
            soq__fail_prefix(err, "%s: [%s]", origin.data, entry->section);
    }
    soq__buf_done(&origin);
    return rc;
}

/* From here on the settings come from `name`. */
static int name_file(struct soq__settings *s, const char *name, struct soq_error *err)
{
    if (s->file)
        return soq__fail(err, SOQ_EINVAL, "%s: the settings already come from %s", name, s->file);
    s->file = soq__strdup(name);
    return s->file ? 0 : fail_memory(err);
}

int soq__settings_load(struct soq__settings *settings, const char *path, struct soq_error *err)
{
    int rc = name_file(settings, strcmp(path, "-") == 0 ? "standard input" : path, err);

    return rc ? rc : soq__ini_read(path, take_entry, settings, err);
}

int soq__settings_parse(struct soq__settings *settings, const char *name, const char *text, size_t size, struct soq_error *err)
{
    int rc = name_file(settings, name, err);

    return rc ? rc : soq__ini_parse(name, text, size, take_entry, settings, err);
}

int soq__settings_set(struct soq__settings *settings, const char *section, const char *key, const char *value,
                      struct soq_error *err)
{
    size_t n = strlen(value);
    bool is_text = soq__utf8_valid(value, n);

    for (size_t i = 0; i < n; i++)
        is_text = is_text && ((unsigned char)value[i] >= 0x20 || value[i] == '\t') && value[i] != 0x7f;
    if (!is_text)
        return soq__fail(err, SOQ_EINVAL, "--%s.%s: the value is not plain UTF-8 text", section, key);
    return assign(settings, section, key, value, "command line", true, err);
}

bool soq__settings_is_flag(const char *arg)
{
    return strncmp(arg, "--", 2) == 0 && arg[2 + strcspn(arg + 2, ".=")] == '.';
}

int soq__settings_override(struct soq__settings *settings, const char *arg, struct soq_error *err)
{
    const char *name = strncmp(arg, "--", 2) == 0 ? arg + 2 : arg;
    const char *equals = strchr(name, '=');
    const char *dot = equals ? memrchr(name, '.', (size_t)(equals - name)) : NULL;
    char *section, *key;
    int rc;

    if (!dot)
        return soq__fail(err, SOQ_EINVAL, "--%s: expected --SECTION.KEY=VALUE", name);
    section = soq__strndup(name, (size_t)(dot - name));
    key = soq__strndup(dot + 1, (size_t)(equals - dot) - 1);
    rc = section && key ? soq__settings_set(settings, section, key, equals + 1, err) : fail_memory(err);
    soq__free(section);
    soq__free(key);
    return rc;
}

/* ---- Schemas */

/* The core's table to known sections. */
static int add_core(struct soq__settings *s, struct soq_error *err)
{
    for (size_t i = 0; i < soq__core_key_count; i++) {
        const struct soq__core_key *core = &soq__core_keys[i];
        struct section *sec = find_section(s, core->section);
        struct soq__setting *set;
        int rc = sec ? 0 : add_section(s, core->section, NULL, &sec, err);

        if (rc)
            return rc;
        sec->known = true;
        rc = add_key(sec, &core->spec, &set, err);
        if (!rc)
            rc = settle(set, NULL, err);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < soq__free_section_count; i++) {
        struct section *sec;
        int rc = add_section(s, soq__free_sections[i], NULL, &sec, err);

        if (rc)
            return rc;
        sec->claimed = true;
    }
    return 0;
}

/* Adds checked copies of the options to a section that has none. */
static int add_options(struct section *sec, const struct soq_option *options, size_t count, size_t stride,
                       struct soq_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const struct soq_option *option = (const void *)((const char *)options + i * stride);
        struct soq__spec spec = {.list = false};
        struct soq__setting *set;
        int rc = soq__option_check(option, err);

        if (!rc && find_key(sec, option->key))
            rc = soq__fail(err, SOQ_EINVAL, "option '%s' occurs twice", option->key);
        if (rc)
            return rc;
        spec.option = *option;
        rc = add_key(sec, &spec, &set, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* Copies what was written for the raw section to the keys of the known one. */
static int adopt(struct section *known, const struct section *raw, struct soq_error *err)
{
    for (size_t i = 0; i < raw->count; i++) {
        const struct soq__setting *old = &raw->keys[i];
        const struct soq__given *given = old->file.text ? &old->file : &old->flag;
        struct soq__setting *set;
        int rc = open_key(known, old->spec.option.key, &set, err);

        if (!rc && old->file.text)
            rc = given_set(&set->file, old->file.text, old->file.origin, err);
        if (!rc && old->flag.text)
            rc = given_set(&set->flag, old->flag.text, old->flag.origin, err);
        if (rc)
            return blame(rc, given->origin, given == &old->flag, raw->name, old->spec.option.key, given->text, err);
    }
    return 0;
}

static int build_section(const struct soq__settings *s, struct section *sec, const struct section *raw,
                         const struct soq_option *options, size_t count, size_t stride, struct soq_error *err)
{
    int rc = add_options(sec, options, count, stride, err);

    if (rc) {
        soq__fail_prefix(err, "options of [%s]", sec->name);
        return rc;
    }
    if (raw)
        rc = adopt(sec, raw, err);
    for (size_t i = 0; i < sec->count && !rc; i++)
        rc = settle(&sec->keys[i], s->file, err);
    return rc;
}

/* Whether a known section has just these keys: variants of a plugin, and roles of one plugin, may publish the same table. */
static bool has_options(const struct section *sec, const struct soq_option *options, size_t count, size_t stride)
{
    bool same = sec->count == count;

    for (size_t i = 0; i < count && same; i++) {
        const struct soq_option *theirs = (const void *)((const char *)options + i * stride);
        const struct soq_option *ours = &sec->keys[i].spec.option;

        same = theirs->struct_size >= sizeof *theirs && theirs->key && theirs->default_value && theirs->type == ours->type &&
               strcmp(theirs->key, ours->key) == 0 && strcmp(theirs->default_value, ours->default_value) == 0;
    }
    return same;
}

int soq__settings_add_schema(struct soq__settings *settings, const char *section, const struct soq_option *options,
                             size_t count, size_t stride, struct soq_error *err)
{
    struct section *old = find_section(settings, section);
    struct section sec = {.known = true};
    int rc;

    if (old && old->known && strchr(section, '.'))
        return has_options(old, options, count, stride)
                   ? 0
                   : soq__fail(err, SOQ_EINVAL, "[%s]: another plugin gave this section other options", section);
    rc = check_plugin_section(settings, section, err);
    if (rc) {
        soq__fail_prefix(err, "[%s]", section);
        return rc;
    }
    sec.name = soq__strdup(section);
    rc = sec.name ? build_section(settings, &sec, old, options, count, stride, err) : fail_memory(err);
    if (!rc && !old)
        rc = add_section(settings, section, NULL, &old, err);
    if (rc) {
        section_done(&sec);
        return rc;
    }
    section_done(old);
    *old = sec;
    return 0;
}

int soq__settings_claim(struct soq__settings *settings, const char *section, struct soq_error *err)
{
    struct section *sec;
    int rc = open_section(settings, section, NULL, &sec, err);

    if (rc)
        soq__fail_prefix(err, "[%s]", section);
    else
        sec->claimed = true;
    return rc;
}

int soq__settings_check_unclaimed(const struct soq__settings *settings, struct soq_error *err)
{
    const struct section *lost = NULL;
    const char *names[SECTIONS_MAX], *near;
    size_t count = 0;

    for (size_t i = 0; i < settings->count; i++) {
        const struct section *sec = &settings->sections[i];

        if (!sec->known && !sec->claimed)
            lost = lost ? lost : sec;
        else if (strchr(sec->name, '.'))
            names[count++] = sec->name;
    }
    if (!lost)
        return 0;
    near = soq__nearest(lost->name, names, count);
    if (near)
        return soq__fail(err, SOQ_EINVAL, "%s: [%s]: no plugin has this section; did you mean [%s]?", lost->origin, lost->name,
                         near);
    return soq__fail(err, SOQ_EINVAL, "%s: [%s]: no plugin has this section; `soquete plugins` lists what is installed",
                     lost->origin, lost->name);
}

/* ---- Life */

int soq__settings_create(struct soq__settings **settings_out, struct soq_error *err)
{
    struct soq__settings *s = soq__alloc_zero(1, sizeof *s);
    int rc = s ? add_core(s, err) : fail_memory(err);

    if (rc)
        soq__settings_free(s);
    else
        *settings_out = s;
    return rc;
}

void soq__settings_free(struct soq__settings *settings)
{
    if (!settings)
        return;
    for (size_t i = 0; i < settings->count; i++)
        section_done(&settings->sections[i]);
    soq__free(settings->sections);
    soq__free(settings->file);
    soq__free(settings);
}

/* ---- Reading */

const char *soq__settings_file(const struct soq__settings *settings)
{
    return settings->file;
}

const struct soq__setting *soq__settings_find(const struct soq__settings *settings, const char *section, const char *key)
{
    const struct section *sec = find_section(settings, section);

    return sec ? find_key(sec, key) : NULL;
}

const struct soq__setting *soq__settings_at(const struct soq__settings *settings, size_t i)
{
    for (size_t j = 0; j < settings->count; j++) {
        if (i < settings->sections[j].count)
            return &settings->sections[j].keys[i];
        i -= settings->sections[j].count;
    }
    return NULL;
}

static const struct soq__value *get(const struct soq__settings *settings, const char *section, const char *key, unsigned types)
{
    const struct soq__setting *set = soq__settings_find(settings, section, key);

    assert(set && set->known && (1u << set->spec.option.type & types));
    return &set->value;
}

int64_t soq__settings_int(const struct soq__settings *settings, const char *section, const char *key)
{
    return get(settings, section, key, 1u << SOQ_OPT_INT)->as.integer;
}

double soq__settings_float(const struct soq__settings *settings, const char *section, const char *key)
{
    return get(settings, section, key, 1u << SOQ_OPT_FLOAT)->as.real;
}

bool soq__settings_bool(const struct soq__settings *settings, const char *section, const char *key)
{
    return get(settings, section, key, 1u << SOQ_OPT_BOOL)->as.flag;
}

uint64_t soq__settings_size(const struct soq__settings *settings, const char *section, const char *key)
{
    return get(settings, section, key, 1u << SOQ_OPT_SIZE)->as.size;
}

unsigned soq__settings_choice(const struct soq__settings *settings, const char *section, const char *key)
{
    return get(settings, section, key, 1u << SOQ_OPT_ENUM)->as.choice;
}

const char *soq__settings_string(const struct soq__settings *settings, const char *section, const char *key)
{
    return get(settings, section, key, 1u << SOQ_OPT_STRING | 1u << SOQ_OPT_PATH | 1u << SOQ_OPT_ENUM)->text;
}

const char *const *soq__settings_list(const struct soq__settings *settings, const char *section, const char *key,
                                      size_t *count_out)
{
    const struct soq__value *value = get(settings, section, key, 1u << SOQ_OPT_STRING | 1u << SOQ_OPT_PATH);

    assert(value->items);
    *count_out = value->count;
    return (const char *const *)value->items;
}
