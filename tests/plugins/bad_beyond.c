/* Reads a field that its headers have and the host does not. */
#define BAD_ENCODE rc = ((const volatile uint32_t *)(tile + 1))[0] == 4711 ? 1 : rc
#include "bad_codec.h"
