/* y = W x with quantised weights and activations in 8 bits.
 *
 * Eight outputs are the lanes; formats.h draws how their weights lie. In a block of 32 inputs products are summed as integers,
 * exactly, then scaled and added to the output's F32 sum, block by block in order. Two vectors of eight outputs meet several
 * rows of x, which share the unpacked weights as the vectors share the rows; the arithmetic of an output is the same for any
 * number of rows. */
#include "cpu.h"
#include "simd/vec.h"
#include "soquete/dtype.h"
#include "weights.h"

enum {
    ROWS = 4,         /* of x at once */
    HALVES = 2,       /* of a group: eight outputs each */
    ROWS_CHUNK = 128, /* rows that pass over all weights before the next ones */
    SUMS_BYTES = (ROWS_CHUNK + ROWS) * CPU_GROUP_ROWS * (int)sizeof(float),
};

/* What a kernel knows of its type at compile time. */
struct shape {
    uint32_t blocks; /* of a span */
    uint32_t bits, n_sub;
    int32_t zero;
    bool has_min, lookup;
};

/* A row of x: codes and headers. */
struct q8_row {
    const int8_t *codes;
    const struct cpu_q8_header *headers;
};

/* The weights of a step (4 inputs of 8 outputs), as unsigned bytes. */
VEC_INLINE u8x32 step_codes(struct shape s, const uint8_t *codes, uint32_t step)
{
    u8x32 low;

    if (s.bits == 8)
        return u8x32_load(codes + step * 32);
    low = u8x32_load(codes + step % 4 * 32);
    low = step < 4 ? low & 15 : u8x32_high_nibbles(low);
    if (s.lookup)
        return u8x32_lookup(cpu_iq4_values, low);
    if (s.bits == 5)
        return low | (u8x32_shift_to_4(u8x32_load(codes + 128), step) & 0x10);
    if (s.bits == 6)
        return low | (u8x32_shift_to_4(u8x32_load(codes + 128 + step / 4 * 32), step % 4 * 2) & 0x30);
    return low;
}

/* How many steps a dot_sum holds. */
VEC_INLINE uint32_t held_steps(struct shape s, uint32_t n)
{
    uint32_t held = s.lookup || s.bits == 8 ? DOT_STEPS_8 : s.bits == 4 ? DOT_STEPS_4 : s.bits == 5 ? DOT_STEPS_5 : DOT_STEPS_6;

    return held < n ? held : n;
}

/* sums[r][g] += scale[g] * products of steps [first, first + n) of each half with each row. */
VEC_INLINE void dot_steps(struct shape s, uint32_t rows, const uint8_t *const codes[HALVES], uint32_t first, uint32_t n,
                          const struct q8_row x[ROWS], uint32_t block, const i32x8 scale[HALVES], i32x8 sums[ROWS][HALVES])
{
    uint32_t held = held_steps(s, n);

#pragma GCC unroll 4
    for (uint32_t step = first; step < first + n; step += held) {
        dot_sum dots[ROWS][HALVES];

        for (uint32_t r = 0; r < rows; r++)
            dots[r][0] = dots[r][1] = dot_zero();
#pragma GCC unroll 8
        for (uint32_t i = step; i < step + held; i++) {
            u8x32 w0 = step_codes(s, codes[0], i), w1 = step_codes(s, codes[1], i);

            for (uint32_t r = 0; r < rows; r++) {
                u8x32 xs = u8x32_splat4(x[r].codes + block * CPU_BLOCK + i * 4);

                dots[r][0] = dot_step(dots[r][0], w0, xs);
                dots[r][1] = dot_step(dots[r][1], w1, xs);
            }
        }
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t g = 0; g < HALVES; g++)
                sums[r][g] += dot_flush(dots[r][g], scale[g]);
    }
}

