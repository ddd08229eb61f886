/* Products with every weight type on an OpenCL device: against F64, against the CPU backend, and that a row's result does not
 * depend on how many there are. Look-up and vectors of every type. */
#include "device_support.h"

#define TYPE(name, id, text, elements, bytes) id,
static const uint32_t types[] = {SOQ_DTYPES(TYPE)};
#undef TYPE

enum { N_TYPES = sizeof types / sizeof types[0] };

static void run(struct device *d, soq_weight weight, soq_weight bias, uint32_t accumulate, struct soq_view x, struct soq_view y)
{
    struct soq_matmul_args args = {sizeof args, accumulate, weight, bias, x, y};
    struct device_step *step = device_step(x.rows, 0);

    device_begin(d, step);
    cr_assert_eq(d->ops->matmul->matmul(d->self, &args), 0);
    device_end(d);
    free(step);
}

/* The size of what is summed up: rounding errors are compared with that. */
static double terms(const float *w, const struct matrix *x, uint32_t row, uint32_t output)
{
    double sum = 1e-3;

    for (uint32_t k = 0; k < x->view.cols; k++)
        sum += fabs((double)w[(size_t)output * x->view.cols + k] * *device_at(x, row, k));
    return sum;
}

/* |y - reference| <= 2e-6 * terms */
static void check(const float *w, const struct matrix *x, const struct matrix *y, const float *bias, const float *before,
                  const char *what)
{
    uint32_t cols = x->view.cols;

    for (uint32_t r = 0; r < y->view.rows; r++)
        for (uint32_t n = 0; n < y->view.cols; n++) {
            double sum = (bias ? bias[n] : 0) + (before ? before[r * y->view.cols + n] : 0);
            double size = fabs(sum) + terms(w, x, r, n);

            for (uint32_t k = 0; k < cols; k++)
                sum += (double)w[(size_t)n * cols + k] * *device_at(x, r, k);
            cr_assert(fabs(*device_at(y, r, n) - sum) <= 2e-6 * size, "%s: row %u, output %u: %g is not %g (terms %g)", what, r,
                      n, (double)*device_at(y, r, n), sum, size);
        }
}

/* The same product on the CPU, in the same places of `y`. */
static void cpu_product(uint32_t dtype, const uint8_t *data, size_t bytes, const struct matrix *x, float *y, uint32_t rows)
{
    uint32_t n = x->view.rows, cols = x->view.cols;
    struct matrix in, out;
    struct device cpu;
    soq_weight weight;

    device_open_cpu(&cpu, n);
    in = device_matrix(&cpu, n, cols, 0, 1);
    out = device_matrix(&cpu, n, rows, 0, 1);
    for (uint32_t r = 0; r < n; r++)
        memcpy(device_at(&in, r, 0), device_at(x, r, 0), cols * sizeof(float));
    device_push(&cpu, &in);
    weight = device_weight(&cpu, dtype, data, bytes, rows, cols, SOQ_USE_MATMUL);
    run(&cpu, weight, 0, 0, in.view, out.view);
    device_pull(&cpu, &out);
    memcpy(y, device_at(&out, 0, 0), (size_t)n * rows * sizeof(float));
    cpu.ops->memory->weight_free(cpu.self, weight);
    device_matrix_done(&cpu, &in);
    device_matrix_done(&cpu, &out);
    device_close(&cpu);
}

