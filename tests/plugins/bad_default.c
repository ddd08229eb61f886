/* An option whose default is out of its own range. */
#include "soquete/plugin.h"

static const struct soq_option bad_options[] = {
    {.struct_size = sizeof bad_options[0],
     .type = SOQ_OPT_INT,
     .key = "level",
     .default_value = "9",
     .min = 1,
     .max = 5,
     .help = "How bad."},
};
#define BAD_OPTIONS .options = bad_options, .n_options = 1, .option_stride = sizeof bad_options[0],
#include "bad_codec.h"
