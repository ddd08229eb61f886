/* Buffers are allocated, but never freed. */
#define TOY_FREE NULL
#include "toy.h"
