/* Never gives back what the host allocated. */
#define BAD_INIT bad->memory = host->alloc(host->ctx, 100, 8)
#define BAD_SHUTDOWN bad->memory = NULL
#include "bad_codec.h"
