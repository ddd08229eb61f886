/* RMS and layer norm over runs of `width` columns: y = (x - mean) / sqrt(mean square + eps) * weight + bias. A work-group for
 * each run; y may be x. */
enum { NORM_RMS = 1, NORM_LAYER = 2 };

/* The sum over the work-group, the same for every work-item. */
static float group_sum(float value, __local float *sums)
{
    uint item = get_local_id(0);

    sums[item] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_of = ITEMS / 2; half_of; half_of /= 2) {
        if (item < half_of)
            sums[item] += sums[item + half_of];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    value = sums[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return value;
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
norm(uint kind, uint width, float eps, const __global float *weight, const __global float *bias, const __global float *x,
     ulong x_offset, uint x_stride, __global float *y, ulong y_offset, uint y_stride)
{
    __local float sums[ITEMS];
    ulong row = get_group_id(1), run = get_group_id(0) * width;
    const __global float *in = x + x_offset + row * x_stride + run;
    __global float *out = y + y_offset + row * y_stride + run;
    float sum = 0.0f, mean = 0.0f, factor;

    for (uint i = get_local_id(0); kind == NORM_LAYER && i < width; i += ITEMS)
        sum += in[i];
    mean = group_sum(sum, sums) / width;
    sum = 0.0f;
    for (uint i = get_local_id(0); i < width; i += ITEMS)
        sum = fma(in[i] - mean, in[i] - mean, sum);
    factor = 1.0f / sqrt(group_sum(sum, sums) / width + eps);
    for (uint i = get_local_id(0); i < width; i += ITEMS) {
        float v = (in[i] - mean) * factor;

        v = weight ? v * weight[i] : v;
        out[i] = bias ? v + bias[i] : v;
    }
}
