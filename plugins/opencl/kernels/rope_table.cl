/* table[row][2 i] = mscale cos(a), table[row][2 i + 1] = mscale sin(a) with a = position * inv_freq[i].
 *
 * In F32 the angle would be off by 0.004 at position 100,000, and F64 is optional in OpenCL. So the product is kept as two
 * floats and reduced by whole turns in three steps (Cody and Waite, "Software Manual for the Elementary Functions", 1980): the
 * first leaves no rounding for positions below 2^24, the small rest goes in by the addition theorem. */
#define TURN_HIGH 6.28318548202514648f       /* 2 pi to 24 bits */
#define TURN_LOW (-1.74845553146951715e-07f) /* the rest */

__kernel void rope_table(const __global struct step *step, uint n_pairs, float mscale, const __global float *inv_freq,
                         ulong freq_offset, __global float *table, ulong table_offset, uint table_stride)
{
    uint pair = get_global_id(0), row = get_global_id(1);
    float position = STEP_ARRAY(struct step_row, step, rows)[row].position;

    if (pair < n_pairs) {
        float frequency = inv_freq[freq_offset + pair];
        float high = position * frequency, low = fma(position, frequency, -high);
        float turns = rint(high / TURN_HIGH);
        float near = fma(-turns, TURN_HIGH, high), rest = fma(-turns, TURN_LOW, low);
        float angle = near + rest, missing = (near - angle) + rest;
        float sine = sin(angle), cosine = cos(angle);
        __global float *out = table + table_offset + (ulong)row * table_stride + 2 * pair;

        out[0] = mscale * fma(-missing, sine, cosine);
        out[1] = mscale * fma(missing, cosine, sine);
    }
}
