/* Built for another minor of the backend role. */
#define TOY_MINOR 2
#include "toy.h"
