#include "check/weights.h"

#include <string.h>

#include "check/kit.h"
#include "model/dtype.h"

#define TYPE(name, id, text, elements, bytes) id,
const uint32_t soq__weight_types[] = {SOQ_DTYPES(TYPE)};
#undef TYPE
const size_t soq__weight_type_count = SOQ__COUNT(soq__weight_types);

/* Where blocks keep their half floats, at most two. */
static const struct {
    uint32_t dtype, first, second;
} halves[] = {
    {SOQ_DTYPE_Q4_0, 0, 0}, {SOQ_DTYPE_Q4_1, 0, 2},     {SOQ_DTYPE_Q5_0, 0, 0},     {SOQ_DTYPE_Q5_1, 0, 2},
    {SOQ_DTYPE_Q8_0, 0, 0}, {SOQ_DTYPE_Q2_K, 80, 82},   {SOQ_DTYPE_Q3_K, 108, 108}, {SOQ_DTYPE_Q4_K, 0, 2},
    {SOQ_DTYPE_Q5_K, 0, 2}, {SOQ_DTYPE_Q6_K, 208, 208}, {SOQ_DTYPE_IQ4_NL, 0, 0},   {SOQ_DTYPE_IQ4_XS, 0, 0},
};

/* Cut to a half float; what would be denormal to 0. */
static void put_half(uint8_t *p, float x)
{
    uint32_t bits, exponent;
    uint16_t half;

    memcpy(&bits, &x, sizeof bits);
    exponent = bits >> 23 & 255;
    half = exponent < 113 ? 0 : (uint16_t)((bits >> 16 & 0x8000) | ((exponent - 112) << 10 & 0x7c00) | (bits >> 13 & 0x3ff));
    memcpy(p, &half, sizeof half);
}

static void fill_block(uint32_t dtype, uint8_t *block, uint64_t *seed)
{
    float x = soq__kit_random(seed);

    if (dtype == SOQ_DTYPE_F32)
        memcpy(block, &x, sizeof x);
    else if (dtype == SOQ_DTYPE_F16)
        put_half(block, x);
    else if (dtype == SOQ_DTYPE_BF16)
        memcpy(block, (const uint8_t *)&x + 2, 2);
    for (size_t i = 0; i < SOQ__COUNT(halves); i++) {
        if (halves[i].dtype == dtype) {
            put_half(block + halves[i].second, soq__kit_random(seed) * 0.02f);
            put_half(block + halves[i].first, soq__kit_random(seed) * 0.02f);
        }
    }
}

size_t soq__block_bytes(uint32_t dtype, size_t elements)
{
    const struct soq__dtype *type = soq__dtype(dtype);

    return elements / type->elements * type->bytes;
}

void soq__random_blocks(uint32_t dtype, size_t elements, uint64_t seed, uint8_t *out)
{
    const struct soq__dtype *type = soq__dtype(dtype);
    size_t bytes = soq__block_bytes(dtype, elements);

    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)soq__kit_random_below(&seed, 256);
    for (size_t i = 0; i < elements / type->elements; i++)
        fill_block(dtype, out + i * type->bytes, &seed);
}