/* The same of one half whose weights fill a byte, where products of whole bytes would not fit: as two nibbles. */
VEC_INLINE void dot_steps_split(struct shape s, uint32_t rows, const uint8_t *codes, uint32_t first, uint32_t n,
                                const struct q8_row x[ROWS], uint32_t block, i32x8 scale, uint32_t g, i32x8 sums[ROWS][HALVES])
{
    dot_sum low[ROWS], high[ROWS];

    for (uint32_t r = 0; r < rows; r++)
        low[r] = high[r] = dot_zero();
#pragma GCC unroll 8
    for (uint32_t i = first; i < first + n; i++) {
        u8x32 w = step_codes(s, codes, i);
        u8x32 w_low = w & 15, w_high = u8x32_high_nibbles(w);

        for (uint32_t r = 0; r < rows; r++) {
            u8x32 xs = u8x32_splat4(x[r].codes + block * CPU_BLOCK + i * 4);

            low[r] = dot_step(low[r], w_low, xs);
            high[r] = dot_step(high[r], w_high, xs);
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        sums[r][g] += dot_flush(low[r], scale) + (dot_flush(high[r], scale) << 4);
}

/* acc += the block's contribution: d * sum of products, and the part of minimum or zero point. */
VEC_INLINE void add_block(uint32_t parts, f32x8 d, const f32x8 offset[2], i32x8 sum, const struct cpu_q8_header *header,
                          f32x8 *acc)
{
    *acc = f32x8_madd(f32x8_from_i32(sum), d * f32x8_splat(header->scale), *acc);
    if (parts == 1) {
        *acc = f32x8_madd(offset[0], f32x8_splat(header->sum), *acc);
    } else {
        *acc = f32x8_madd(offset[0], f32x8_splat(header->half[0]), *acc);
        *acc = f32x8_madd(offset[1], f32x8_splat(header->half[1]), *acc);
    }
}

/* One block of both halves and `rows` rows; p[g] is at the block's integer scales, if any, and the codes. */
VEC_INLINE void block_rows(struct shape s, uint32_t rows, const uint8_t *const p[HALVES], const f32x8 d[HALVES],
                           const f32x8 m[HALVES], const struct q8_row x[ROWS], uint32_t block, f32x8 acc[ROWS][HALVES])
{
    uint32_t parts = s.n_sub == 2 ? 2 : 1, steps = 8 / parts;
    size_t mins_at = 8 * s.n_sub, codes_at = mins_at + (s.has_min ? 8 * s.n_sub : 0);
    const uint8_t *codes[HALVES] = {p[0] + codes_at, p[1] + codes_at};
    f32x8 offset[HALVES][2];
    i32x8 sums[ROWS][HALVES];

    for (uint32_t r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = i32x8_splat(0);
    for (uint32_t part = 0; part < parts; part++) {
        i32x8 factor[HALVES];

        for (uint32_t g = 0; g < HALVES; g++) {
            i32x8 scale = s.n_sub ? i32x8_from_i8(p[g] + 8 * part) : i32x8_splat(1);

            factor[g] = dot_scale(scale);
            if (!s.has_min)
                offset[g][part] = d[g] * f32x8_from_i32(scale * i32x8_splat(-s.zero));
            else
                offset[g][part] = s.n_sub ? -(m[g] * f32x8_from_i32(i32x8_from_u8(p[g] + mins_at + 8 * part))) : m[g];
        }
        if (DOT_SPLITS_BYTES && (s.bits == 8 || s.lookup))
            for (uint32_t g = 0; g < HALVES; g++)
                dot_steps_split(s, rows, codes[g], part * steps, steps, x, block, factor[g], g, sums);
        else
            dot_steps(s, rows, codes, part * steps, steps, x, block, factor, sums);
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t g = 0; g < HALVES; g++)
            add_block(parts, d[g], offset[g], sums[r][g], x[r].headers + block, &acc[r][g]);
}

/* sums[rows][16] += n packed source blocks, the first at block `block` of the rows. */
VEC_INLINE void spans_rows(struct shape s, uint32_t rows, const uint8_t *p, uint32_t n, const struct q8_row x[ROWS],
                           uint32_t block, float *sums)
{
    size_t block_bytes = (s.bits == 8 ? 256 : 128 + 32 * (s.bits - 4)) + 8 * s.n_sub * (s.has_min ? 2 : 1);
    size_t header_bytes = s.has_min ? 32 : 16, span_bytes = header_bytes + s.blocks * block_bytes;
    f32x8 acc[ROWS][HALVES];

    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t g = 0; g < HALVES; g++)
            acc[r][g] = f32x8_load(sums + (r * HALVES + g) * 8);
    for (uint32_t i = 0; i < n; i++, p += 2 * span_bytes) {
        const uint8_t *at[HALVES] = {p + header_bytes, p + span_bytes + header_bytes};
        f32x8 d[HALVES], m[HALVES];

        for (uint32_t g = 0; g < HALVES; g++) {
            d[g] = f32x8_from_f16(p + g * span_bytes);
            m[g] = s.has_min ? f32x8_from_f16(p + g * span_bytes + 16) : d[g];
        }
        for (uint32_t b = 0; b < s.blocks; b++) {
            block_rows(s, rows, at, d, m, x, block++, acc);
            at[0] += block_bytes;
            at[1] += block_bytes;
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t g = 0; g < HALVES; g++)
            f32x8_store(sums + (r * HALVES + g) * 8, acc[r][g]);
}

typedef void kernel(const uint8_t *p, uint32_t n, const struct q8_row x[ROWS], uint32_t block, float *sums);

#define KERNEL(name, rows, shape)                                                                                              \
    static void name(const uint8_t *p, uint32_t n, const struct q8_row x[ROWS], uint32_t block, float *sums)                   \
    {                                                                                                                          \
        spans_rows(shape, rows, p, n, x, block, sums);                                                                         \
    }
#define SHAPE(n, code_bits, subs, zero_code, minimum, look_up)                                                                 \
    ((struct shape){n / CPU_BLOCK, code_bits, subs, zero_code, minimum, look_up})
#define KERNELS(type, n, size, code_bits, subs, zero_code, minimum, look_up, decoder)                                          \
    KERNEL(one_##type, 1, SHAPE(n, code_bits, subs, zero_code, minimum, look_up))                                              \
    KERNEL(four_##type, ROWS, SHAPE(n, code_bits, subs, zero_code, minimum, look_up))
CPU_QUANTISED(KERNELS)

static const struct {
    uint32_t dtype;
    kernel *one, *four;
} kernels[] = {
#define KERNEL_ROW(type, n, size, code_bits, subs, zero_code, minimum, look_up, decoder)                                       \
    {SOQ_DTYPE_##type, one_##type, four_##type},
    CPU_QUANTISED(KERNEL_ROW)
#undef KERNEL_ROW
};

static size_t kernel_index(uint32_t dtype)
{
    size_t i = 0;

    while (kernels[i].dtype != dtype)
        i++;
    return i;
}

/* Rows [first, first + n) of the activations against n_blocks packed source blocks, the first at block `block`. sums is
 * [n][16] with room for a whole number of fours. */
static void all_rows(const struct cpu *cpu, size_t index, const uint8_t *packed, uint32_t n_blocks, uint32_t block,
                     uint32_t cols, uint32_t first, uint32_t n, float *sums)
{
    for (uint32_t r = 0; r < n; r += ROWS) {
        struct q8_row x[ROWS];

        for (uint32_t i = 0; i < ROWS; i++) {
            size_t row = first + (r + i < n ? r + i : r);

            x[i] = (struct q8_row){cpu->q8_codes + row * cols, cpu->q8_headers + row * (cols / CPU_BLOCK)};
        }
        (n - r == 1 ? kernels[index].one : kernels[index].four)(packed, n_blocks, x, block, sums + r * CPU_GROUP_ROWS);
    }
}

static void quantise(struct cpu *cpu, const struct soq_view *x, const struct cpu_thread *thread)
{
    uint64_t first, last;

    cpu_share(thread, x->rows, &first, &last);
    for (uint64_t r = first; r < last; r++)
        cpu_quantise_row(cpu_view_row(x, (uint32_t)r), x->cols, cpu->q8_codes + r * x->cols,
                         cpu->q8_headers + r * (x->cols / CPU_BLOCK));
    cpu_barrier_wait(thread->barrier, thread->count);
}

/* A group's outputs for rows [row, row + n). */
static void group_rows(const struct cpu *cpu, const struct soq_matmul_args *args, uint64_t group, uint32_t row, uint32_t n,
                       uint8_t *scratch)
{
    const struct cpu_weight *weight = cpu_weight(args->weight);
    uint32_t piece = weight->packed ? weight->cols : CPU_TILE_K, elements = weight->format->elements;
    float *sums = (float *)scratch;

    memset(sums, 0, (n + ROWS) * CPU_GROUP_ROWS * sizeof(float));
    for (uint32_t k = 0; k < weight->cols; k += piece) {
        uint32_t n_blocks = (weight->cols - k < piece ? weight->cols - k : piece) / elements;
        const uint8_t *packed = cpu_weight_spans(weight, group, k / elements, n_blocks, scratch + SUMS_BYTES);

        all_rows(cpu, kernel_index(weight->format->dtype), packed, n_blocks, k / CPU_BLOCK, weight->cols, row, n, sums);
    }
    cpu_store_outputs(args, row, n, group, sums);
}

uint64_t cpu_matmul_q8_scratch(void)
{
    return SUMS_BYTES + CPU_SPANS_BYTES;
}

void cpu_run_matmul_q8(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_matmul_args *args = &op->args.matmul;
    uint64_t first, last;

    if (op->quantise)
        quantise(cpu, &args->x, thread);
    cpu_share(thread, ((uint64_t)args->y.cols + CPU_GROUP_ROWS - 1) / CPU_GROUP_ROWS, &first, &last);
    for (uint32_t row = 0; row < args->x.rows; row += ROWS_CHUNK)
        for (uint64_t group = first; group < last; group++)
            group_rows(cpu, args, group, row, args->x.rows - row < ROWS_CHUNK ? args->x.rows - row : ROWS_CHUNK,
                       thread->scratch);
}
