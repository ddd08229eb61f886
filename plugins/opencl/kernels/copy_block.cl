/* The first `n` half-words of each tile of a plane, from one block to another. A work-item for each half-word of each tile. */
__kernel void copy_block(const __global ulong *places, ARENA_PARAMETERS, uint src, uint dst, ulong plane_offset,
                         ulong tile_bytes, uint n)
{
    ulong tile = plane_offset + get_global_id(1) * tile_bytes;
    const __global ushort *from = (const __global ushort *)(BLOCK_AT(place_of(places, src)) + tile);
    __global ushort *to = (__global ushort *)(BLOCK_AT(place_of(places, dst)) + tile);
    uint i = get_global_id(0);

    if (i < n)
        to[i] = from[i];
}
