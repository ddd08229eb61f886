/* A string is missing. */
#define TOY_VERSION NULL
#include "toy.h"
