/* init crashes. */
#define BAD_INIT                                                                                                               \
    volatile int *volatile nowhere = NULL;                                                                                     \
    *nowhere = 1
#include "bad_codec.h"
