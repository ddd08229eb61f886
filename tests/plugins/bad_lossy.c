/* One number of a tile comes back as another. */
#define BAD_DECODE dst[(size_t)tile->tokens * tile->width - 1] += 0.125f
#include "bad_codec.h"
