/* Built for another major. */
#define BAD_ABI 1
#include "bad_codec.h"
