/* Does not look whether it got memory, and goes on without. */
#define BAD_INIT bad->memory = host->alloc(host->ctx, 100, 8)
#include "bad_codec.h"
