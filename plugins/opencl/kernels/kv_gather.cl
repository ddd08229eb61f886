/* Entries that stay, from the blocks src to the blocks dst, for one plane: entry keep[tile][i] becomes dst_first + i. lists
 * holds src [n_src], dst [n_dst], keep [tiles][n_keep]. A work-item for each half-word of each entry of each tile. */
__kernel void kv_gather(const __global ulong *places, ARENA_PARAMETERS, ulong plane_offset, ulong tile_bytes, uint entry_units,
                        const __global uint *lists, uint n_src, uint n_dst, uint dst_first, uint n_keep)
{
    ulong i = get_global_id(0) / entry_units, unit = get_global_id(0) % entry_units, tile = get_global_id(1);

    if (i < n_keep) {
        uint from = lists[n_src + n_dst + tile * n_keep + i], to = dst_first + (uint)i;
        ulong src = places[lists[from / BLOCK_TOKENS]], dst = places[lists[n_src + to / BLOCK_TOKENS]];
        ulong first = plane_offset + tile * tile_bytes;

        ((__global ushort *)(BLOCK_AT(dst) + first))[to % BLOCK_TOKENS * entry_units + unit] =
            ((const __global ushort *)(BLOCK_AT(src) + first))[from % BLOCK_TOKENS * entry_units + unit];
    }
}
