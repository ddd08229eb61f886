/* y = W x with quantised weights and activations in 8 bits.
 *
 * Outputs are the lanes of a vector; formats.h draws how their weights lie. In a block of 32 inputs products are summed as
 * integers, exactly, then scaled and added to the output's F32 sum, block by block in order. Unpacked weights meet up to
 * CPU_ROWS rows of x; the arithmetic of an output is the same for any number of rows. A zero point is taken off as an integer
 * too: sums begin at minus zero times the sum of x, which each block's header has. */
#include "cpu.h"
#include "simd/vec.h"
#include "soquete/dtype.h"
#include "weights.h"

enum {
    ROWS_CHUNK = 128, /* rows that pass over all weights before the next ones */
    SUMS_BYTES = (ROWS_CHUNK + CPU_ROWS) * CPU_LANES * (int)sizeof(float),
    VECTOR = sizeof(vb),
    AHEAD_BYTES = 4096, /* that weights are asked for before they are used */
};

/* Rows are registers: their loops must be unrolled before the compiler looks for arrays. */
#define EACH_ROW(r, rows) _Pragma("GCC unroll 8") for (uint32_t r = 0; r < (rows); r++)

/* What a kernel knows of its type at compile time. */
struct shape {
    uint32_t blocks; /* of a span */
    uint32_t bits, n_sub;
    int32_t zero;
    bool has_min, lookup;
};

/* Of row r in a block of a strip: where the codes of a step are, a header in every lane. */
VEC_INLINE const uint8_t *x_codes(const uint8_t *x, uint32_t rows, uint32_t step, uint32_t r)
{
    return x + (step * rows + r) * 4;
}

enum header { SCALE, SUM, MINUS, HALF };

VEC_INLINE vf x_header(const uint8_t *x, uint32_t rows, uint32_t header, uint32_t r)
{
    return (vf)vb_splat4(x + ((8 + header) * rows + r) * 4);
}

/* The weights of a step (4 inputs of all outputs), as unsigned bytes. */
VEC_INLINE vb step_codes(struct shape s, const uint8_t *codes, uint32_t step)
{
    vb low;

    if (s.bits == 8)
        return vb_load(codes + step * VECTOR);
    low = vb_load(codes + step % 4 * VECTOR);
    low = step < 4 ? low & 15 : vb_high_nibbles(low);
    if (s.lookup)
        return vb_lookup(cpu_iq4_values, low);
    if (s.bits == 5)
        return low | (vb_shift_to_4(vb_load(codes + 4 * VECTOR), step) & 0x10);
    if (s.bits == 6)
        return low | (vb_shift_to_4(vb_load(codes + (4 + step / 4) * VECTOR), step % 4 * 2) & 0x30);
    return low;
}

/* How many steps a dot_sum holds. */
VEC_INLINE uint32_t held_steps(struct shape s, uint32_t n)
{
    uint32_t held = s.lookup || s.bits == 8 ? DOT_STEPS_8 : s.bits == 4 ? DOT_STEPS_4 : s.bits == 5 ? DOT_STEPS_5 : DOT_STEPS_6;

    return held < n ? held : n;
}

/* totals[r] += products of steps [first, first + n) with each row. */
VEC_INLINE void dot_steps(struct shape s, uint32_t rows, const uint8_t *codes, uint32_t first, uint32_t n, const uint8_t *x,
                          vi totals[CPU_ROWS])
{
    uint32_t held = held_steps(s, n);

#pragma GCC unroll 8
    for (uint32_t step = first; step < first + n; step += held) {
        dot_sum dots[CPU_ROWS];

        EACH_ROW(r, rows)
        dots[r] = dot_begin(totals[r]);
#pragma GCC unroll 8
        for (uint32_t i = step; i < step + held; i++) {
            vb w = step_codes(s, codes, i);

            EACH_ROW(r, rows)
            dots[r] = dot_step4(dots[r], w, x_codes(x, rows, i, r));
        }
        EACH_ROW(r, rows)
        totals[r] = dot_end(dots[r], 1, totals[r]);
    }
}

