/* Tiles of packed blocks, as soquete/kv.h lays them out: scales, minima, and codes in quads along the inner axis, which are the
 * dims of keys and the tokens of values. All about the formats is known when the program is built, so it folds away.
 *
 * `tables` holds what a format brings along: from number `book` on its codebook, from `signs` on the factors of its rotation, a
 * sign times 1 / sqrt(block of the rotation) for each dim. A format without a kernel is decoded by the host: then its tiles are
 * plain F32 and lie in a buffer of their own. */
enum { FORMAT_PLAIN = 1, FORMAT_AFFINE = 2, FORMAT_CODEBOOK = 3, FORMAT_E4M3 = 5 };

struct format {
    uint keys;        /* else values */
    uint kind, dtype; /* PLAIN: of the numbers, else of the scales */
    uint bits, symmetric;
    uint group_dims, group_tokens, dims; /* numbers of a token */
    uint min_at, codes_at, book;
};

__constant struct format key_format = {
    1,         KEY_KIND,      KEY_PACKED_DTYPE, KEY_BITS, KEY_SYMMETRIC, KEY_GROUP_DIMS, KEY_GROUP_TOKENS,
    KEY_WIDTH, KEY_MINIMA_AT, KEY_CODES_AT,     KEY_BOOK,
};
__constant struct format value_format = {
    0,           VALUE_KIND,      VALUE_PACKED_DTYPE, VALUE_BITS, VALUE_SYMMETRIC, VALUE_GROUP_DIMS, VALUE_GROUP_TOKENS,
    VALUE_WIDTH, VALUE_MINIMA_AT, VALUE_CODES_AT,     VALUE_BOOK,
};

static inline uint ceil_div(uint n, uint by)
{
    return (n + by - 1) / by;
}

/* Codes of inner indices inner .. inner + 3, a multiple of 4. */
static inline uint4 codes_at(const __global uchar *tile, __constant struct format *f, uint inner, uint outer)
{
    uint n_inner = f->keys ? f->dims : BLOCK_TOKENS, n_outer = f->keys ? BLOCK_TOKENS : f->dims, shift = 0;
    uint4 codes = (uint4)(0);

    tile += f->codes_at;
    for (uint bits = 8; bits; bits /= 2) {
        uint span = 32 / bits;

        if (f->bits & bits) {
            uint4 bytes = convert_uint4(vload4(inner / span * n_outer + outer, tile));

            codes |= (bytes >> (inner % span / 4 * bits) & (uint4)((1u << bits) - 1)) << shift;
            tile += ceil_div(n_inner, span) * n_outer * 4;
            shift += bits;
        }
    }
    return codes;
}

/* Scales or minima, which begin at byte `at`, of the four numbers. */
static inline float4 scales_at(const __global uchar *tile, __constant struct format *f, uint at, uint inner, uint outer)
{
    uint lines = ceil_div(BLOCK_TOKENS, f->group_tokens);
    float of[4];

    if ((f->keys ? f->group_dims : f->group_tokens) % 4 == 0) {
        uint dim = f->keys ? inner : outer, token = f->keys ? outer : inner;

        return (float4)(number_at(tile + at, dim / f->group_dims * lines + token / f->group_tokens, f->dtype));
    }
    for (uint i = 0; i < 4; i++) {
        uint dim = f->keys ? min(inner + i, f->dims - 1) : outer;
        uint token = f->keys ? outer : min(inner + i, (uint)BLOCK_TOKENS - 1);

        of[i] = number_at(tile + at, dim / f->group_dims * lines + token / f->group_tokens, f->dtype);
    }
    return vload4(0, of);
}

/* Four numbers of a plain tile; behind the last one it repeats. */
static inline float4 plain_at(const __global uchar *tile, __constant struct format *f, uint inner, uint outer)
{
    float of[4];

    for (uint i = 0; i < 4; i++) {
        uint dim = f->keys ? min(inner + i, f->dims - 1) : outer;
        uint token = f->keys ? outer : min(inner + i, (uint)BLOCK_TOKENS - 1);

        of[i] = number_at(tile, token * f->dims + dim, f->dtype);
    }
    return vload4(0, of);
}

/* A sign, an exponent of 4 bits and bias 7, a mantissa of 3. */
static inline float4 e4m3(uint4 codes)
{
    uint4 magnitude = codes & 127;
    float4 normal = as_float4(magnitude << 20) * 0x1p120f, small = convert_float4(magnitude) * 0x1p-9f;
    float4 x = select(normal, small, magnitude < 8);

    return as_float4(as_uint4(x) | codes >> 7 << 31);
}

/* The numbers of inner indices inner .. inner + 3, a multiple of 4, as they are stored: not rotated back. What lies behind the
 * inner axis is any number. */
static inline float4 packed_at(const __global uchar *tile, __constant struct format *f, const __global float *tables,
                               uint inner, uint outer)
{
    uint4 codes;
    float4 scales;

    if (f->kind == FORMAT_PLAIN)
        return plain_at(tile, f, inner, outer);
    codes = codes_at(tile, f, inner, outer);
    scales = scales_at(tile, f, 0, inner, outer);
    if (f->kind == FORMAT_CODEBOOK)
        return scales * (float4)(tables[f->book + codes.x], tables[f->book + codes.y], tables[f->book + codes.z],
                                 tables[f->book + codes.w]);
    if (f->kind == FORMAT_E4M3)
        return scales * e4m3(codes);
    if (f->symmetric)
        return scales * (convert_float4(codes) - (float)(1u << f->bits >> 1));
    return fma(convert_float4(codes), scales, scales_at(tile, f, f->min_at, inner, outer));
}

/* n numbers of local memory become sqrt(dims) H x, block of `dims` by block. Barriers must come before; one comes after. */
static inline void hadamard(__local float *x, uint n, uint dims)
{
    for (uint apart = 1; apart < dims; apart *= 2) {
        for (uint i = get_local_id(0); i < n / 2; i += ITEMS) {
            uint at = i / apart * 2 * apart + i % apart;
            float a = x[at], b = x[at + apart];

            x[at] = a + b;
            x[at + apart] = a - b;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
