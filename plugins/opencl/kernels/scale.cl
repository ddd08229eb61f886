/* x = x * scale, then cap * tanh(x / cap) where cap > 0. A work-item for each element. */
__kernel void scale(uint n_cols, float factor, float cap, __global float *x, ulong x_offset, uint x_stride)
{
    uint col = get_global_id(0);
    ulong row = get_global_id(1);

    if (col < n_cols) {
        __global float *p = x + x_offset + row * x_stride + col;
        float v = *p * factor;

        *p = cap > 0.0f ? cap * tanh(v / cap) : v;
    }
}
