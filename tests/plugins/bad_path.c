/* Looks for libraries in a folder of its own (linked with -rpath). */
#include "bad_codec.h"