static void check_type(struct device *d, uint32_t dtype, uint32_t rows, uint32_t cols, uint32_t n_rows)
{
    size_t bytes;
    uint8_t *data = device_random_weight(dtype, rows, cols, dtype + 1, &bytes);
    float *w = device_dequantised(dtype, data, (size_t)rows * cols), *bias = malloc(rows * sizeof *bias);
    float *before = malloc((size_t)n_rows * rows * sizeof *before);
    struct matrix x = device_matrix(d, n_rows, cols, 3, 5), y = device_matrix(d, n_rows, rows, 2, 6);
    soq_weight weight = device_weight(d, dtype, data, bytes, rows, cols, SOQ_USE_MATMUL), bias_weight;
    const char *name = soq__dtype(dtype)->name;

    device_fill(bias, rows, 9);
    bias_weight = device_vector(d, bias, rows);
    run(d, weight, 0, 0, x.view, y.view);
    device_pull(d, &y);
    check(w, &x, &y, NULL, NULL, name);
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(before + r * rows, device_at(&y, r, 0), rows * sizeof(float));
    run(d, weight, bias_weight, 1, x.view, y.view);
    device_pull(d, &y);
    check(w, &x, &y, bias, before, name);
    cpu_product(dtype, data, bytes, &x, before, rows);
    run(d, weight, 0, 0, x.view, y.view);
    device_pull(d, &y);
    for (uint32_t i = 0; i < n_rows * rows; i++)
        cr_assert(fabs((double)before[i] - *device_at(&y, i / rows, i % rows)) <= 2e-6 * terms(w, &x, i / rows, i % rows),
                  "%s: row %u, output %u: %g, but %g on the CPU", name, i / rows, i % rows,
                  (double)*device_at(&y, i / rows, i % rows), (double)before[i]);
    d->ops->memory->weight_free(d->self, weight);
    d->ops->memory->weight_free(d->self, bias_weight);
    device_matrix_done(d, &x);
    device_matrix_done(d, &y);
    free(data);
    free(w);
    free(bias);
    free(before);
}

/* Inputs enough for two rounds of matmul.cl, in whole blocks or not. */
static uint32_t odd_width(uint32_t dtype)
{
    uint32_t elements = soq__dtype(dtype)->elements;

    return elements == 1 ? 133 : elements == 32 ? 160 : 256;
}

Test(opencl_matmul, every_type)
{
    struct device d;

    device_open(&d, 32);
    for (int i = 0; i < N_TYPES; i++) {
        uint32_t elements = soq__dtype(types[i])->elements;

        check_type(&d, types[i], 17, odd_width(types[i]), 6);
        check_type(&d, types[i], 3, odd_width(types[i]), 18);
        check_type(&d, types[i], 17, elements == 1 ? 7 : elements, 1);
        check_type(&d, types[i], 1, elements == 1 ? 1 : 3 * elements, 4);
    }
    device_close(&d);
}

/* All at once, by one, four and seven: the same bits. */
Test(opencl_matmul, rows_give_the_same_bits)
{
    enum { N = 9, ROWS = 5 };
    struct device d;

    device_open(&d, N);
    for (int i = 0; i < N_TYPES; i++) {
        uint32_t cols = odd_width(types[i]);
        size_t bytes;
        uint8_t *data = device_random_weight(types[i], ROWS, cols, types[i], &bytes);
        soq_weight weight = device_weight(&d, types[i], data, bytes, ROWS, cols, SOQ_USE_MATMUL);
        struct matrix x = device_matrix(&d, N, cols, 1, 5), all = device_matrix(&d, N, ROWS, 0, 1),
                      parts = device_matrix(&d, N, ROWS, 0, 2);

        run(&d, weight, 0, 0, x.view, all.view);
        device_pull(&d, &all);
        for (uint32_t n = 1; n < 8; n += 3) {
            for (uint32_t r = 0; r < N; r += n) {
                uint32_t now = r + n > N ? N - r : n;

                run(&d, weight, 0, 0, device_rows(&x, r, now), device_rows(&parts, r, now));
            }
            device_pull(&d, &parts);
            cr_assert_eq(memcmp(device_at(&all, 0, 0), device_at(&parts, 0, 0), N * ROWS * sizeof(float)), 0, "%s, by %u",
                         soq__dtype(types[i])->name, n);
        }
        d.ops->memory->weight_free(d.self, weight);
        device_matrix_done(&d, &x);
        device_matrix_done(&d, &all);
        device_matrix_done(&d, &parts);
        free(data);
    }
    device_close(&d);
}

