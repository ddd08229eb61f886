/* Settings as readers see them. */
#include <assert.h>

#include "config/sections.h"

const char *soq__settings_file(const struct soq__settings *settings)
{
    return settings->file;
}

const struct soq__setting *soq__settings_find(const struct soq__settings *settings, const char *section, const char *key)
{
    const struct soq__section *sec = soq__sections_find(settings, section);

    return sec ? soq__section_find_key(sec, key) : NULL;
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
