/* Where KV blocks lie. OpenCL 1.2 has no pointers in memory, so a kernel gets the arenas that hold a group's slabs as ARENAS
 * arguments, and a table that says for each block its arena (top byte) and the byte in it. Tables name blocks with their class
 * in the top four bits: 0, blocks of plain numbers, or 1, packed ones (packed.cl).
 *
 * A program of these kernels is built for one kind of planes: KEY_WIDTH, VALUE_WIDTH numbers of KEY_DTYPE, VALUE_DTYPE in
 * blocks of BLOCK_TOKENS. */
enum { F32 = 0, F16 = 1, BF16 = 30 };

#define ARENA_PARAMETERS                                                                                                       \
    __global uchar *arena0, __global uchar *arena1, __global uchar *arena2, __global uchar *arena3, __global uchar *arena4,    \
        __global uchar *arena5, __global uchar *arena6, __global uchar *arena7
#define BLOCK_AT(place) block_at(place, arena0, arena1, arena2, arena3, arena4, arena5, arena6, arena7)

static inline __global uchar *block_at(ulong place, ARENA_PARAMETERS)
{
    __global uchar *arena = arena0;

    switch (place >> 56) {
    case 1:
        arena = arena1;
        break;
    case 2:
        arena = arena2;
        break;
    case 3:
        arena = arena3;
        break;
    case 4:
        arena = arena4;
        break;
    case 5:
        arena = arena5;
        break;
    case 6:
        arena = arena6;
        break;
    case 7:
        arena = arena7;
        break;
    }
    return arena + (place & 0xffffffffffffffUL);
}

/* places[block][class] */
static inline ulong place_of(const __global ulong *places, uint block)
{
    return places[(block & 0x0fffffff) << 1 | block >> 28];
}

/* The upper half of a number, rounded to nearest, ties to even; a NaN stays one. */
static inline ushort bf16_bits(float v)
{
    uint bits = as_uint(v);

    return (ushort)(isnan(v) ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline uint number_bytes(uint dtype)
{
    return dtype == F32 ? 4 : 2;
}

static inline float number_at(const __global uchar *p, uint i, uint dtype)
{
    if (dtype == F16)
        return vload_half(i, (const __global half *)p);
    return dtype == BF16 ? as_float((uint)((const __global ushort *)p)[i] << 16) : ((const __global float *)p)[i];
}

/* Numbers i .. i + 3 */
static inline float4 numbers_at(const __global uchar *p, uint i, uint dtype)
{
    if (dtype == F16)
        return vload_half4(0, (const __global half *)p + i);
    return dtype == BF16 ? as_float4(convert_uint4(vload4(0, (const __global ushort *)p + i)) << 16)
                         : vload4(0, (const __global float *)p + i);
}

static inline void put_number(__global uchar *p, ulong i, uint dtype, float v)
{
    if (dtype == F16)
        vstore_half_rte(v, i, (__global half *)p);
    else if (dtype == BF16)
        ((__global ushort *)p)[i] = bf16_bits(v);
    else
        ((__global float *)p)[i] = v;
}
