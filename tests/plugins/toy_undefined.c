/* A plugin that wants a symbol of the host. */
extern const char *soq__toy_missing(void);
const char *(*const toy_reference)(void) = soq__toy_missing;
#include "toy.h"
