/* Entries that stay, from the blocks src to the blocks dst, for one plane: entry keep[tile][i] becomes dst_first + i. lists
 * holds src [n_src], dst [n_dst], keep [tiles][n_keep]. Of src only blocks first .. first + n are looked at: the packed ones
 * among them lie in `decoded`, as blocks of class 0. A work-item for each half-word of each entry of each tile. */
__kernel void kv_gather(const __global ulong *places, ARENA_PARAMETERS, ulong plane_offset, ulong tile_bytes, uint entry_units,
                        const __global uint *lists, uint n_src, uint n_dst, uint dst_first, uint n_keep, uint first, uint n,
                        const __global uchar *decoded, ulong block_bytes)
{
    ulong i = get_global_id(0) / entry_units, unit = get_global_id(0) % entry_units, tile = get_global_id(1);
    uint from = i < n_keep ? lists[n_src + n_dst + tile * n_keep + i] : 0, to = dst_first + (uint)i,
         index = from / BLOCK_TOKENS;

    if (i < n_keep && index >= first && index - first < n) {
        ulong first_tile = plane_offset + tile * tile_bytes, dst = place_of(places, lists[n_src + to / BLOCK_TOKENS]);
        const __global uchar *src = decoded + (index - first) * block_bytes;

        if (lists[index] >> 28 == 0) {
            ulong place = place_of(places, lists[index]);

            src = BLOCK_AT(place);
        }
        ((__global ushort *)(BLOCK_AT(dst) + first_tile))[to % BLOCK_TOKENS * entry_units + unit] =
            ((const __global ushort *)(src + first_tile))[from % BLOCK_TOKENS * entry_units + unit];
    }
}
