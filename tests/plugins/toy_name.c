/* Not what its manifest says. */
#define TOY_NAME "doll"
#include "toy.h"
