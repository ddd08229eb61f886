/* Fails without a message. */
#define BAD_INIT                                                                                                               \
    bad->memory = host->alloc(host->ctx, 100, 8);                                                                              \
    if (!bad->memory)                                                                                                          \
    return -SOQ_ENOMEM
#include "bad_codec.h"
