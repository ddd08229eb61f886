/* Talks. */
#define BAD_ENCODE printf("%u tokens\n", tile->tokens)
#include "bad_codec.h"
