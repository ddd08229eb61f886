/* Writes behind what it allocated. */
#define BAD_INIT                                                                                                               \
    bad->memory = host->alloc(host->ctx, 100, 8);                                                                              \
    if (!bad->memory)                                                                                                          \
        return plugin_fail(err, SOQ_ENOMEM, "out of memory");                                                                  \
    ((char *)bad->memory)[100] = 0
#include "bad_codec.h"
