/* K or V of the step's rows to their entries. A work-item for each number; width and dtype are those of the plane. */
__kernel void kv_append(const __global struct step *step, const __global uint *table, const __global ulong *places,
                        ARENA_PARAMETERS, uint max_blocks, ulong first_tile, ulong tile_bytes, uint n_heads, uint width,
                        uint dtype, const __global float *x, ulong x_offset, uint x_stride)
{
    uint col = get_global_id(0), row_index = get_global_id(1);
    __global const struct step_row *row = STEP_ARRAY(struct step_row, step, rows) + row_index;
    uint slot = STEP_ARRAY(struct step_seq, step, seqs)[row->seq].slot;

    if (col < n_heads * width) {
        ulong place = place_of(places, table[(ulong)slot * max_blocks + row->entry / BLOCK_TOKENS]);
        __global uchar *tile = BLOCK_AT(place) + first_tile + col / width * tile_bytes;
        ulong i = (ulong)(row->entry % BLOCK_TOKENS) * width + col % width;

        put_number(tile, i, dtype, x[x_offset + (ulong)row_index * x_stride + col]);
    }
}
