/* State that nothing would use. */
#define TOY_STATE_SIZE 16
#include "toy.h"
