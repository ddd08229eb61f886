/* Rotation: where a codec rotates, the queries are rotated and what is summed of values is rotated back, not the tiles. */
#include <math.h>

#include "kernels/codes.h"

/* The transform's steps within eight lanes. */
VEC_INLINE f32x8 butterflies(f32x8 x, uint32_t n)
{
    x = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6) + x * (f32x8){1, -1, 1, -1, 1, -1, 1, -1};
    if (n > 2)
        x = __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5) + x * (f32x8){1, 1, -1, -1, 1, 1, -1, -1};
    if (n > 4)
        x = __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3) + x * (f32x8){1, 1, 1, 1, -1, -1, -1, -1};
    return x;
}

/* Walsh-Hadamard, orthonormal, of blocks of n (a power of two) of `width` numbers, a multiple of 8 in memory. */
static void hadamard(float *x, size_t width, uint32_t n)
{
    f32x8 scale = f32x8_splat(1.0f / sqrtf((float)n));

    for (size_t i = 0; i < width && n > 1; i += 8)
        f32x8_store(x + i, butterflies(f32x8_load(x + i), n) * scale);
    for (size_t apart = 8; apart < n; apart *= 2)
        for (size_t from = 0; from < width; from += 2 * apart)
            for (size_t i = from; i < from + apart; i += 8) {
                f32x8 a = f32x8_load(x + i), b = f32x8_load(x + i + apart);

                f32x8_store(x + i, a + b);
                f32x8_store(x + i + apart, a - b);
            }
}

static void flip(float *x, const struct soq_kv_format *format, size_t width)
{
    for (size_t d = 0; d < width && format->rotation == SOQ_ROTATION_HADAMARD_SIGNS; d++)
        x[d] *= format->signs[d];
}

void cpu_codes_rotate(const struct soq_kv_format *format, size_t width, size_t room, float *x)
{
    if (!format->rotation)
        return;
    flip(x, format, width);
    hadamard(x, room, format->rotation_dims);
}

void cpu_item_turn_back(const struct item *item, float *sums)
{
    const struct soq_kv_format *format = &item->group->classes[CPU_PACKED].planes[CPU_VALUE].format;
    float *coded = sums + item->coded_out;

    if (!item->coded_out)
        return;
    hadamard(coded, item->dv, format->rotation_dims);
    flip(coded, format, item->dv);
    for (size_t d = 0; d < item->dv; d += 8)
        f32x8_store(sums + d, f32x8_load(sums + d) + f32x8_load(coded + d));
}
