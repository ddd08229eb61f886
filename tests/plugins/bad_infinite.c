/* What is not finite comes back so. */
#define BAD_ENCODE                                                                                                             \
    for (size_t i = 0; i < numbers; i++)                                                                                       \
        if (!isfinite(src[i]))                                                                                                 \
    scales[0] = 0x7c00
#include "bad_packed.h"
