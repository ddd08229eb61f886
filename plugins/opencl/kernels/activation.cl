/* y = act(gate) * up, or act(gate) where up is NULL; y may be gate. A work-item for each element. The tanh form of GELU is
 * x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
enum { ACT_SILU = 1, ACT_GELU_TANH = 2, ACT_GELU_ERF = 3, ACT_RELU = 4 };

static float activate(uint kind, float x)
{
    switch (kind) {
    case ACT_SILU:
        return x / (1.0f + exp(-x));
    case ACT_GELU_TANH:
        return x / (1.0f + exp(-2.0f * 0.79788456f * x * fma(0.044715f * x, x, 1.0f)));
    case ACT_GELU_ERF:
        return 0.5f * x * erfc(-0.70710678f * x);
    default:
        return fmax(x, 0.0f);
    }
}

__kernel void activation(uint kind, uint n_cols, const __global float *gate, ulong gate_offset, uint gate_stride,
                         const __global float *up, ulong up_offset, uint up_stride, __global float *y, ulong y_offset,
                         uint y_stride)
{
    uint col = get_global_id(0);
    ulong row = get_global_id(1);

    if (col < n_cols) {
        float v = activate(kind, gate[gate_offset + row * gate_stride + col]);

        y[y_offset + row * y_stride + col] = up ? v * up[up_offset + row * up_stride + col] : v;
    }
}
