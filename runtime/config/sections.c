/* Sections and their keys. */
#include "config/sections.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/nearest.h"
#include "base/utf8.h"
#include "config/ini.h"
#include "config/schema.h"

#define KEYS_MAX 256
#define SHOWN_MAX 60 /* bytes of a value that a message repeats */

int soq__settings_no_memory(struct soq_error *err)
{
    return soq__fail(err, SOQ_ENOMEM, "settings: out of memory");
}

int soq__settings_blame(int rc, const char *origin, bool is_flag, const char *section, const char *key, const char *text,
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

int soq__given_set(struct soq__given *given, const char *text, const char *origin, struct soq_error *err)
{
    struct soq__given fresh = {soq__strdup(text), soq__strdup(origin)};

    if (!fresh.text || !fresh.origin) {
        given_done(&fresh);
        return soq__settings_no_memory(err);
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
    return *string ? 0 : soq__settings_no_memory(err);
}

int soq__section_add_key(struct soq__section *sec, const struct soq__spec *spec, struct soq__setting **set_out,
                         struct soq_error *err)
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
        return soq__settings_no_memory(err);
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

struct soq__setting *soq__section_find_key(const struct soq__section *sec, const char *key)
{
    for (size_t i = 0; i < sec->count; i++) {
        if (strcmp(sec->keys[i].spec.option.key, key) == 0)
            return &sec->keys[i];
    }
    return NULL;
}

static int fail_unknown_key(const struct soq__section *sec, const char *key, struct soq_error *err)
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

int soq__section_open_key(struct soq__section *sec, const char *key, struct soq__setting **set_out, struct soq_error *err)
{
    const struct soq__spec text = {.option = {.type = SOQ_OPT_STRING, .key = key}};
    struct soq__setting *set = soq__section_find_key(sec, key);

    if (!set && sec->known)
        return fail_unknown_key(sec, key, err);
    if (!set)
        return soq__section_add_key(sec, &text, set_out, err);
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

int soq__setting_settle(struct soq__setting *set, const char *file, struct soq_error *err)
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
            soq__settings_blame(rc, origins[i], i == 2, set->section, o->key, texts[i], err);
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

void soq__section_done(struct soq__section *sec)
{
    for (size_t i = 0; i < sec->count; i++)
        setting_done(&sec->keys[i]);
    soq__free(sec->keys);
    soq__free(sec->name);
    soq__free(sec->origin);
    *sec = (struct soq__section){0};
}

struct soq__section *soq__sections_find(const struct soq__settings *s, const char *name)
{
    for (size_t i = 0; i < s->count; i++) {
        if (strcmp(s->sections[i].name, name) == 0)
            return &s->sections[i];
    }
    return NULL;
}

int soq__sections_add(struct soq__settings *s, const char *name, const char *origin, struct soq__section **sec_out,
                      struct soq_error *err)
{
    struct soq__section sec = {.name = soq__strdup(name), .origin = origin ? soq__strdup(origin) : NULL};
    struct soq__section *sections = NULL;

    if (s->count < SOQ__SECTIONS_MAX && sec.name && (sec.origin || !origin))
        sections = soq__realloc_array(s->sections, s->count + 1, sizeof *sections);
    if (!sections) {
        soq__section_done(&sec);
        return s->count < SOQ__SECTIONS_MAX ? soq__settings_no_memory(err)
                                            : soq__fail(err, SOQ_ELIMIT, "more than %d sections", SOQ__SECTIONS_MAX);
    }
    s->sections = sections;
    sections[s->count] = sec;
    *sec_out = &sections[s->count++];
    return 0;
}

/* Suggests a core section, or for FAMILY.NAME the right family. */
static int fail_unknown_section(const struct soq__settings *s, const char *name, struct soq_error *err)
{
    const char *names[SOQ__SECTIONS_MAX], *near, *dot = strchrnul(name, '.');
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

int soq__sections_check_name(const struct soq__settings *s, const char *name, struct soq_error *err)
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

int soq__sections_open(struct soq__settings *s, const char *name, const char *origin, struct soq__section **sec_out,
                       struct soq_error *err)
{
    struct soq__section *sec = soq__sections_find(s, name);
    int rc;

    if (sec) {
        *sec_out = sec;
        return 0;
    }
    rc = soq__sections_check_name(s, name, err);
    return rc ? rc : soq__sections_add(s, name, origin, sec_out, err);
}
