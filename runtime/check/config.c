/* Checks of the configuration, through the settings that users have: every option with its default, its limits, each of its
 * choices, and with what is none of these. */
#include <stdio.h>

#include "check/kit.h"
#include "check/table.h"
#include "config/settings.h"
#include "config/value.h"

static void need_options(struct soq__kit *kit)
{
    soq__kit_open(kit);
    if (!kit->role->n_options)
        soq__kit_skip(kit, "has no options");
}

/* Whether the settings take it; the plugin is not asked. */
static bool is_accepted(struct soq__kit *kit, const char *setting, struct soq_error *err)
{
    struct soq__kit_config config;
    int rc = soq__kit_config_init(kit, &config, (const char *const[]){setting, NULL}, err);

    if (!rc)
        soq__kit_config_done(&config);
    return !rc;
}

/* Accepted, and then init either works or says what is wrong with it, if somebody wants to know. */
static void try_value(struct soq__kit *kit, const struct soq_option *option, const char *value)
{
    struct soq_error *err = soq__kit_error(kit);
    void *self = soq__kit_self(kit);
    char setting[400];
    int rc;

    snprintf(setting, sizeof setting, "%s=%s", option->key, value);
    soq__kit_at(kit, "%s", setting);
    SOQ__EXPECT(kit, is_accepted(kit, setting, err), "its own table refuses it: %s", err->text);
    rc = soq__kit_init(kit, self, (const char *const[]){setting, NULL}, err);
    if (rc) {
        soq__kit_refused(kit, "init", rc, 0, err);
        SOQ__EXPECT(kit, strstr(err->text, option->key) || rc == -SOQ_ENOMEM || rc == -SOQ_ENOTFOUND,
                    "init refuses it, and its message does not name the key: %s", err->text);
        soq__kit_at(kit, "%s, without a struct soq_error", setting);
        SOQ__EXPECT(kit, soq__kit_init(kit, soq__kit_self(kit), (const char *const[]){setting, NULL}, NULL) == rc,
                    "init returns another code than with one: %s", err->text);
    } else {
        soq__kit_shutdown(kit, self);
    }
    SOQ__EXPECT(kit, kit->host.n_live == 0, "%lu allocations are not freed", (unsigned long)kit->host.n_live);
}

static void try_number(struct soq__kit *kit, const struct soq_option *option, double x)
{
    char value[64];

    if (option->type == SOQ_OPT_FLOAT)
        snprintf(value, sizeof value, "%.17g", x);
    else
        snprintf(value, sizeof value, "%.0f", x);
    try_value(kit, option, value);
}

static void try_choices(struct soq__kit *kit, const struct soq_option *option)
{
    const char *list = option->choices;

    while (*list) {
        size_t n = strcspn(list, "|");
        char value[128];

        snprintf(value, sizeof value, "%.*s", (int)n, list);
        try_value(kit, option, value);
        list += n + (list[n] == '|');
    }
}

static bool is_number(const struct soq_option *option)
{
    return option->type == SOQ_OPT_INT || option->type == SOQ_OPT_FLOAT || option->type == SOQ_OPT_SIZE;
}

static void check_valid(struct soq__kit *kit)
{
    need_options(kit);
    for (uint32_t i = 0; i < kit->role->n_options; i++) {
        const struct soq_option *option = &kit->role->options[i];

        try_value(kit, option, option->default_value);
        if (is_number(option) && option->min <= option->max) {
            try_number(kit, option, option->min);
            try_number(kit, option, option->max);
        } else if (option->type == SOQ_OPT_BOOL) {
            try_value(kit, option, "on");
            try_value(kit, option, "off");
        } else if (option->type == SOQ_OPT_ENUM) {
            try_choices(kit, option);
        }
    }
}

static void expect_refused(struct soq__kit *kit, const struct soq_option *option, const char *value)
{
    struct soq_error *err = soq__kit_error(kit);
    char setting[400];

    snprintf(setting, sizeof setting, "%s=%s", option->key, value);
    soq__kit_at(kit, "%s", setting);
    SOQ__EXPECT(kit, !is_accepted(kit, setting, err), "its own table accepts it");
    SOQ__EXPECT(kit, strstr(err->text, option->key), "the message does not name the key: %s", err->text);
}

static void check_invalid(struct soq__kit *kit)
{
    need_options(kit);
    for (uint32_t i = 0; i < kit->role->n_options; i++) {
        const struct soq_option *option = &kit->role->options[i];
        char value[64];

        if (option->type != SOQ_OPT_STRING && option->type != SOQ_OPT_PATH)
            expect_refused(kit, option, "neither-this-nor-that");
        if (!is_number(option) || option->min > option->max || option->max > 1e15)
            continue;
        snprintf(value, sizeof value, "%.0f", option->max + 2);
        expect_refused(kit, option, value);
        if (option->type == SOQ_OPT_SIZE && option->min < 1)
            continue;
        snprintf(value, sizeof value, "%.0f", option->min - 2);
        expect_refused(kit, option, value);
    }
}

static void check_unknown(struct soq__kit *kit)
{
    struct soq_error *err;

    soq__kit_open(kit);
    err = soq__kit_error(kit);
    SOQ__EXPECT(kit, !is_accepted(kit, "soquete-check-no-such-key=1", err), "a key that is in no table is accepted");
}

static const struct soq__check checks[] = {
    {"config.valid", SOQ__ROLE_EACH, "defaults, limits and choices of its options are taken", check_valid, "skew.exact"},
    {"config.invalid", SOQ__ROLE_EACH, "what its option table excludes is refused", check_invalid, "load.descriptor"},
    {"config.unknown", SOQ__ROLE_EACH, "a key that it does not know is refused", check_unknown, "load.descriptor"},
};
const struct soq__check_family soq__checks_config = SOQ__FAMILY(checks);
