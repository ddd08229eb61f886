/* The keys of the core: its sections, and which sections belong to plugins. */
#ifndef SOQ_CONFIG_SCHEMA_H
#define SOQ_CONFIG_SCHEMA_H

#include <stddef.h>

#include "config/value.h"

struct soq__core_key {
    const char *section;
    struct soq__spec spec;
};

/* In the order of etc/soquete.ini; the keys of a section are adjacent. */
extern const struct soq__core_key soq__core_keys[];
extern const size_t soq__core_key_count;

/* A plugin's section is FAMILY.NAME. */
extern const char *const soq__plugin_families[];
extern const size_t soq__plugin_family_count;

/* Sections of the core whose keys are anybody's choice, kept as text; their names look like a plugin's. */
extern const char *const soq__free_sections[];
extern const size_t soq__free_section_count;

#endif
