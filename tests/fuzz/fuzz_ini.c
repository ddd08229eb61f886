/* Fuzzes configuration files: the INI reader, the core's keys, and a plugin's table over whatever [kv.window] holds. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "config/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define OPTION(type_, key_, default_, ...)                                                                                     \
    {                                                                                                                          \
        .struct_size = sizeof(struct soq_option), .type = type_, .key = key_, .default_value = default_, .help = "Help.",      \
        __VA_ARGS__                                                                                                            \
    }

static const struct soq_option options[] = {
    OPTION(SOQ_OPT_INT, "size", "1024", .min = 1, .max = 4096),
    OPTION(SOQ_OPT_FLOAT, "share", "0.5", .min = 0, .max = INFINITY),
    OPTION(SOQ_OPT_BOOL, "strict", "no"),
    OPTION(SOQ_OPT_ENUM, "mode", "slow", .choices = "slow|fast|fastest"),
    OPTION(SOQ_OPT_SIZE, "bytes", "4KiB", .max = -1),
    OPTION(SOQ_OPT_PATH, "file", ""),
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__settings *settings = NULL;
    const struct soq__setting *set;

    if (soq__settings_create(&settings, &err))
        return 0;
    if (!soq__settings_parse(settings, "etc/fuzz.ini", (const char *)data, size, &err) &&
        !soq__settings_add_schema(settings, "kv.window", options, sizeof options / sizeof *options, sizeof *options, &err))
        soq__settings_check_unclaimed(settings, &err);
    /* A setting that has a value has an origin too. */
    for (size_t i = 0; (set = soq__settings_at(settings, i)); i++) {
        if ((set->value.text == NULL) != (set->origin == NULL))
            __builtin_trap();
    }
    soq__settings_free(settings);
    return 0;
}
