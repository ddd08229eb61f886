/* Rotates the first n_rot = 2 n_pairs elements of every head in place: pair i is (first(i), first(i) + apart). A work-item for
 * each pair of each head. */
__kernel void rope(uint kind, uint n_heads, uint head_dim, uint n_pairs, __global float *x, ulong x_offset, uint x_stride,
                   const __global float *table, ulong table_offset, uint table_stride)
{
    uint pair = get_global_id(0) % n_pairs, head = get_global_id(0) / n_pairs;
    ulong row = get_global_id(1);
    const __global float *turn = table + table_offset + row * table_stride + 2 * pair;
    __global float *a = x + x_offset + row * x_stride + (ulong)head * head_dim + (kind == ROPE_HALF ? pair : 2 * pair);
    __global float *b = a + (kind == ROPE_HALF ? n_pairs : 1);

    if (head < n_heads) {
        float x0 = *a, x1 = *b;

        *a = x0 * turn[0] - x1 * turn[1];
        *b = x0 * turn[1] + x1 * turn[0];
    }
}
