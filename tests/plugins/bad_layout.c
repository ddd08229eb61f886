/* Tiles come back, but their scales are not what a backend would take them for. */
#define BAD_ENCODE                                                                                                             \
    for (size_t i = 0; i < numbers / tile->width * ((tile->width + 31) / 32); i++)                                             \
    scales[i] = f16_from_f32(f16_to_f32(scales[i]) * 2)
#define BAD_DECODE                                                                                                             \
    for (size_t i = 0; i < numbers; i++)                                                                                       \
    dst[i] /= 2
#include "bad_packed.h"
