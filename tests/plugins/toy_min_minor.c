/* Works with newer hosts only. */
#define TOY_MIN_MINOR 9
#include "toy.h"