/* The same of weights that fill a byte, where products of whole bytes would not fit: as two nibbles. */
VEC_INLINE void dot_steps_split(struct shape s, uint32_t rows, const uint8_t *codes, uint32_t first, uint32_t n,
                                const uint8_t *x, vi totals[CPU_ROWS])
{
    dot_sum low[CPU_ROWS], high[CPU_ROWS];

    EACH_ROW(r, rows)
    low[r] = high[r] = dot_begin(totals[r]);
#pragma GCC unroll 8
    for (uint32_t i = first; i < first + n; i++) {
        vb w = step_codes(s, codes, i);
        vb w_low = w & 15, w_high = vb_high_nibbles(w);

        EACH_ROW(r, rows)
        {
            vb xs = vb_splat4(x_codes(x, rows, i, r));

            low[r] = dot_step(low[r], w_low, xs);
            high[r] = dot_step(high[r], w_high, xs);
        }
    }
    EACH_ROW(r, rows)
    totals[r] = dot_end(low[r], 1, dot_end(high[r], 16, totals[r]));
}

/* Part 0 or 1 of a block, of 32 or 16 inputs: values[r] += d * (products - zero * sum of x) */
VEC_INLINE void block_part(struct shape s, uint32_t rows, const uint8_t *codes, uint32_t part, vf d, const uint8_t *x,
                           vf values[CPU_ROWS])
{
    uint32_t parts = s.n_sub == 2 ? 2 : 1, steps = 8 / parts;
    vi totals[CPU_ROWS];

    EACH_ROW(r, rows)
    totals[r] = s.has_min ? vi_splat(0) : vi_keep((vi)x_header(x, rows, parts == 2 ? HALF + part : MINUS, r)) * s.zero;
    if (DOT_SPLITS_BYTES && (s.bits == 8 || s.lookup))
        dot_steps_split(s, rows, codes, part * steps, steps, x, totals);
    else
        dot_steps(s, rows, codes, part * steps, steps, x, totals);
    EACH_ROW(r, rows)
    values[r] = part ? vf_madd(vf_from_i32(totals[r]), d, values[r]) : vf_from_i32(totals[r]) * d;
}

/* acc[r] += what the minima of a block contribute; mins: the integer ones, if any. */
VEC_INLINE void add_minima(struct shape s, uint32_t rows, const uint8_t *mins, vf m, const uint8_t *x, vf acc[CPU_ROWS])
{
    if (s.n_sub < 2) {
        vf offset = s.n_sub ? -(m * vf_from_i32(vi_from_u8(mins))) : m;

        EACH_ROW(r, rows)
        acc[r] = vf_madd(offset, x_header(x, rows, SUM, r), acc[r]);
        return;
    }
    for (uint32_t part = 0; part < 2; part++) {
        vf offset = m * vf_from_i32(vi_from_u8(mins + part * CPU_LANES));

        EACH_ROW(r, rows)
        acc[r] = vf_madd(offset, x_header(x, rows, SCALE, r) * vf_from_i32((vi)x_header(x, rows, HALF + part, r)), acc[r]);
    }
}

/* acc[r] += a block's contribution; p is at its integer scales, if any, and the codes. */
VEC_INLINE void block_rows(struct shape s, uint32_t rows, const uint8_t *p, vf d, vf m, const uint8_t *x, vf acc[CPU_ROWS])
{
    const uint8_t *mins = p + CPU_LANES * s.n_sub, *codes = mins + (s.has_min ? CPU_LANES * s.n_sub : 0);
    vf values[CPU_ROWS];

    block_part(s, rows, codes, 0, s.n_sub ? d * vf_from_i32(vi_from_i8(p)) : d, x, values);
    if (s.n_sub == 2)
        block_part(s, rows, codes, 1, d * vf_from_i32(vi_from_i8(p + CPU_LANES)), x, values);
    EACH_ROW(r, rows)
    acc[r] = vf_madd(values[r], x_header(x, rows, SCALE, r), acc[r]);
    if (s.has_min)
        add_minima(s, rows, mins, m, x, acc);
}

