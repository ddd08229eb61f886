/* The shy plugin, whose sampler keeps a state. */
#define SHY_NAME "sullen"
#define SHY_STATE 8
#include "shy.c"
