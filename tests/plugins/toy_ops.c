/* A table that is too small for its required slots. */
#define TOY_MEMORY_SIZE 24
#include "toy.h"
