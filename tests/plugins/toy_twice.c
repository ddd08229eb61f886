/* A role that is there twice. */
#define TOY_MORE_ROLES TOY_ROLE(SOQ_ROLE_SAMPLER, SOQ_SAMPLER_MINOR, &toy_sampler),
#include "toy.h"
