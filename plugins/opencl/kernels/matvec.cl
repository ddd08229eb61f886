/* y = W x for few rows of x. A work-group gives 16 outputs of one row; four work-items share an output.
 *
 * The order of every sum is part of the contract with matmul.cl, which computes the same bits for many rows: inputs come in
 * pieces of 32; work-item s of an output adds up pieces s, s + 4, ..., input by input; then (s0 + s1) + (s2 + s3). */
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
matvec(const __global uchar *weight, ulong row_bytes, uint n_outputs, uint n_inputs, const __global float *x, ulong x_offset,
       uint x_stride, const __global float *bias, __global float *y, ulong y_offset, uint y_stride, uint accumulate)
{
    __local float sums[ITEMS];
    uint item = get_local_id(0), slice = item % 4, output = get_group_id(0) * (ITEMS / 4) + item / 4;
    ulong row = get_group_id(1);
    const __global uchar *w = weight + min(output, n_outputs - 1) * row_bytes;
    const __global float *in = x + x_offset + row * x_stride;
    float sum = 0.0f;

    for (uint piece = slice * 32; piece < n_inputs; piece += 128)
        for (uint k = piece; k < piece + 32; k += 4) {
            float4 a = DECODE(w, k, n_inputs), b = load4(in, k, n_inputs);

            sum = fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
        }
    sums[item] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice == 0 && output < n_outputs) {
        __global float *out = y + y_offset + row * y_stride + output;

        sum = (sums[item] + sums[item + 1]) + (sums[item + 2] + sums[item + 3]);
        sum = bias ? sum + bias[output] : sum;
        *out = accumulate ? *out + sum : sum;
    }
}
