/* A required slot is NULL. */
#define TOY_BEGIN NULL
#include "toy.h"
