/* y = W x with quantised weights and activations in 8 bits.
 *
 * Eight outputs are the lanes; formats.h draws how their weights lie. In a block of 32 inputs products are summed as integers,
 * exactly, then scaled and added to the output's F32 sum, block by block in order. Up to four rows of x share the unpacked
 * weights; each row's arithmetic is the same for any number of rows. */
#include "cpu.h"
#include "simd/vec.h"
#include "soquete/dtype.h"
#include "weights.h"

enum { ROWS = 4, ROWS_CHUNK = 128 };

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
    uint32_t held = s.bits == 4 ? DOT_STEPS_4 : s.bits == 5 ? DOT_STEPS_5 : DOT_STEPS_6;

    return held < n ? held : n;
}

/* sums[r] += scale * products of steps [first, first + n) with each row. */
VEC_INLINE void dot_steps(struct shape s, uint32_t rows, const uint8_t *codes, uint32_t first, uint32_t n,
                          const struct q8_row x[ROWS], uint32_t block, i32x8 scale, i32x8 sums[ROWS])
{
    uint32_t held = held_steps(s, n);

    for (uint32_t step = first; step < first + n; step += held) {
        dot_sum dots[ROWS];

        for (uint32_t r = 0; r < rows; r++)
            dots[r] = dot_zero();
        for (uint32_t i = step; i < step + held; i++) {
            u8x32 w = step_codes(s, codes, i);

            for (uint32_t r = 0; r < rows; r++)
                dots[r] = dot_step(dots[r], w, u8x32_splat4(x[r].codes + block * CPU_BLOCK + i * 4));
        }
        for (uint32_t r = 0; r < rows; r++)
            sums[r] += dot_flush(dots[r], scale);
    }
}

/* The same for weights that fill a byte, where products of whole bytes would not fit: as two nibbles. */
VEC_INLINE void dot_steps_split(struct shape s, uint32_t rows, const uint8_t *codes, uint32_t first, uint32_t n,
                                const struct q8_row x[ROWS], uint32_t block, i32x8 scale, i32x8 sums[ROWS])
{
    dot_sum low[ROWS], high[ROWS];

    for (uint32_t r = 0; r < rows; r++)
        low[r] = high[r] = dot_zero();
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
        sums[r] += dot_flush(low[r], scale) + (dot_flush(high[r], scale) << 4);
}

/* One block of 8 outputs and `rows` rows; p is at the block's integer scales, if any, and the codes. */
VEC_INLINE void block_rows(struct shape s, uint32_t rows, const uint8_t *p, f32x8 d, f32x8 m, const struct q8_row x[ROWS],
                           uint32_t block, f32x8 acc[ROWS])
{
    const uint8_t *mins = p + 8 * s.n_sub, *codes = mins + (s.has_min ? 8 * s.n_sub : 0);
    uint32_t parts = s.n_sub == 2 ? 2 : 1, steps = 8 / parts;
    f32x8 offset[2];
    i32x8 sums[ROWS];

    for (uint32_t r = 0; r < rows; r++)
        sums[r] = i32x8_splat(0);
    for (uint32_t part = 0; part < parts; part++) {
        i32x8 scale = s.n_sub ? i32x8_from_i8(p + 8 * part) : i32x8_splat(1);

        if (s.has_min)
            offset[part] = s.n_sub ? -(m * f32x8_from_i32(i32x8_from_u8(mins + 8 * part))) : m;
        else
            offset[part] = d * f32x8_from_i32(scale * i32x8_splat(-s.zero));
        if (DOT_SPLITS_BYTES && (s.bits == 8 || s.lookup))
            dot_steps_split(s, rows, codes, part * steps, steps, x, block, scale, sums);
        else
            dot_steps(s, rows, codes, part * steps, steps, x, block, scale, sums);
    }
    for (uint32_t r = 0; r < rows; r++) {
        const struct cpu_q8_header *header = x[r].headers + block;

        acc[r] = f32x8_madd(f32x8_from_i32(sums[r]), d * f32x8_splat(header->scale), acc[r]);
        if (parts == 1) {
            acc[r] = f32x8_madd(offset[0], f32x8_splat(header->sum), acc[r]);
        } else {
            acc[r] = f32x8_madd(offset[0], f32x8_splat(header->half[0]), acc[r]);
            acc[r] = f32x8_madd(offset[1], f32x8_splat(header->half[1]), acc[r]);
        }
    }
}

