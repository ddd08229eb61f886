/* Another one. */
#define TOY_VARIANT "best"
#include "toy.h"
