/* Nothing is wrong: what the others are measured by. */
#include "bad_codec.h"
