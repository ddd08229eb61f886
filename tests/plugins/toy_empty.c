/* Correct, but without a device. */
#define TOY_NAME "empty"
#define TOY_DEVICES 0
#include "toy.h"
