/* y[i] = x[outputs[i]]. A work-item for each element. */
__kernel void gather(const __global struct step *step, uint n_cols, const __global float *x, ulong x_offset, uint x_stride,
                     __global float *y, ulong y_offset, uint y_stride)
{
    uint col = get_global_id(0);
    ulong row = get_global_id(1), from = STEP_ARRAY(uint, step, outputs)[row];

    if (col < n_cols)
        y[y_offset + row * y_stride + col] = x[x_offset + from * x_stride + col];
}
