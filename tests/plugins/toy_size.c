/* The descriptor ends before the roles. */
#define TOY_SIZE offsetof(struct soq_plugin, n_roles)
#include "toy.h"
