/* A role that is reserved. */
#define TOY_MORE_ROLES TOY_ROLE(SOQ_ROLE_DRAFTER, 0, &toy_sampler),
#include "toy.h"
