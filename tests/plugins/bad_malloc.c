/* Never gives back what it allocated beside the host. */
#define BAD_ENCODE ((volatile char *)malloc(100))[0] = 1
#include "bad_codec.h"
