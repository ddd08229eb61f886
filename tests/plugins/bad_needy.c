/* Takes for granted that somebody wants to know why it refuses a value. */
#include <string.h>

#include "soquete/plugin.h"

static const struct soq_option bad_options[] = {
    {.struct_size = sizeof bad_options[0],
     .type = SOQ_OPT_INT,
     .key = "level",
     .default_value = "1",
     .min = 1,
     .max = 5,
     .help = "How bad."},
};
#define BAD_OPTIONS .options = bad_options, .n_options = 1, .option_stride = sizeof bad_options[0],
#define BAD_INIT                                                                                                               \
    if (config->get_int(config->ctx, "level") > 1) {                                                                           \
        strcpy(err->text, "level is above 1");                                                                                 \
        return err->code = -SOQ_EINVAL;                                                                                        \
    }
#include "bad_codec.h"
