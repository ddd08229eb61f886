/* Leaves a file, if an empty one. */
#define BAD_INIT fclose(fopen("bad.log", "w"))
#include "bad_codec.h"
