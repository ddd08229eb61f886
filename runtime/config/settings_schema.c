/* Option tables: the core's and plugins', and sections that wait for theirs. */
#include <string.h>

#include "base/alloc.h"
#include "base/nearest.h"
#include "config/schema.h"
#include "config/sections.h"

int soq__settings_add_core(struct soq__settings *s, struct soq_error *err)
{
    for (size_t i = 0; i < soq__core_key_count; i++) {
        const struct soq__core_key *core = &soq__core_keys[i];
        struct soq__section *sec = soq__sections_find(s, core->section);
        struct soq__setting *set;
        int rc = sec ? 0 : soq__sections_add(s, core->section, NULL, &sec, err);

        if (rc)
            return rc;
        sec->known = true;
        rc = soq__section_add_key(sec, &core->spec, &set, err);
        if (!rc)
            rc = soq__setting_settle(set, NULL, err);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < soq__free_section_count; i++) {
        struct soq__section *sec;
        int rc = soq__sections_add(s, soq__free_sections[i], NULL, &sec, err);

        if (rc)
            return rc;
        sec->claimed = true;
    }
    return 0;
}

/* Adds checked copies of the options to a section that has none. */
static int add_options(struct soq__section *sec, const struct soq_option *options, size_t count, size_t stride,
                       struct soq_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const struct soq_option *option = (const void *)((const char *)options + i * stride);
        struct soq__spec spec = {.list = false};
        struct soq__setting *set;
        int rc = soq__option_check(option, err);

        if (!rc && soq__section_find_key(sec, option->key))
            rc = soq__fail(err, SOQ_EINVAL, "option '%s' occurs twice", option->key);
        if (rc)
            return rc;
        spec.option = *option;
        rc = soq__section_add_key(sec, &spec, &set, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* Copies what was written for the raw section to the keys of the known one. */
static int adopt(struct soq__section *known, const struct soq__section *raw, struct soq_error *err)
{
    for (size_t i = 0; i < raw->count; i++) {
        const struct soq__setting *old = &raw->keys[i];
        const struct soq__given *given = old->file.text ? &old->file : &old->flag;
        struct soq__setting *set;
        int rc = soq__section_open_key(known, old->spec.option.key, &set, err);

        if (!rc && old->file.text)
            rc = soq__given_set(&set->file, old->file.text, old->file.origin, err);
        if (!rc && old->flag.text)
            rc = soq__given_set(&set->flag, old->flag.text, old->flag.origin, err);
        if (rc)
            return soq__settings_blame(rc, given->origin, given == &old->flag, raw->name, old->spec.option.key, given->text,
                                       err);
    }
    return 0;
}

static int build_section(const struct soq__settings *s, struct soq__section *sec, const struct soq__section *raw,
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
        rc = soq__setting_settle(&sec->keys[i], s->file, err);
    return rc;
}

/* Whether a known section has just these keys: variants of a plugin, and roles of one plugin, may publish the same table. */
static bool has_options(const struct soq__section *sec, const struct soq_option *options, size_t count, size_t stride)
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
    struct soq__section *old = soq__sections_find(settings, section);
    struct soq__section sec = {.known = true};
    int rc;

    if (old && old->known && strchr(section, '.'))
        return has_options(old, options, count, stride)
                   ? 0
                   : soq__fail(err, SOQ_EINVAL, "[%s]: another plugin gave this section other options", section);
    rc = soq__sections_check_name(settings, section, err);
    if (rc) {
        soq__fail_prefix(err, "[%s]", section);
        return rc;
    }
    sec.name = soq__strdup(section);
    rc = sec.name ? build_section(settings, &sec, old, options, count, stride, err) : soq__settings_no_memory(err);
    if (!rc && !old)
        rc = soq__sections_add(settings, section, NULL, &old, err);
    if (rc) {
        soq__section_done(&sec);
        return rc;
    }
    soq__section_done(old);
    *old = sec;
    return 0;
}

int soq__settings_claim(struct soq__settings *settings, const char *section, struct soq_error *err)
{
    struct soq__section *sec;
    int rc = soq__sections_open(settings, section, NULL, &sec, err);

    if (rc)
        soq__fail_prefix(err, "[%s]", section);
    else
        sec->claimed = true;
    return rc;
}

int soq__settings_check_unclaimed(const struct soq__settings *settings, struct soq_error *err)
{
    const struct soq__section *lost = NULL;
    const char *names[SOQ__SECTIONS_MAX], *near;
    size_t count = 0;

    for (size_t i = 0; i < settings->count; i++) {
        const struct soq__section *sec = &settings->sections[i];

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
