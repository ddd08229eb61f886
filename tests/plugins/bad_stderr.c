/* Complains, without end of line. */
#define BAD_DECODE fputs("decode", stderr)
#include "bad_codec.h"
