/* Talks, in lines of 200 characters. */
#define BAD_ENCODE printf("%0193u tokens\n", tile->tokens)
#include "bad_codec.h"
