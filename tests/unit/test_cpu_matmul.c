/* Products with every weight type against F64, in both modes, packed or not; and that a row's result depends on nothing else.
 */
#include "cpu_support.h"

#include <sys/mman.h>

#include "check/reference.h"
#include "check/weights.h"
#include "model/dequant.h"
#include "model/dtype.h"

enum { N_TYPES = 15 };

static const uint32_t *const types = soq__weight_types;

static uint8_t *random_weight(uint32_t dtype, uint32_t rows, uint32_t cols, uint64_t seed, size_t *bytes_out)
{
    uint8_t *data;

    cr_assert_eq(soq__weight_type_count, N_TYPES);
    *bytes_out = soq__block_bytes(dtype, (size_t)rows * cols);
    data = malloc(*bytes_out);
    soq__random_blocks(dtype, (size_t)rows * cols, seed, data);
    return data;
}

static void run(struct cpu_fixture *f, soq_weight weight, soq_weight bias, uint32_t accumulate, const struct soq_view *x,
                const struct soq_view *y)
{
    struct soq_matmul_args args = {sizeof args, accumulate, weight, bias, *x, *y};
    struct cpu_step *step = cpu_step(x->rows, 0);

    cpu_begin(f, step);
    cr_assert_eq(f->ops->matmul->matmul(f->self, &args), 0);
    cpu_end(f);
    free(step);
}

/* |y - reference| <= tolerance * sum of |w x| (the size of the terms). */
static void check(const float *w, uint32_t cols, const struct cpu_matrix *x, const struct cpu_matrix *y, const float *bias,
                  const struct cpu_matrix *before, double tolerance, const char *what)
{
    for (uint32_t r = 0; r < y->view.rows; r++)
        for (uint32_t n = 0; n < y->view.cols; n++) {
            double more = (bias ? bias[n] : 0) + (before ? *cpu_at(before, r, n) : 0), size;
            double sum = more + soq__ref_dot(w + (size_t)n * cols, cpu_at(x, r, 0), cols, &size);

            size += fabs(more) + 1e-3;
            cr_assert(fabs(*cpu_at(y, r, n) - sum) <= tolerance * size, "%s: row %u, output %u: %g is not %g (terms %g)", what,
                      r, n, (double)*cpu_at(y, r, n), sum, size);
        }
}

static void check_type(const char *variant, uint32_t dtype, const char *activations, const char *repack, uint32_t rows,
                       uint32_t cols, uint32_t n_rows)
{
    const struct soq__dtype *type = soq__dtype(dtype);
    bool rounded = strcmp(activations, "q8") == 0 && type->elements > 1;
    size_t bytes;
    uint8_t *data = random_weight(dtype, rows, cols, dtype + 1, &bytes);
    float *w = malloc((size_t)rows * cols * sizeof *w), *bias = malloc(rows * sizeof *bias);
    struct cpu_matrix x = cpu_matrix(n_rows, cols, 3, 5), y = cpu_matrix(n_rows, rows, 2, 6),
                      before = cpu_matrix(n_rows, rows, 2, 6);
    struct soq_weight_info info;
    soq_weight bias_weight;
    struct cpu_fixture f;
    char what[100];

    snprintf(what, sizeof what, "%s %s %s repack %s", variant, type->name, activations, repack);
    soq__dequant(dtype)(data, w, (size_t)rows * cols / type->elements);
    cpu_fill(bias, rows, 9);
    cpu_setup(&f, variant, "2", activations, repack, 16);
    info = cpu_weight(&f, dtype, data, bytes, rows, cols, SOQ_USE_MATMUL);
    bias_weight = cpu_vector(&f, bias, rows);
    cr_assert_eq(info.flags, *repack == '1' ? 0 : SOQ_WEIGHT_KEEPS_SOURCE);
    run(&f, info.weight, 0, 0, &x.view, &y.view);
    check(w, cols, &x, &y, NULL, NULL, rounded ? 4e-3 : 2e-6, what);
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(cpu_at(&y, r, 0), cpu_at(&before, r, 0), rows * sizeof(float));
    run(&f, info.weight, bias_weight, 1, &x.view, &y.view);
    check(w, cols, &x, &y, bias, &before, rounded ? 4e-3 : 2e-6, what);
    f.ops->memory->weight_free(f.self, info.weight);
    f.ops->memory->weight_free(f.self, bias_weight);
    cpu_teardown(&f);
    cpu_matrix_done(&x);
    cpu_matrix_done(&y);
    cpu_matrix_done(&before);
    free(data);
    free(w);
    free(bias);
}