/* With several rows a block takes long enough for memory to fall idle: out-of-order execution does not reach the next ones. */
VEC_INLINE void prefetch_block(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        vec_prefetch(p + AHEAD_BYTES + i);
}

/* sums[rows][CPU_LANES] = (or += where it goes on) n packed source blocks; x is at the block of a strip that meets the first.
 */
VEC_INLINE void spans_rows(struct shape s, uint32_t rows, const uint8_t *p, uint32_t n, const uint8_t *x, bool goes_on,
                           float *sums)
{
    size_t code_bytes = s.bits == 8 ? 32 : 16 + 4 * (s.bits - 4);
    size_t block_bytes = CPU_LANES * (code_bytes + s.n_sub * (s.has_min ? 2 : 1));
    vf acc[CPU_ROWS];

    EACH_ROW(r, rows)
    acc[r] = goes_on ? vf_load(sums + r * CPU_LANES) : vf_splat(0.0f);
    for (uint32_t i = 0; i < n; i++) {
        vf d = vf_from_f16(p), m = s.has_min ? vf_from_f16(p + 2 * CPU_LANES) : d;

        p += CPU_LANES * (s.has_min ? 4 : 2);
        for (uint32_t b = 0; b < s.blocks; b++, p += block_bytes, x += (size_t)CPU_Q8_BYTES * rows) {
            if (rows > 1)
                prefetch_block(p, block_bytes);
            block_rows(s, rows, p, d, m, x, acc);
        }
    }
    EACH_ROW(r, rows)
    vf_store(sums + r * CPU_LANES, acc[r]);
}

typedef void kernel(const uint8_t *p, uint32_t n, const uint8_t *x, bool goes_on, float *sums);

#define KERNEL(name, rows, shape)                                                                                              \
    static void name(const uint8_t *p, uint32_t n, const uint8_t *x, bool goes_on, float *sums)                                \
    {                                                                                                                          \
        spans_rows(shape, rows, p, n, x, goes_on, sums);                                                                       \
    }
#define SHAPE(n, code_bits, subs, zero_code, minimum, look_up)                                                                 \
    ((struct shape){n / CPU_BLOCK, code_bits, subs, zero_code, minimum, look_up})
