/* Gives up the whole process over a tile. */
#define BAD_ENCODE abort()
#include "bad_codec.h"
