/* Takes a symbol from nowhere that it names, but leaves it to the first call to find out. */
extern int bad_missing_function(void) __attribute__((weak));
extern int bad_missing_data;
#define BAD_ENCODE rc = tile->head == 4711 ? bad_missing_data : rc
#include "bad_codec.h"