/* A tied embedding: rows come out exactly as dequantised. */
Test(opencl_matmul, embedding)
{
    enum { VOCAB = 4 };
    struct device d;

    device_open(&d, VOCAB);
    for (int i = 0; i < N_TYPES; i++) {
        uint32_t cols = odd_width(types[i]);
        size_t bytes;
        uint8_t *data = device_random_weight(types[i], VOCAB, cols, 3, &bytes);
        float *w = device_dequantised(types[i], data, VOCAB * cols);
        struct matrix y = device_matrix(&d, VOCAB, cols, 1, 1);
        struct device_step *step = device_step(VOCAB, 0);
        struct soq_embed_args args = {.struct_size = sizeof args, .scale = 1.0f, .y = y.view};

        args.weight = device_weight(&d, types[i], data, bytes, VOCAB, cols, SOQ_USE_EMBED | SOQ_USE_MATMUL);
        for (uint32_t r = 0; r < VOCAB; r++)
            step->rows[r].token = (int32_t)(VOCAB - 1 - r);
        device_begin(&d, step);
        cr_assert_eq(d.ops->elementwise->embed(d.self, &args), 0);
        device_end(&d);
        device_pull(&d, &y);
        for (uint32_t r = 0; r < VOCAB; r++)
            for (uint32_t k = 0; k < cols; k++)
                cr_assert_eq(*device_at(&y, r, k), w[(VOCAB - 1 - r) * cols + k], "%s: row %u, input %u: %g is not %g",
                             soq__dtype(types[i])->name, r, k, (double)*device_at(&y, r, k),
                             (double)w[(VOCAB - 1 - r) * cols + k]);
        d.ops->memory->weight_free(d.self, args.weight);
        device_matrix_done(&d, &y);
        free(step);
        free(data);
        free(w);
    }
    device_close(&d);
}

/* A vector of any type is widened: seen as the bias of a product with zeros. */
Test(opencl_matmul, vectors)
{
    static const float zeros[512 * 4];

    for (int i = 0; i < N_TYPES; i++) {
        uint32_t n = odd_width(types[i]);
        struct device d;
        size_t bytes;
        uint8_t *data = device_random_weight(types[i], 1, n, 3, &bytes);
        float *v = device_dequantised(types[i], data, n);
        soq_weight vector, nothing;
        struct matrix x, y;

        device_open(&d, 1);
        x = device_matrix(&d, 1, 4, 0, 1);
        y = device_matrix(&d, 1, n, 0, 1);
        vector = device_weight(&d, types[i], data, bytes, 1, n, SOQ_USE_VECTOR);
        nothing = device_weight(&d, SOQ_DTYPE_F32, zeros, sizeof zeros, n, 4, SOQ_USE_MATMUL);
        run(&d, nothing, vector, 0, x.view, y.view);
        device_pull(&d, &y);
        for (uint32_t k = 0; k < n; k++)
            cr_assert_eq(*device_at(&y, 0, k), v[k], "%s: %u", soq__dtype(types[i])->name, k);
        d.ops->memory->weight_free(d.self, vector);
        d.ops->memory->weight_free(d.self, nothing);
        device_matrix_done(&d, &x);
        device_matrix_done(&d, &y);
        device_close(&d);
        free(data);
        free(v);
    }
}

/* Columns of one buffer: q, k and v side by side. */
Test(opencl_matmul, products_of_one_input)
{
    enum { N = 5, COLS = 64, ROWS = 24 };
    struct matrix x, all, one;
    struct device d;

    device_open(&d, N);
    x = device_matrix(&d, N, COLS, 0, 5);
    all = device_matrix(&d, N, 3 * ROWS, 1, 1);
    one = device_matrix(&d, N, ROWS, 0, 2);
    for (uint32_t i = 0; i < 3; i++) {
        size_t bytes;
        uint8_t *data = device_random_weight(SOQ_DTYPE_Q4_0, ROWS, COLS, 7 + i, &bytes);
        soq_weight weight = device_weight(&d, SOQ_DTYPE_Q4_0, data, bytes, ROWS, COLS, SOQ_USE_MATMUL);
        struct soq_view part = all.view;

        part.cols = ROWS;
        part.offset += i * ROWS * sizeof(float);
        run(&d, weight, 0, 0, x.view, part);
        run(&d, weight, 0, 0, x.view, one.view);
        device_pull(&d, &all);
        device_pull(&d, &one);
        for (uint32_t r = 0; r < N; r++)
            cr_assert_eq(memcmp(device_at(&all, r, i * ROWS), device_at(&one, r, 0), ROWS * sizeof(float)), 0);
        d.ops->memory->weight_free(d.self, weight);
        free(data);
    }
    device_matrix_done(&d, &x);
    device_matrix_done(&d, &all);
    device_matrix_done(&d, &one);
    device_close(&d);
}
