/* Where KV blocks lie. OpenCL 1.2 has no pointers in memory, so a kernel gets the arenas that hold a group's slabs as ARENAS
 * arguments, and a table that says for each block its arena (top byte) and the byte in it.
 *
 * A program of these kernels is built for one kind of planes: KEY_WIDTH, VALUE_WIDTH numbers of KEY_BYTES, VALUE_BYTES (2: F16,
 * 4: F32) in blocks of BLOCK_TOKENS. */
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

static inline float number_at(const __global uchar *p, uint i, uint bytes)
{
    return bytes == 2 ? vload_half(i, (const __global half *)p) : ((const __global float *)p)[i];
}
