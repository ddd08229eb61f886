/* Takes a symbol from the host. */
extern int soq__pool_threads;
#define BAD_ENCODE rc = tile->head == 4711 ? soq__pool_threads : rc
#include "bad_codec.h"
