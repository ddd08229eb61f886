/* Role entries that overlap. */
#define TOY_STRIDE 24
#include "toy.h"
