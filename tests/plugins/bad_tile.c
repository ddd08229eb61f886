/* Writes behind the tile. */
#define BAD_ENCODE ((volatile char *)dst)[((size_t)tile->tokens * tile->width * 4 + 7) / 8 * 8] = 0
#include "bad_codec.h"