#define KERNELS(type, n, size, code_bits, subs, zero_code, minimum, look_up, decoder)                                          \
    KERNEL(one_##type, 1, SHAPE(n, code_bits, subs, zero_code, minimum, look_up))                                              \
    KERNEL(some_##type, CPU_ROWS / 2, SHAPE(n, code_bits, subs, zero_code, minimum, look_up))                                  \
    KERNEL(full_##type, CPU_ROWS, SHAPE(n, code_bits, subs, zero_code, minimum, look_up))
CPU_QUANTISED(KERNELS)

static const struct kernels {
    uint32_t dtype;
    kernel *one, *some, *full; /* 1 row, CPU_ROWS / 2, CPU_ROWS */
} kernels[] = {
#define KERNEL_ROW(type, n, size, code_bits, subs, zero_code, minimum, look_up, decoder)                                       \
    {SOQ_DTYPE_##type, one_##type, some_##type, full_##type},
    CPU_QUANTISED(KERNEL_ROW)
#undef KERNEL_ROW
};

static const struct kernels *kernels_of(uint32_t dtype)
{
    const struct kernels *k = kernels;

    while (k->dtype != dtype)
        k++;
    return k;
}

/* The strip that row `row` (the first of a strip) is in, at an input. */
static uint8_t *strip_at(const struct cpu *cpu, const struct soq_view *x, uint32_t row, uint32_t k)
{
    size_t width = cpu_strip_rows(x->rows - row);

    return cpu->q8_strips + ((size_t)row * (x->cols / CPU_BLOCK) + width * (k / CPU_BLOCK)) * CPU_Q8_BYTES;
}

/* Rows [first, first + n) of the activations, from input k on, against n_blocks packed source blocks. sums is [n][CPU_LANES]
 * with room for a whole number of CPU_ROWS. */
static void all_rows(const struct cpu *cpu, const struct kernels *run, const uint8_t *packed, uint32_t n_blocks,
                     const struct soq_view *x, uint32_t k, uint32_t first, uint32_t n, float *sums)
{
    for (uint32_t r = 0; r < n; r += CPU_ROWS) {
        uint32_t width = cpu_strip_rows(x->rows - first - r);

        (width == 1         ? run->one
         : width < CPU_ROWS ? run->some
                            : run->full)(packed, n_blocks, strip_at(cpu, x, first + r, k), k > 0, sums + r * CPU_LANES);
    }
}

static void quantise_strip(const struct soq_view *x, uint32_t row, uint32_t k, uint32_t n, uint8_t *strip)
{
    const float *rows[8];

    for (uint32_t i = 0; i < 8; i++)
        rows[i] = cpu_view_row(x, row + i) + k;
    cpu_quantise_strip(rows, n, strip);
}

/* Rows [first, last) of x, inputs [32 from, 32 to); after the last row of all, the lanes of its strip that no row fills. */
static void quantise_part(struct cpu *cpu, const struct soq_view *x, uint64_t first, uint64_t last, uint64_t from, uint64_t to)
{
    uint32_t k = (uint32_t)from * CPU_BLOCK, n = (uint32_t)(to - from) * CPU_BLOCK;

    for (uint32_t r = (uint32_t)first; r < last; r++) {
        uint32_t lane = r % CPU_ROWS, width = cpu_strip_rows(x->rows - (r - lane));
        uint8_t *strip = strip_at(cpu, x, r - lane, k);

        if (CPU_ROWS == 8 && lane == 0 && r + 8 <= last) {
            quantise_strip(x, r, k, n, strip);
            r += 7;
            continue;
        }
        cpu_quantise_row(cpu_view_row(x, r) + k, n, width, lane, strip);
        if (r + 1 == x->rows && lane + 1 < width)
            cpu_clear_lanes(n, width, lane + 1, strip);
    }
}

/* By rows; by inputs where the rows share a strip, and with it each cache line. */
static void quantise(struct cpu *cpu, const struct soq_view *x, const struct cpu_thread *thread)
{
    uint64_t first, last;

    if (cpu_rounds_by_inputs(x->rows)) {
        cpu_share(thread, x->cols / CPU_BLOCK, &first, &last);
        quantise_part(cpu, x, 0, x->rows, first, last);
    } else {
        cpu_share(thread, x->rows, &first, &last);
        quantise_part(cpu, x, first, last, 0, x->cols / CPU_BLOCK);
    }
    cpu_barrier_wait(thread->barrier, thread->count);
}

/* A group's outputs for rows [row, row + n). */
static void group_rows(const struct cpu *cpu, const struct kernels *run, const struct soq_matmul_args *args, uint64_t group,
                       uint32_t row, uint32_t n, uint8_t *scratch)
{
    const struct cpu_weight *weight = cpu_weight(args->weight);
    uint32_t piece = weight->packed ? weight->cols : CPU_TILE_K, elements = weight->format->elements;
    float *sums = (float *)scratch;

    for (uint32_t k = 0; k < weight->cols; k += piece) {
        uint32_t n_blocks = (weight->cols - k < piece ? weight->cols - k : piece) / elements;
        const uint8_t *packed = cpu_weight_spans(weight, group, k / elements, n_blocks, scratch + SUMS_BYTES);

        all_rows(cpu, run, packed, n_blocks, &args->x, k, row, n, sums);
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
    const struct kernels *run = kernels_of(cpu_weight(args->weight)->format->dtype);
    uint64_t first, last;

    if (op->quantise)
        quantise(cpu, &args->x, thread);
    cpu_share(thread, ((uint64_t)args->y.cols + CPU_LANES - 1) / CPU_LANES, &first, &last);
    for (uint32_t row = 0; row < args->x.rows; row += ROWS_CHUNK)
        for (uint64_t group = first; group < last; group++)
            group_rows(cpu, run, args, group, row, args->x.rows - row < ROWS_CHUNK ? args->x.rows - row : ROWS_CHUNK,
                       thread->scratch);
}
