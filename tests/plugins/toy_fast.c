/* A correct plugin's variant. */
#define TOY_VARIANT "fast"
#include "toy.h"
