/* Settings: their life, and how the file and the command line fill them. See settings.h for the order of calls. */
#include "config/settings.h"

#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "config/ini.h"
#include "config/sections.h"

/* ---- Life */

int soq__settings_create(struct soq__settings **settings_out, struct soq_error *err)
{
    struct soq__settings *s = soq__alloc_zero(1, sizeof *s);
    int rc = s ? soq__settings_add_core(s, err) : soq__settings_no_memory(err);

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
        soq__section_done(&settings->sections[i]);
    soq__free(settings->sections);
    soq__free(settings->file);
    soq__free(settings);
}

/* ---- Filling */

static int assign(struct soq__settings *s, const char *section, const char *key, const char *text, const char *origin,
                  bool is_flag, struct soq_error *err)
{
    struct soq__section *sec;
    struct soq__setting *set;
    struct soq__given *given = NULL;
    int rc = soq__sections_open(s, section, origin, &sec, err);

    if (!rc)
        rc = soq__section_open_key(sec, key, &set, err);
    if (!rc) {
        given = is_flag ? &set->flag : &set->file;
        rc = !is_flag && given->text ? soq__fail(err, SOQ_EINVAL, "the key was already set at %s", given->origin)
                                     : soq__given_set(given, text, origin, err);
    }
    return rc ? soq__settings_blame(rc, origin, is_flag, section, key, text, err) : soq__setting_settle(set, s->file, err);
}

/* A line of the file. */
static int take_entry(void *user, const struct soq__ini_entry *entry, struct soq_error *err)
{
    struct soq__settings *s = user;
    struct soq_buf origin = SOQ_BUF_INIT;
    struct soq__section *sec;
    int rc;

    soq__buf_printf(&origin, "%s:%u", s->file, entry->line);
    if (!soq__buf_ok(&origin)) {
        rc = soq__settings_no_memory(err);
    } else if (entry->key) {
        rc = assign(s, entry->section, entry->key, entry->value, origin.data, false, err);
    } else {
        rc = soq__sections_open(s, entry->section, origin.data, &sec, err);
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
    return s->file ? 0 : soq__settings_no_memory(err);
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
    rc = section && key ? soq__settings_set(settings, section, key, equals + 1, err) : soq__settings_no_memory(err);
    soq__free(section);
    soq__free(key);
    return rc;
}
