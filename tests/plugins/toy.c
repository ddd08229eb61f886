/* A correct plugin. */
#include "toy.h"
