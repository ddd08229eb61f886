/* Ends the process, and says that all is well. */
#define BAD_ENCODE _exit(0)
#include "bad_codec.h"