static void check_all_types(const char *activations, const char *repack)
{
    for (const char *const *v = cpu_variants(); *v; v++)
        for (int i = 0; i < N_TYPES; i++) {
            uint32_t elements = soq__dtype(types[i])->elements, odd = elements == 1 ? 261 : 0;

            check_type(*v, types[i], activations, repack, 21, odd ? odd : 512, 7);
            check_type(*v, types[i], activations, repack, 8, odd ? 7 : elements, 1);
            check_type(*v, types[i], activations, repack, 1, odd ? 1 : elements * 3, 4);
        }
}

Test(cpu_matmul, reference_packed)
{
    check_all_types("f32", "1");
}

Test(cpu_matmul, reference_source)
{
    check_all_types("f32", "0");
}

Test(cpu_matmul, rounded_packed)
{
    check_all_types("q8", "1");
}

Test(cpu_matmul, rounded_source)
{
    check_all_types("q8", "0");
}

/* All rows at once, on `threads` threads. */
static void product(const char *variant, uint32_t dtype, const char *activations, const char *repack, const char *threads,
                    const uint8_t *data, size_t bytes, struct cpu_matrix *x, struct cpu_matrix *y, bool one_by_one)
{
    struct soq_weight_info info;
    struct cpu_fixture f;

    cpu_setup(&f, variant, threads, activations, repack, 256);
    info = cpu_weight(&f, dtype, data, bytes, y->view.cols, x->view.cols, SOQ_USE_MATMUL);
    if (!one_by_one)
        run(&f, info.weight, 0, 0, &x->view, &y->view);
    for (uint32_t r = 0; one_by_one && r < x->view.rows; r++) {
        struct soq_view x1 = x->view, y1 = y->view;

        x1.rows = y1.rows = 1;
        x1.offset += (uint64_t)r * x1.row_stride * sizeof(float);
        y1.offset += (uint64_t)r * y1.row_stride * sizeof(float);
        run(&f, info.weight, 0, 0, &x1, &y1);
    }
    f.ops->memory->weight_free(f.self, info.weight);
    cpu_teardown(&f);
}

static void check_invariance(const char *variant, uint32_t dtype, const char *activations)
{
    static const struct {
        const char *repack, *threads;
        bool one_by_one;
    } ways[] = {{"1", "1", false}, {"1", "2", true}, {"1", "3", false}, {"0", "2", false}};
    enum { N = 135, COLS = 512, ROWS = 28 };
    size_t bytes;
    uint8_t *data = random_weight(dtype, ROWS, COLS, dtype, &bytes);
    struct cpu_matrix x = cpu_matrix(N, COLS, 1, 5), first = cpu_matrix(N, ROWS, 0, 1);

    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct cpu_matrix y = cpu_matrix(N, ROWS, 0, 2), *out = i ? &y : &first;

        product(variant, dtype, activations, ways[i].repack, ways[i].threads, data, bytes, &x, out, ways[i].one_by_one);
        cr_assert_eq(memcmp(cpu_at(out, 0, 0), cpu_at(&first, 0, 0), N * ROWS * sizeof(float)), 0,
                     "%s, %s, %s: way %zu differs", variant, soq__dtype(dtype)->name, activations, i);
        cpu_matrix_done(&y);
    }
    cpu_matrix_done(&x);
    cpu_matrix_done(&first);
    free(data);
}

