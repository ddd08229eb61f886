/* One row of weights as F32. A work-item for four elements; y has room for whole fours. */
__kernel void expand(const __global uchar *weight, uint n_cols, __global float *y)
{
    uint k = get_global_id(0) * 4;

    if (k < n_cols)
        vstore4(DECODE(weight, k, n_cols), 0, y + k);
}
