/* It reads masses that its plan does not ask for. */
#include "soquete/plugin.h"

#define SOQ_NEED_MASS 0
#include "heaviest.c"