Test(cpu_matmul, rows_threads_and_layouts_give_the_same_bits)
{
    for (const char *const *v = cpu_variants(); *v; v++)
        for (int i = 0; i < N_TYPES; i++) {
            check_invariance(*v, types[i], "q8");
            check_invariance(*v, types[i], "f32");
        }
}

/* Columns of one buffer: q, k and v side by side, products of one x that run without a barrier between them. */
Test(cpu_matmul, products_of_one_input)
{
    for (const char *const *v = cpu_variants(); *v; v++) {
        enum { N = 5, COLS = 64, ROWS = 24 };
        struct cpu_matrix x = cpu_matrix(N, COLS, 0, 5), all = cpu_matrix(N, 3 * ROWS, 1, 1), one = cpu_matrix(N, ROWS, 0, 2);
        struct cpu_step *step = cpu_step(N, 0);
        uint8_t *data[3];
        size_t bytes;
        soq_weight weights[3];
        struct cpu_fixture f;

        cpu_setup(&f, *v, "2", "q8", "1", 8);
        cpu_begin(&f, step);
        for (int i = 0; i < 3; i++) {
            struct soq_matmul_args args = {sizeof args, 0, 0, 0, x.view, all.view};

            data[i] = random_weight(SOQ_DTYPE_Q4_0, ROWS, COLS, 7 + (uint64_t)i, &bytes);
            weights[i] = args.weight = cpu_weight(&f, SOQ_DTYPE_Q4_0, data[i], bytes, ROWS, COLS, SOQ_USE_MATMUL).weight;
            args.y.cols = ROWS;
            args.y.offset += (uint64_t)i * ROWS * sizeof(float);
            cr_assert_eq(f.ops->matmul->matmul(f.self, &args), 0);
        }
        cpu_end(&f);
        for (int i = 0; i < 3; i++) {
            run(&f, weights[i], 0, 0, &x.view, &one.view);
            for (uint32_t r = 0; r < N; r++)
                cr_assert_eq(memcmp(cpu_at(&all, r, (uint32_t)i * ROWS), cpu_at(&one, r, 0), ROWS * sizeof(float)), 0);
            f.ops->memory->weight_free(f.self, weights[i]);
            free(data[i]);
        }
        cpu_teardown(&f);
        cpu_matrix_done(&x);
        cpu_matrix_done(&all);
        cpu_matrix_done(&one);
        free(step);
    }
}

/* A tied embedding: rows come out exactly as dequantised, from the packed weights too, and nothing is held twice. */
Test(cpu_matmul, embedding)
{
    for (const char *const *v = cpu_variants(); *v; v++)
        for (int i = 0; i < 2 * N_TYPES; i++) {
            enum { VOCAB = 21 };
            const struct soq__dtype *type = soq__dtype(types[i / 2]);
            uint32_t cols = type->elements == 1 ? 261 : 512;
            size_t bytes;
            uint8_t *data = random_weight(type->id, VOCAB, cols, 3, &bytes);
            float *w = malloc(VOCAB * cols * sizeof *w);
            struct cpu_matrix y = cpu_matrix(VOCAB, cols, 1, 1);
            struct cpu_step *step = cpu_step(VOCAB, 0);
            struct soq_embed_args args = {.struct_size = sizeof args, .scale = 1.0f, .y = y.view};
            struct soq_weight_info info;
            struct cpu_fixture f;

            cpu_setup(&f, *v, "2", "q8", i % 2 ? "1" : "0", 32);
            info = cpu_weight(&f, type->id, data, bytes, VOCAB, cols, SOQ_USE_EMBED | SOQ_USE_MATMUL);
            cr_assert_eq(info.flags, i % 2 ? 0 : SOQ_WEIGHT_KEEPS_SOURCE);
            args.weight = info.weight;
            cpu_begin(&f, step);
            cr_assert_eq(f.ops->elementwise->embed(f.self, &args), 0);
            cpu_end(&f);
            soq__dequant(type->id)(data, w, (size_t)VOCAB * cols / type->elements);
            for (uint32_t r = 0; r < VOCAB; r++)
                for (uint32_t k = 0; k < cols; k++)
                    cr_assert_eq(*cpu_at(&y, r, k), w[r * cols + k], "%s: row %u, input %u: %g is not %g", type->name, r, k,
                                 (double)*cpu_at(&y, r, k), (double)w[r * cols + k]);
            f.ops->memory->weight_free(f.self, info.weight);
            cpu_teardown(&f);
            cpu_matrix_done(&y);
            free(step);
            free(data);
            free(w);
        }
}

