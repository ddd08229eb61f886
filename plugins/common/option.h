/* Entries of an option table, one line each. */
#ifndef PLUGIN_OPTION_H
#define PLUGIN_OPTION_H

#include "soquete/plugin.h"

#define OPTION_NUMBER(kind, name, value, least, most, text)                                                                    \
    {                                                                                                                          \
        .struct_size = sizeof(struct soq_option), .type = kind, .key = name, .default_value = value, .min = least,             \
        .max = most, .help = text                                                                                              \
    }
#define OPTION_INT(name, value, least, most, text) OPTION_NUMBER(SOQ_OPT_INT, name, value, least, most, text)
#define OPTION_FLOAT(name, value, least, most, text) OPTION_NUMBER(SOQ_OPT_FLOAT, name, value, least, most, text)
#define OPTION_PATH(name, text)                                                                                                \
    {                                                                                                                          \
        .struct_size = sizeof(struct soq_option), .type = SOQ_OPT_PATH, .key = name, .default_value = "", .help = text         \
    }
#define OPTION_ENUM(name, value, list, text)                                                                                   \
    {                                                                                                                          \
        .struct_size = sizeof(struct soq_option), .type = SOQ_OPT_ENUM, .key = name, .default_value = value, .choices = list,  \
        .help = text                                                                                                           \
    }

#endif
