/* y = a + b; y may be a or b. A work-item for each element. */
__kernel void add(uint n_cols, const __global float *a, ulong a_offset, uint a_stride, const __global float *b, ulong b_offset,
                  uint b_stride, __global float *y, ulong y_offset, uint y_stride)
{
    uint col = get_global_id(0);
    ulong row = get_global_id(1);

    if (col < n_cols)
        y[y_offset + row * y_stride + col] = a[a_offset + row * a_stride + col] + b[b_offset + row * b_stride + col];
}