Test(cpu_matmul, infinity_and_nan_come_out)
{
    for (const char *const *v = cpu_variants(); *v; v++)
        for (int i = 0; i < N_TYPES; i++) {
            size_t bytes;
            uint8_t *data = random_weight(types[i], 8, 256, 3, &bytes);
            struct cpu_matrix x = cpu_matrix(3, 256, 0, 1), y = cpu_matrix(3, 8, 0, 1);
            struct soq_weight_info info;
            struct cpu_fixture f;

            *cpu_at(&x, 1, 40) = NAN;
            *cpu_at(&x, 2, 40) = INFINITY;
            cpu_setup(&f, *v, "2", "q8", "1", 8);
            info = cpu_weight(&f, types[i], data, bytes, 8, 256, SOQ_USE_MATMUL);
            run(&f, info.weight, 0, 0, &x.view, &y.view);
            cr_assert(isfinite(*cpu_at(&y, 0, 0)));
            cr_assert(isnan(*cpu_at(&y, 1, 0)));
            cr_assert(!isfinite(*cpu_at(&y, 2, 0)));
            f.ops->memory->weight_free(f.self, info.weight);
            cpu_teardown(&f);
            cpu_matrix_done(&x);
            cpu_matrix_done(&y);
            free(data);
        }
}

/* A mapped source goes piece by piece while it is packed; here the mapping is anonymous, so that pages that went read as zeros.
 */
Test(cpu_matmul, mapped_source_is_dropped)
{
    for (const char *const *v = cpu_variants(); *v; v++) {
        enum { ROWS = 2200, COLS = 1024 };
        size_t bytes = (size_t)ROWS * COLS * sizeof(float), zeros = 0;
        float *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct cpu_matrix x = cpu_matrix(1, COLS, 0, 5), y = cpu_matrix(1, ROWS, 0, 2);
        struct soq_weight_desc desc = {
            .struct_size = sizeof desc,
            .dtype = SOQ_DTYPE_F32,
            .name = "w",
            .data = map,
            .bytes = bytes,
            .rows = ROWS,
            .cols = COLS,
            .uses = SOQ_USE_MATMUL,
            .may_repack = SOQ_REPACK_ALLOWED | SOQ_REPACK_DROPS,
            .n_shards = 1,
        };
        struct soq_weight_info info = {.struct_size = sizeof info};
        struct soq_error err = SOQ_ERROR_INIT;
        struct cpu_fixture f;

        cr_assert_neq(map, MAP_FAILED);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t k = 0; k < COLS; k++)
                map[(size_t)r * COLS + k] = k == r % COLS ? (float)(r + 1) : 0.0f;
        cpu_setup(&f, *v, "2", "q8", "1", 8);
        cr_assert_eq(f.ops->memory->weight_prepare(f.self, &desc, &info, &err), 0);
        for (uint32_t r = 0; r < ROWS; r++)
            zeros += map[(size_t)r * COLS + r % COLS] == 0.0f;
        cr_assert_gt(zeros, ROWS / 2, "%s: only %zu rows went", *v, zeros);
        run(&f, info.weight, 0, 0, &x.view, &y.view);
        for (uint32_t r = 0; r < ROWS; r++)
            cr_assert_float_eq(*cpu_at(&y, 0, r), (float)(r + 1) * *cpu_at(&x, 0, r % COLS), 1e-2, "%s: output %u", *v, r);
        f.ops->memory->weight_free(f.self, info.weight);
        cpu_teardown(&f);
        cpu_matrix_done(&x);
        cpu_matrix_done(&y);
        munmap(map, bytes);
    }
}