/* sums[rows][8] += n_spans spans, the first at block `block` of the rows. */
VEC_INLINE void spans_rows(struct shape s, uint32_t rows, const uint8_t *p, uint32_t n_spans, const struct q8_row x[ROWS],
                           uint32_t block, float *sums)
{
    size_t block_bytes = (s.bits == 8 ? 256 : 128 + 32 * (s.bits - 4)) + 8 * s.n_sub * (s.has_min ? 2 : 1);
    f32x8 acc[ROWS];

    for (uint32_t r = 0; r < rows; r++)
        acc[r] = f32x8_load(sums + r * 8);
    for (uint32_t i = 0; i < n_spans; i++) {
        f32x8 d = f32x8_from_f16(p), m = s.has_min ? f32x8_from_f16(p + 16) : d;

        p += s.has_min ? 32 : 16;
        for (uint32_t b = 0; b < s.blocks; b++, p += block_bytes)
            block_rows(s, rows, p, d, m, x, block++, acc);
    }
    for (uint32_t r = 0; r < rows; r++)
        f32x8_store(sums + r * 8, acc[r]);
}

#define KERNELS(type, n, size, code_bits, subs, zero_code, minimum, look_up, decoder)                                          \
    static void one_##type(const uint8_t *p, uint32_t n_spans, const struct q8_row x[ROWS], uint32_t block, float *sums)       \
    {                                                                                                                          \
        spans_rows((struct shape){n / CPU_BLOCK, code_bits, subs, zero_code, minimum, look_up}, 1, p, n_spans, x, block,       \
                   sums);                                                                                                      \
    }                                                                                                                          \
    static void four_##type(const uint8_t *p, uint32_t n_spans, const struct q8_row x[ROWS], uint32_t block, float *sums)      \
    {                                                                                                                          \
        spans_rows((struct shape){n / CPU_BLOCK, code_bits, subs, zero_code, minimum, look_up}, ROWS, p, n_spans, x, block,    \
                   sums);                                                                                                      \
    }
CPU_QUANTISED(KERNELS)

typedef void kernel(const uint8_t *p, uint32_t n_spans, const struct q8_row x[ROWS], uint32_t block, float *sums);

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

/* Rows [first, first + n) of the activations against n_spans packed spans that begin at block `block`. sums is [n][8] with room
 * for a whole number of fours. */
static void all_rows(const struct cpu *cpu, size_t index, const uint8_t *packed, uint32_t n_spans, uint32_t block,
                     uint32_t cols, uint32_t first, uint32_t n, float *sums)
{
    for (uint32_t r = 0; r < n; r += ROWS) {
        struct q8_row x[ROWS];

        for (uint32_t i = 0; i < ROWS; i++) {
            size_t row = first + (r + i < n ? r + i : r);

            x[i] = (struct q8_row){cpu->q8_codes + row * cols, cpu->q8_headers + row * (cols / CPU_BLOCK)};
        }
        (n - r == 1 ? kernels[index].one : kernels[index].four)(packed, n_spans, x, block, sums + r * 8);
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

void cpu_run_matmul_q8(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_matmul_args *args = &op->args.matmul;
    const struct cpu_weight *weight = cpu_weight(args->weight);
    uint32_t piece = weight->packed ? weight->cols : CPU_TILE_K, elements = weight->format->elements;
    float *sums = (float *)thread->scratch;
    uint8_t *spans = (uint8_t *)(sums + (ROWS_CHUNK + ROWS) * 8);
    size_t index = kernel_index(weight->format->dtype);
    uint64_t first, last;

    if (op->quantise)
        quantise(cpu, &args->x, thread);
    cpu_share(thread, ((uint64_t)weight->rows + CPU_GROUP_ROWS - 1) / CPU_GROUP_ROWS, &first, &last);
    for (uint32_t row = 0; row < args->x.rows; row += ROWS_CHUNK) {
        uint32_t n_rows = args->x.rows - row < ROWS_CHUNK ? args->x.rows - row : ROWS_CHUNK;

        for (uint64_t group = first; group < last; group++) {
            memset(sums, 0, (n_rows + ROWS) * 8 * sizeof(float));
            for (uint32_t k = 0; k < weight->cols; k += piece) {
                uint32_t n_spans = (weight->cols - k < piece ? weight->cols - k : piece) / elements;
                const uint8_t *packed = cpu_weight_spans(weight, group, k / elements, n_spans, spans);

                all_rows(cpu, index, packed, n_spans, k / CPU_BLOCK, weight->cols, row, n_rows, sums);
            }
            cpu_store_outputs(args, row, n_rows, (uint32_t)group * CPU_GROUP_ROWS, sums);
        }
    }
}
