/* What all kernels share: the step as soquete/plugin.h lays it out, loads that end with the row, angles.
 *
 * OpenCL C 1.2, full profile, nothing optional: F16 is read and written with vload_half and vstore_half. Work-groups have ITEMS
 * work-items; the host passes ITEMS. Sums have one order whatever the device: nothing is contracted, fma is written out. */
#pragma OPENCL FP_CONTRACT OFF

struct step {
    uint struct_size, total_bytes;
    ulong serial;
    uint flags;
    uint n_rows, n_seqs, n_segments, n_outputs, n_edits, n_copies;
    uint off_rows, off_seqs, off_segments, off_outputs, off_edits, off_copies;
    uint reserved;
};

struct step_row {
    int token;
    uint token_source, position, entry, seq;
    int parent;
    uint flags, mass_line;
};

struct step_seq {
    uint slot, n_cached, first_row, n_rows, first_segment, n_segments;
};

struct step_segment {
    uint group, flags, first_layer, n_layers, first_head, n_heads, first_entry, n_entries;
    int position_offset;
    uint rotation;
};

enum { SEGMENT_ROTATE = 1, SEGMENT_ROLLING = 2 };

struct step_edit {
    uint slot, group, index, block;
};

/* An array of the step: what is rows, seqs, segments, outputs or edits. */
#define STEP_ARRAY(type, step, what) ((const __global type *)((const __global uchar *)(step) + (step)->off_##what))

/* Elements k .. k + 3 of a row of n; zeros behind its end. */
static inline float4 load4(const __global float *row, uint k, uint n)
{
    if (k + 4 <= n)
        return vload4(0, row + k);
    return (float4)(k < n ? row[k] : 0.0f, k + 1 < n ? row[k + 1] : 0.0f, k + 2 < n ? row[k + 2] : 0.0f, 0.0f);
}

enum { ROPE_INTERLEAVED = 1, ROPE_HALF = 2 };

/* Cosine and sine of position * frequency.
 *
 * In F32 the angle would be off by 0.004 at position 100,000, and F64 is optional in OpenCL. So the product is kept as two
 * floats and reduced by whole turns in three steps (Cody and Waite, "Software Manual for the Elementary Functions", 1980): the
 * first leaves no rounding for positions below 2^24, the small rest goes in by the addition theorem. */
#define TURN_HIGH 6.28318548202514648f       /* 2 pi to 24 bits */
#define TURN_LOW (-1.74845553146951715e-07f) /* the rest */

static inline float2 cos_sin(float position, float frequency)
{
    float high = position * frequency, low = fma(position, frequency, -high);
    float turns = rint(high / TURN_HIGH);
    float near = fma(-turns, TURN_HIGH, high), rest = fma(-turns, TURN_LOW, low);
    float angle = near + rest, missing = (near - angle) + rest;
    float sine = sin(angle), cosine = cos(angle);

    return (float2)(fma(-missing, sine, cosine), fma(missing, cosine, sine));
}
