/* Four weights of a row, from GGUF's blocks as they lie in the file: decode_<type>(row, k, n) gives inputs k .. k + 3 of n, k a
 * multiple of 4. Each expression is evaluated as its reference does, so values are equal to the last bit.
 *
 * In the comments: d and m are F16 scales and minima, s packed scales, q codes, h the upper bits of codes. */

static inline float f16_at(const __global uchar *p)
{
    return vload_half(0, (const __global half *)p);
}

/* Codes i .. i + 3 of 2 n four-bit ones in n bytes: the first n in the low halves. */
static inline int4 nibbles(const __global uchar *q, uint i, uint n)
{
    int4 bytes = convert_int4(vload4(0, q + i % n));

    return i < n ? bytes & 15 : bytes >> 4;
}

/* Bit `bit` of bytes i .. i + 3, moved to `to`. */
static inline int4 bits_of(const __global uchar *h, uint i, uint bit, uint to)
{
    return (convert_int4(vload4(0, h + i)) >> (int)bit & 1) << (int)to;
}

/* Bits i .. i + 3 of a bit string, as fifth bits. */
static inline int4 fifth_bits(const __global uchar *h, uint i)
{
    return ((int4)(h[i / 8] >> i % 8) >> (int4)(0, 1, 2, 3) & 1) << 4;
}

static inline float4 decode_f32(const __global uchar *row, uint k, uint n)
{
    return load4((const __global float *)row, k, n);
}

static inline float4 decode_f16(const __global uchar *row, uint k, uint n)
{
    const __global half *p = (const __global half *)row + k;

    if (k + 4 <= n)
        return vload_half4(0, p);
    return (float4)(k < n ? vload_half(0, p) : 0.0f, k + 1 < n ? vload_half(1, p) : 0.0f, k + 2 < n ? vload_half(2, p) : 0.0f,
                    0.0f);
}

static inline float4 decode_bf16(const __global uchar *row, uint k, uint n)
{
    const __global ushort *p = (const __global ushort *)row + k;
    uint4 bits = (uint4)(0);

    if (k + 4 <= n)
        bits = convert_uint4(vload4(0, p));
    else
        bits = (uint4)(k < n ? p[0] : 0, k + 1 < n ? p[1] : 0, k + 2 < n ? p[2] : 0, 0);
    return as_float4(bits << 16);
}

/* d, q[16]: d (q - 8) */
static inline float4 decode_q4_0(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 32 * 18;

    return f16_at(p) * convert_float4(nibbles(p + 2, k % 32, 16) - 8);
}

/* d, m, q[16]: d q + m */
static inline float4 decode_q4_1(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 32 * 20;

    return f16_at(p) * convert_float4(nibbles(p + 4, k % 32, 16)) + f16_at(p + 2);
}

/* d, h[4], q[16]: d (q - 16) */
static inline float4 decode_q5_0(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 32 * 22;

    return f16_at(p) * convert_float4((nibbles(p + 6, k % 32, 16) | fifth_bits(p + 2, k % 32)) - 16);
}

/* d, m, h[4], q[16]: d q + m */
static inline float4 decode_q5_1(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 32 * 24;

    return f16_at(p) * convert_float4(nibbles(p + 8, k % 32, 16) | fifth_bits(p + 4, k % 32)) + f16_at(p + 2);
}

/* d, q[32]: d q */
static inline float4 decode_q8_0(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 32 * 34;

    return f16_at(p) * convert_float4(vload4(0, (const __global char *)(p + 2 + k % 32)));
}

/* Codes of 2 bits: 32 bytes hold four runs of 32. */
static inline int4 bit_pairs(const __global uchar *q, uint i)
{
    return convert_int4(vload4(0, q + i / 128 * 32 + i % 32)) >> (int)(i % 128 / 32 * 2) & 3;
}

/* s[16], q[64], d, m: a scale and a minimum of 4 bits for each 16 */
static inline float4 decode_q2_k(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 256 * 84;
    uint i = k % 256, s = p[i / 16];
    float scale = f16_at(p + 80) * (float)(s & 15), minimum = f16_at(p + 82) * (float)(s >> 4);

    return scale * convert_float4(bit_pairs(p + 16, i)) - minimum;
}

/* h[32], q[64], s[12], d: a signed scale of 6 bits for each 16, four low bits as nibbles, two high ones behind */
static inline float4 decode_q3_k(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 256 * 110, *s = p + 96;
    uint i = k % 256, g = i / 16;
    int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4, high = s[8 + g % 4] >> (g / 4 * 2) & 3;
    float scale = f16_at(p + 108) * (float)((low | high << 4) - 32);

    return scale * convert_float4((bit_pairs(p + 32, i) | bits_of(p, i % 32, i / 32, 2)) - 4);
}

/* Scale (x) and minimum (y) of group g of 8, six bits each, in twelve bytes. */
static inline int2 six_bits(const __global uchar *s, uint g)
{
    if (g < 4)
        return (int2)(s[g] & 63, s[g + 4] & 63);
    return (int2)((s[g + 4] & 15) | s[g - 4] >> 6 << 4, s[g + 4] >> 4 | s[g] >> 6 << 4);
}

/* d, m, s[12], q[128]: eight groups of 32, two in each 32 bytes */
static inline float4 decode_q4_k(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 256 * 144;
    uint i = k % 256;
    int2 s = six_bits(p + 4, i / 32);
    float scale = f16_at(p) * (float)s.x, minimum = f16_at(p + 2) * (float)s.y;

    return scale * convert_float4(nibbles(p + 16 + i / 64 * 32, i % 64, 32)) - minimum;
}

/* d, m, s[12], h[32], q[128]: as Q4_K with a fifth bit */
static inline float4 decode_q5_k(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 256 * 176;
    uint i = k % 256;
    int2 s = six_bits(p + 4, i / 32);
    float scale = f16_at(p) * (float)s.x, minimum = f16_at(p + 2) * (float)s.y;
    int4 codes = nibbles(p + 48 + i / 64 * 32, i % 64, 32) | bits_of(p + 16, i % 32, i / 32, 4);

    return scale * convert_float4(codes) - minimum;
}

/* q[128], h[64], signed s[16], d: in each half of the block, 64 bytes of q and 32 of h */
static inline float4 decode_q6_k(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 256 * 210;
    uint i = k % 256;
    float scale = f16_at(p + 208) * (float)(char)p[192 + i / 16];
    int4 codes = nibbles(p + i / 128 * 64, i % 128, 64) | bit_pairs(p + 128, i) << 4;

    return scale * convert_float4(codes - 32);
}

static inline float4 iq4_values(int4 codes)
{
    const char values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

    return (float4)(values[codes.x], values[codes.y], values[codes.z], values[codes.w]);
}

/* d, q[16]: d times an entry of the code book */
static inline float4 decode_iq4_nl(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 32 * 18;

    return f16_at(p) * iq4_values(nibbles(p + 2, k % 32, 16));
}

/* d, high bits of the scales u16, low ones[4], q[128]: eight groups of 32 */
static inline float4 decode_iq4_xs(const __global uchar *row, uint k, uint n)
{
    const __global uchar *p = row + k / 256 * 136;
    uint i = k % 256, g = i / 32;
    int low = p[4 + g / 2] >> g % 2 * 4 & 15, high = (p[2 + g / 4] >> g % 4 * 2 & 3) << 4;
    float scale = f16_at(p) * (float)((low | high) - 32);

    return scale * iq4_values(nibbles(p + 8 + 16 * g, i % 32, 16));
}
