/* Asks for a key that it never told of. */
#define BAD_INIT config->get_int(config->ctx, "level")
#include "bad_codec.h"
