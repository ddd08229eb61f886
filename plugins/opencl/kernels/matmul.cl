/* y = W x, tiled: a work-group gives 16 outputs of 16 rows. Four slices of 16 work-items take every fourth piece of 32 inputs,
 * as in matvec.cl, which says why; a work-item of a slice has a patch of 4 x 4 sums. Weights and activations of four pieces are
 * brought to local memory, weights decoded on the way. */
enum { TILE = 16, PIECE = 32, SLICES = 4 };

/* Element k of output (or row) i of a slice: local[slice][k][i]. */
static void put4(__local float *local_tile, uint slice, uint k, uint i, float4 v)
{
    __local float *p = local_tile + (slice * PIECE + k) * TILE + i;

    p[0] = v.x;
    p[TILE] = v.y;
    p[2 * TILE] = v.z;
    p[3 * TILE] = v.w;
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
matmul(const __global uchar *weight, ulong row_bytes, uint n_outputs, uint n_inputs, const __global float *x, ulong x_offset,
       uint x_stride, const __global float *bias, __global float *y, ulong y_offset, uint y_stride, uint accumulate, uint n_rows)
{
    __local float w_tile[SLICES * PIECE * TILE] __attribute__((aligned(16)));
    __local float x_tile[SLICES * PIECE * TILE] __attribute__((aligned(16)));
    uint item = get_local_id(0), slice = item / 16, patch_row = item % 16 / 4 * 4, patch_output = item % 4 * 4;
    uint first_output = get_group_id(0) * TILE, first_row = get_group_id(1) * TILE;
    float4 sums[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};

    for (uint step_k = 0; step_k < n_inputs; step_k += SLICES * PIECE) {
        for (uint i = item; i < SLICES * TILE * PIECE / 4; i += ITEMS) {
            uint to = i / (PIECE / 4) % TILE, of = i / (PIECE / 4 * TILE), in_piece = i % (PIECE / 4) * 4;
            uint k = step_k + of * PIECE + in_piece, output = first_output + to, row = first_row + to;
            float4 w = (float4)(0.0f), in = (float4)(0.0f);

            if (k < n_inputs && output < n_outputs)
                w = DECODE(weight + output * row_bytes, k, n_inputs);
            if (k < n_inputs && row < n_rows)
                in = load4(x + x_offset + (ulong)row * x_stride, k, n_inputs);
            put4(w_tile, of, in_piece, to, w);
            put4(x_tile, of, in_piece, to, in);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint k = 0; k < PIECE && step_k + slice * PIECE < n_inputs; k++) {
            float4 w = vload4(0, w_tile + (slice * PIECE + k) * TILE + patch_output);
            float4 in = vload4(0, x_tile + (slice * PIECE + k) * TILE + patch_row);

            sums[0] = fma(w, (float4)(in.x), sums[0]);
            sums[1] = fma(w, (float4)(in.y), sums[1]);
            sums[2] = fma(w, (float4)(in.z), sums[2]);
            sums[3] = fma(w, (float4)(in.w), sums[3]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    /* The slices' sums, [slice][row][output], in the place of the weights. */
    for (uint r = 0; r < 4; r++)
        vstore4(sums[r], 0, w_tile + (slice * TILE + patch_row + r) * TILE + patch_output);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = item; i < TILE * TILE; i += ITEMS) {
        uint output = first_output + i % TILE, row = first_row + i / TILE;
        const __local float *s = w_tile + i;

        if (output < n_outputs && row < n_rows) {
            __global float *out = y + y_offset + (ulong)row * y_stride + output;
            float sum = (s[0] + s[TILE * TILE]) + (s[2 * TILE * TILE] + s[3 * TILE * TILE]);

            sum = bias ? sum + bias[output] : sum;
            *out = accumulate ? *out + sum : sum;
        }
    }
}
