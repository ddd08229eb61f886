/* init never returns. */
#define BAD_INIT                                                                                                               \
    for (;;)                                                                                                                   \
    sleep(1)
#include "bad_codec.h"
