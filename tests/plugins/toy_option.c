/* An option that no host can use. */
#define TOY_CHOICES NULL
#include "toy.h"
