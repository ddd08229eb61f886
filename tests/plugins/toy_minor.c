/* Built for another minor of the backend role. */
#define TOY_MINOR (SOQ_BACKEND_MINOR + 1)
#include "toy.h"
