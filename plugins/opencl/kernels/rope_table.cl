/* table[row][2 i] = mscale cos(a), table[row][2 i + 1] = mscale sin(a) with a = position * inv_freq[i]. */
__kernel void rope_table(const __global struct step *step, uint n_pairs, float mscale, const __global float *inv_freq,
                         ulong freq_offset, __global float *table, ulong table_offset, uint table_stride)
{
    uint pair = get_global_id(0), row = get_global_id(1);

    if (pair < n_pairs) {
        float2 turn = cos_sin(STEP_ARRAY(struct step_row, step, rows)[row].position, inv_freq[freq_offset + pair]);
        __global float *out = table + table_offset + (ulong)row * table_stride + 2 * pair;

        out[0] = mscale * turn.x;
        out[1] = mscale * turn.y;
    }
}
