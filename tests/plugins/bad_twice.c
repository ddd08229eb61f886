/* Works once in a process. */
static int bad_lives;
#define BAD_INIT                                                                                                               \
    if (bad_lives++)                                                                                                           \
    return plugin_fail(err, SOQ_EBUSY, "there has been one already")
#include "bad_codec.h"
