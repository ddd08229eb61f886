/* Built for another major. */
#define TOY_ABI 1
#include "toy.h"
