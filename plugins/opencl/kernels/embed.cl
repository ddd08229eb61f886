/* y[row] = scale * W[token of the row]. A work-item for four elements. */
__kernel void embed(const __global struct step *step, const __global uchar *weight, ulong row_bytes, uint n_cols, float factor,
                    __global float *y, ulong y_offset, uint y_stride)
{
    uint k = get_global_id(0) * 4, row = get_global_id(1);
    uint token = STEP_ARRAY(struct step_row, step, rows)[row].token;
    __global float *out = y + y_offset + (ulong)row * y_stride;

    if (k < n_cols) {
        float4 v = factor * DECODE(weight + token * row_bytes, k, n_cols);

        out[k] = v.x;
        if (k + 1 < n_cols)
            out[k + 1] = v.y;
        if (k + 2 < n_cols)
            out[k + 2] = v.z;
        if (k + 3 < n_cols)
            out[k + 3] = v.w;
    }
}
